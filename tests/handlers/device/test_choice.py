"""Which worker a model gets, by where it is and by what there is."""

import logging
from types import SimpleNamespace

import pytest
import torch

from shunter.handlers.device.driver import DeviceError, Driver, cuda_driver
from shunter.handlers.queue import device_model as models
from shunter.handlers.queue.device_queue import DeviceQueueWorker, queue_worker
from shunter.handlers.queue.tensor_queue import QueueWorker, StagedQueueWorker, device_of
from shunter.nic_frontend.wire.layout import WireStatus

GPU = torch.device("cuda", 0)


@pytest.fixture
def here(fake, monkeypatch):
    """The fake driver as that of this machine."""
    stream = Driver(fake.cuda, 0).stream()
    fake.cuda.live.clear()
    monkeypatch.setattr(models, "cuda_driver", lambda: fake.cuda)
    monkeypatch.setattr(models, "cuda_view", lambda *what: fake.view(*what[:3]))
    current = SimpleNamespace(cuda_stream=stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    models.tell_pageable.cache_clear()
    return fake


def double(inputs, outputs):
    outputs[0].copy_(2 * inputs[1])


@pytest.fixture
def make_worker(front):
    """The worker of a link, and what it has made on its device; both are closed."""
    made = []

    def make(infer, device=GPU):
        specs = front.queue.inputs, front.queue.outputs
        model = models.device_model(infer, [], specs, 4, device, graphs=False)
        made.extend([model] if model else [])
        made.insert(0, queue_worker(front.end, infer, 4, device, model))
        return made[0]

    yield make
    for each in made:
        each.close()


def run_one(front, worker):
    for entries in ((14, 15, 0), (3, 9, 4)):
        front.come(*entries, values=[3, 4, 5])
        assert front.run(worker, *entries) == [WireStatus.OK] * 3
        assert front.answers(*entries) == [6, 8, 10]


def test_a_model_on_the_host_has_a_worker_without_a_device(front):
    worker = queue_worker(front.end, double, 4, None)
    assert type(worker) is QueueWorker
    run_one(front, worker)
    worker.close()


def test_a_model_on_a_device_gets_a_queue_there(here, front, make_worker):
    def infer(inputs, outputs):
        stream = torch.cuda.current_stream(GPU).cuda_stream
        here.cuda.launch(stream, lambda: double(inputs, outputs))

    worker = make_worker(infer)
    assert type(worker) is DeviceQueueWorker
    front.come(0, values=[1])
    assert front.run(worker, 0) == [WireStatus.OK]
    assert front.answers(0) == [2]


@pytest.mark.parametrize("enough", [0, 1, 2])
def test_without_room_for_batches_on_their_way_they_are_staged(
    here, front, make_worker, monkeypatch, enough, caplog
):
    """The model's own tensors have found room."""
    left = len(front.queue.inputs) + len(front.queue.outputs) + enough
    real = here.cuda.cuMemAlloc

    def allocate(size):
        nonlocal left
        left -= 1
        return real(size) if left >= 0 else (here.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY,)

    monkeypatch.setattr(here.cuda, "cuMemAlloc", allocate)
    assert type(make_worker(double)) is StagedQueueWorker
    assert "no memory on cuda:0: cuMemAlloc" in caplog.text


@pytest.mark.parametrize("name", ["cuMemAlloc", "cuEventCreate"])
def test_without_room_on_the_device_batches_are_staged(here, make_worker, caplog, name):
    here.cuda.failing[name] = here.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # as often as a front end comes
            assert type(make_worker(double)) is StagedQueueWorker
    assert [record.getMessage() for record in caplog.records] == [
        "Batches are copied to the device from pageable memory: no memory on cuda:0: "
        f"{name}: CUDA_ERROR_OUT_OF_MEMORY"
    ]


def test_what_torch_cannot_show_is_staged(here, make_worker, monkeypatch, caplog):
    def refuse(*what):
        raise TypeError("no such dtype")

    monkeypatch.setattr(models, "cuda_view", refuse)
    assert type(make_worker(double)) is StagedQueueWorker
    assert "no such dtype" in caplog.text
    assert not here.cuda.live


def test_without_cuda_python_batches_are_staged(make_worker, monkeypatch, caplog):
    def missing():
        raise ModuleNotFoundError("No module named 'cuda'")

    monkeypatch.setattr(models, "cuda_driver", missing)
    models.tell_pageable.cache_clear()
    assert type(make_worker(double)) is StagedQueueWorker
    assert "pip install 'shunter[gpu]'" in caplog.text


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_staged_batches(fake, front, place):
    seen = []

    def infer(inputs, outputs):
        seen.extend(tensor.device.type for tensor in (*inputs, *outputs))
        double(inputs, outputs)

    worker = StagedQueueWorker(front.end, infer, 4, torch.device(place))
    run_one(front, worker)
    assert seen == [place] * 6
    worker.close()


def test_staged_batches_end_with_the_device(fake, front, monkeypatch):

    def fails(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    worker = StagedQueueWorker(front.end, fails, 4, GPU)
    front.come(0)
    monkeypatch.setattr(worker, "_work", fails)  # there is no device to copy to
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert front.run(worker, 0) == [WireStatus.HANDLER_FAILED]
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    with pytest.raises(DeviceError, match="illegal memory access"):
        front.run(worker, 0)
    worker.close()


@pytest.mark.gpu
def test_a_gpu_is_used_as_it_comes(front, make_worker, caplog):
    worker = make_worker(double, torch.device("cuda"))
    assert type(worker) is DeviceQueueWorker
    assert caplog.text == ""  # the queue's memory is pinned
    run_one(front, worker)


@pytest.mark.parametrize(
    ("handler", "gpu_id", "there", "found"),
    [
        (SimpleNamespace(device=torch.device("cuda:1")), 0, True, torch.device("cuda:1")),
        (SimpleNamespace(device="cuda"), None, True, torch.device("cuda")),
        (SimpleNamespace(device=torch.device("cpu")), 0, True, None),
        (SimpleNamespace(device=torch.device("mps")), 0, True, None),
        (SimpleNamespace(), 2, True, torch.device("cuda:2")),
        (SimpleNamespace(device=None), 2, True, torch.device("cuda:2")),
        (SimpleNamespace(), 2, False, None),
        (SimpleNamespace(), None, True, None),
        (None, None, True, None),
    ],
)
def test_where_a_model_is(monkeypatch, handler, gpu_id, there, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert device_of(handler, gpu_id) == found


def test_the_fake_driver_has_only_names_that_the_real_one_has(fake):
    try:
        real = cuda_driver()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"needs cuda-python: {error}")
    for name in (name for name in dir(fake.cuda) if name.lower().startswith("cu")):
        known = getattr(fake.cuda, name)
        assert hasattr(real, name), name
        for member in vars(known) if isinstance(known, SimpleNamespace) else ():
            assert hasattr(getattr(real, name), member), f"{name}.{member}"
    assert all(int(getattr(real.CUresult, result.name)) == result for result in fake.cuda.CUresult)
