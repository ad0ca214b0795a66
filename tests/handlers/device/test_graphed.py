"""A handler's batches as CUDA graphs on fixed tensors, and when they stay the handler's own."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shunter.handlers.device.graphed import Graphed, NotCaptured, sizes_up_to
from shunter.handlers.device.ladder import WANTED
from shunter.handlers.queue.device_model import DeviceModel, device_model
from shunter.handlers.queue.device_queue import DeviceQueueWorker
from shunter.nic_frontend.wire.layout import WireStatus

BATCH = 6
OK = WireStatus.OK


class Twice(nn.Module):
    """Three parts; the result of a row is twice its numbers."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Identity(), nn.ReLU(), nn.ReLU())

    def forward(self, x):
        return 2 * self.parts(x)


class Yields:
    """What best effort asks between segments; it may be told to do something then."""

    may_drop = False

    def __init__(self):
        self.checks = 0
        self.then = lambda: None

    def is_held(self):
        return False

    def check(self):
        self.checks += 1
        self.then()


@pytest.fixture
def scene(fake_executors):
    """A fake device, what is put on it, and how a handler is captured there."""
    return Scene(fake_executors)


class Scene:
    def __init__(self, executors):
        self.executors, self.cuda, self.driver = executors, executors.cuda, executors.driver
        self.stream = self.driver.stream()
        self.model = Twice().eval()
        self.calls = []

    def infer(self, inputs, outputs):
        self.calls.append(len(outputs[0]))
        outputs[0].copy_(self.model(inputs[0]))

    def options(self, **options):
        return {
            "current": lambda stream: nullcontext(),
            "environment": {},
            **options,
        }

    def graphed(self, infer=None, models=None, inputs=None, **options):
        inputs = [torch.zeros(BATCH, 3)] if inputs is None else inputs
        tensors = inputs, [torch.zeros(BATCH, 3)]
        models = [self.model] if models is None else models
        made = Graphed(
            infer or self.infer,
            models,
            tensors,
            self.driver,
            lambda stream: self.executors.recorder(),
            **self.options(**options),
        )
        return made, *(kind[0] for kind in tensors)


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_sizes(batch, sizes):
    assert sizes_up_to(batch) == sizes


@pytest.mark.parametrize("yields", [None, Yields()])
@torch.inference_mode()
def test_a_graph_gives_what_the_handler_gives_for_every_number_of_requests(scene, yields):
    made, inputs, outputs = scene.graphed(yields=yields)
    with made:
        captured = len(scene.calls)
        for count in range(1, BATCH + 1):
            inputs.copy_(torch.rand(BATCH, 3))
            outputs.zero_()
            made([inputs[:count]], [outputs[:count]])
            scene.cuda.cuStreamSynchronize(made.stream)
            assert torch.equal(outputs[:count], 2 * inputs[:count])
        assert len(scene.calls) == captured  # the handler itself has not run again
    assert "executable" not in scene.cuda.live.values()


def test_strict_work_is_one_launch_that_nobody_waits_for(scene):
    made, inputs, outputs = scene.graphed()
    with made:
        before = len(scene.cuda.launched)
        scene.cuda.synchronized.clear()
        inputs.fill_(3)
        made([inputs[:5]], [outputs[:5]])
        assert scene.cuda.launched[before:] == [made.stream]
        assert not scene.cuda.synchronized and outputs[0, 0] != 6
        scene.cuda.cuStreamSynchronize(made.stream)
        assert outputs[4].tolist() == [6, 6, 6]


def test_best_effort_stands_still_between_the_parts_of_a_graph(scene):
    yields = Yields()
    made, inputs, outputs = scene.graphed(yields=yields)
    with made:
        inputs.fill_(3)
        launched, seen = len(scene.cuda.launched), []
        yields.checks = 0
        yields.then = lambda: seen.append(len(scene.cuda.launched) - launched)
        made([inputs[:2]], [outputs[:2]])
        assert seen == list(range(len(seen))) and len(seen) == yields.checks > 0
        assert len(scene.cuda.launched) - launched == yields.checks


@pytest.mark.parametrize("rung", ["priority", "segments", "gates"])
def test_the_rung_is_that_of_the_environment(scene, rung):
    made, inputs, outputs = scene.graphed(yields=Yields(), environment={WANTED: rung})
    with made:
        inputs.fill_(1)
        made([inputs[:2]], [outputs[:2]])
        scene.cuda.cuStreamSynchronize(made.stream)
        assert outputs[:2].eq(2).all()
        kinds = {type(runner).__name__ for runner in made._runners.values()}
        assert kinds == {{"priority": "Whole", "segments": "Segmented", "gates": "Gated"}[rung]}


@pytest.mark.parametrize("dtype", ["complex64", "bfloat16", "uint8", "bool", "int64"])
@torch.inference_mode()
def test_results_of_every_type_are_compared(scene, dtype):
    results = torch.zeros(BATCH, 2, dtype=getattr(torch, dtype))
    options = scene.options()

    def infer(inputs, outputs):
        outputs[0].copy_(scene.model(inputs[0]).ge(1) + 1)

    inputs = torch.zeros(BATCH, 2)
    where = scene.driver, lambda stream: scene.executors.recorder()
    with Graphed(infer, [scene.model], ([inputs], [results]), *where, **options) as made:
        inputs.fill_(3)
        made([inputs[:1]], [results[:1]])
        scene.cuda.cuStreamSynchronize(made.stream)
        assert torch.equal(results[0], torch.full((2,), 2).to(results))
    with pytest.raises(NotCaptured, match="other results"):
        Graphed(counting(scene, infer), [scene.model], ([inputs], [results]), *where, **options)


# ---- what is not captured


def counting(scene, run=None):
    """Another result each time."""
    calls = []

    def infer(inputs, outputs):
        (run or scene.infer)(inputs, outputs)
        calls.append(1)
        outputs[0].copy_(outputs[0].logical_not() if len(calls) % 2 else outputs[0])

    return infer


def reading(scene):
    """What it does depends on what the host reads."""
    return lambda inputs, outputs: outputs[0].fill_(float(inputs[0].numpy()[0, 0]))


def elsewhere(scene):
    """Its results come by another way than the stream that is captured."""
    kept = []

    def infer(inputs, outputs):
        kept.append(outputs[0].numpy())
        kept[-1][:] = 2 * inputs[0].numpy()

    return infer


def refusing(scene):
    def infer(inputs, outputs):
        raise KeyError("no such vocabulary")

    return infer


WHY = {
    counting: "other results for the same inputs",
    reading: "a graph of 6 requests gives other results than the handler",
    elsewhere: "a graph of 6 requests gives other results than the handler",
    refusing: "KeyError: 'no such vocabulary'",
}


@pytest.mark.parametrize("how", WHY)
def test_a_handler_whose_graph_is_not_the_handler_is_not_captured(scene, how):
    with pytest.raises(NotCaptured, match=WHY[how]):
        scene.graphed(how(scene))
    assert not set(scene.cuda.live.values()) & {"executable", "pinned"}


def test_a_capture_that_the_device_refuses_is_none(scene):
    scene.cuda.failing["cuGraphInstantiate"] = scene.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(NotCaptured, match="cuGraphInstantiate: CUDA_ERROR_OUT_OF_MEMORY"):
        scene.graphed()


def test_what_cannot_be_a_graph_is_said(scene):
    for options, why in (
        ({"graphs": False}, "2.8 and later"),
        ({"models": []}, "no torch module"),
        ({"models": [Twice().train()]}, "training mode"),
        ({"yields": SimpleNamespace(may_drop=True)}, "may be dropped"),
        ({"yields": Yields(), "environment": {WANTED: "best"}}, "allowed: priority, segments"),
    ):
        with pytest.raises(NotCaptured, match=why):
            scene.graphed(**options)
    assert not scene.calls


# ---- in a worker


@pytest.fixture
def serve(scene, fake, front):
    """A worker whose model is made ready as that of a server is."""
    stack = []

    def make(infer, models, **options):
        specs = front.queue.inputs, front.queue.outputs
        model = DeviceModel(infer, specs, BATCH, scene.driver, fake.view, lambda: scene.stream)
        model.capture(models, lambda stream: scene.executors.recorder(), **scene.options(**options))
        worker = DeviceQueueWorker(front.end, model)
        stack.extend([worker, model])
        return worker

    yield make
    for each in stack:
        each.close()
    assert set(scene.cuda.live.values()) <= {"graph"}  # of the recorder


class Network(nn.Module):
    def forward(self, x, y):
        return 2 * y + (x[:, :1024] - y)


def of_network(network, calls):
    def infer(inputs, outputs):
        calls.append(len(inputs[0]))
        outputs[0].zero_()
        outputs[0].copy_(network(*inputs))

    return infer


def serve_pairs(front, worker):
    """Two batches on their way at a time, of every size."""
    for number, count in enumerate((1, 5, 3, 6, 2, 4)):
        sets = [range(count), range(8, 8 + count)]
        for place, entries in enumerate(sets):
            values = [1000 * number + 100 * place + entry for entry in entries]
            front.come(*entries, values=values)
            worker.begin(front.give(*entries))
        for place, entries in enumerate(sets):
            assert front.finish(worker) == [OK] * count
            expected = [2 * (1000 * number + 100 * place + entry) for entry in entries]
            assert front.answers(*entries) == expected


@torch.inference_mode()
def test_batches_of_a_queue_are_graphs(scene, serve, front, caplog):
    caplog.set_level(logging.INFO)
    network, calls = Network().eval(), []
    worker = serve(of_network(network, calls), [network])
    assert "Batches of up to 1, 2, 4, 6 requests are CUDA graphs." in caplog.text
    captured = len(calls)
    serve_pairs(front, worker)
    assert len(calls) == captured


@torch.inference_mode()
def test_a_handler_that_cannot_be_captured_runs_as_it_is_and_the_log_says_why_once(
    scene, serve, front, caplog
):
    calls = []
    worker = serve(of_network(lambda x, y: 2 * y, calls), [])
    front.come(3, 1, values=[7, 8])
    assert front.run(worker, 3, 1) == [OK] * 2
    assert calls == [2]
    assert [record.getMessage() for record in caplog.records] == [
        "Batches run without CUDA graphs: the handler has no torch module among its attributes"
    ]


# ---- on a GPU


@pytest.fixture
def on_gpu(front):
    """A worker of a handler on a real device, made ready as that of a server is."""
    stack = []

    def make(infer, network, **options):
        specs = front.queue.inputs, front.queue.outputs
        model = device_model(infer, [network], specs, BATCH, torch.device("cuda"), **options)
        stack.append(model)
        worker = DeviceQueueWorker(front.end, model)
        stack.insert(0, worker)
        return model, worker

    yield make
    for each in stack:
        each.close()


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [None, "segments", "gates", "priority"])
@torch.inference_mode()
def test_graphs_on_a_gpu(front, on_gpu, rung, monkeypatch):
    network, calls = Network().eval(), []
    if rung:
        monkeypatch.setenv(WANTED, rung)
    model, worker = on_gpu(of_network(network, calls), network, yields=rung and Yields())
    assert model.is_captured
    captured = len(calls)
    serve_pairs(front, worker)
    assert len(calls) == captured


@pytest.mark.gpu
@torch.inference_mode()
def test_a_handler_that_waits_for_a_gpu_is_not_captured_and_serves(front, on_gpu, caplog):
    network = Network().eval()

    def infer(inputs, outputs):
        assert int(inputs[0].max()) >= 0
        outputs[0].copy_(network(*inputs))

    model, worker = on_gpu(infer, network)
    assert not model.is_captured
    assert "Batches run without CUDA graphs" in caplog.text
    serve_pairs(front, worker)
