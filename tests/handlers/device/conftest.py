"""Queues on a device: a driver made of host memory, and a real one where there is a GPU.

These are tests of the handlers' device_*.py. They stand apart because those of the other handlers
need TorchServe, which a GPU host may not have.
"""

import ctypes
import importlib.util
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from queue_front import QueueFront

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.capture import CudaRecorder, capture
from shunter.handlers.device.driver import Driver, cuda_driver
from shunter.handlers.device.executor import DeviceExecutor, capabilities, keeps_graphs
from shunter.handlers.device.ladder import WANTED
from shunter.handlers.device.memory import cuda_view
from shunter.handlers.queue.device_model import DeviceModel
from shunter.handlers.queue.device_queue import DeviceQueueWorker


def _fake_cuda():
    path = Path(__file__).with_name("fake_cuda.py")
    spec = importlib.util.spec_from_file_location("device_fake_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeCuda


FakeCuda = _fake_cuda()


def host_view(address, shape, dtype):
    """A tensor over memory of the host."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not size:
        return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
    memory = (ctypes.c_ubyte * size).from_address(address)
    return torch.from_numpy(np.frombuffer(memory, dtype).reshape(shape))


def _worker(end, infer, batch, *where):
    """A worker that takes its model along when it is closed."""
    specs = end.queue.inputs, end.queue.outputs
    model = DeviceModel(infer, specs, batch, *where)
    try:
        worker = DeviceQueueWorker(end, model)
    except BaseException:
        model.close()
        raise
    close = worker.close
    worker.close = lambda: (close(), model.close())
    worker._stream = model.stream
    return worker


class FakeKit:
    """Workers on the fake driver."""

    view = staticmethod(host_view)

    def __init__(self, seed=0):
        self.cuda = FakeCuda(seed)

    def driver(self):
        return Driver(self.cuda, 0)

    def when_there(self, worker, infer, inputs, outputs):
        """Run it when its inputs are there, as one does that looks at numbers."""
        self.cuda.cuStreamSynchronize(worker._stream())
        infer(inputs, outputs)

    def worker(self, end, batch, infer):
        """``infer`` runs when the device gets to it."""
        driver = self.driver()
        stream = driver.stream()

        def launch(inputs, outputs):
            self.cuda.launch(stream, lambda: infer(inputs, outputs))

        return _worker(end, launch, batch, driver, host_view, lambda: stream)


class CudaKit:
    """The same on a GPU."""

    def driver(self):
        return Driver(cuda_driver(), 0)

    def when_there(self, worker, infer, inputs, outputs):
        infer(inputs, outputs)

    def worker(self, end, batch, infer):
        device = torch.device("cuda", 0)
        torch.cuda.init()
        return _worker(
            end,
            infer,
            batch,
            self.driver(),
            lambda *what: cuda_view(*what, device),
            lambda: torch.cuda.current_stream(device).cuda_stream,
        )


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def kit(request):
    """Makes workers, on a fake driver and on a real one."""
    return FakeKit() if request.param == "fake" else CudaKit()


@pytest.fixture
def fake():
    """Makes workers on the fake driver."""
    return FakeKit()


@pytest.fixture
def make_cuda_kit():
    """One of a GPU."""
    return CudaKit


@pytest.fixture(scope="session")
def make_kit():
    """A fake one with another order of the streams."""
    return FakeKit


ENTRIES = 16


class Front(QueueFront):
    """Every number of a request's tensors is the same, and so is every number of its result."""

    def __init__(self):
        specs = [TensorSpec("in", "int32", (2048,)), TensorSpec("small", "int32", (1024,))]
        super().__init__(specs, [TensorSpec("out", "int32", (1024,))], ENTRIES)
        assert self.entries == ENTRIES

    def come(self, *entries, values=None):
        """Requests are complete, which may run twice."""
        for entry, value in zip(entries, entries if values is None else values, strict=True):
            self.arrive(entry, *(np.full(spec.shape, value) for spec in self.queue.inputs))
        self.may_run_twice(*entries)

    def answers(self, *entries):
        """What was answered, the first number of each entry; all of an entry are the same."""
        found = self.results[0][list(entries)]
        assert (found == found[:, :1]).all()
        return found[:, 0].tolist()


@pytest.fixture
def front():
    """A queue, which is closed."""
    made = Front()
    yield made
    made.close()


@pytest.fixture(scope="session")
def front_type():
    """For properties, which need many."""
    return Front


def _fake_streams():
    path = Path(__file__).with_name("fake_streams.py")
    spec = importlib.util.spec_from_file_location("device_fake_streams", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


streams = _fake_streams()


class Executors:
    """Executors on the fake driver, and what they run."""

    def __init__(self, seed=0):
        self.cuda = streams.FakeStreams(seed)
        self.driver = Driver(self.cuda, 0)

    def executor(self, held=lambda: False, rung="gates", **options):
        return DeviceExecutor(
            self.driver,
            capabilities(self.driver, graphs=True),
            held,
            environment={WANTED: rung},
            current=lambda stream: nullcontext(),
            **options,
        )

    def capture(self, model, *inputs, stream=None):
        return capture(model, inputs, self.recorder())

    def recorder(self):
        return streams.FakeRecorder(self.cuda)


class CudaExecutors:
    """The same on a GPU."""

    def __init__(self):
        self.device = torch.device("cuda", 0)
        torch.cuda.init()
        self.driver = Driver(cuda_driver(), 0)

    def executor(self, held=lambda: False, rung="gates", **options):
        found = capabilities(self.driver, graphs=keeps_graphs())
        return DeviceExecutor(self.driver, found, held, environment={WANTED: rung}, **options)

    def capture(self, model, *inputs, stream=None):
        recorder = CudaRecorder(self.driver, self.device, stream)
        there = [tensor.to(self.device) for tensor in inputs]
        return capture(model.to(self.device), there, recorder)


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def executors(request):
    """Makes executors, on a fake driver and on a real one."""
    return Executors() if request.param == "fake" else CudaExecutors()


@pytest.fixture
def fake_executors():
    """Makes executors on the fake driver."""
    return Executors()


@pytest.fixture(scope="session")
def make_executors():
    """One with another order of the streams."""
    return Executors
