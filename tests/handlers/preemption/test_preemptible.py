"""Passes that stand still give the same bits as passes that do not."""

import copy
import logging
import random
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shunter.handlers.preemption import fx_boundaries, preemptible
from shunter.handlers.preemption.fx_boundaries import OperationBoundaries
from shunter.handlers.preemption.modules import models_of
from shunter.handlers.preemption.preemptible import PASSES, Preemptible


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = torch.relu(norm(convolution(x))) + x
        return x.mean((2, 3))


class Shared(nn.Module):
    """One layer that is called again and again, and a dict as result."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, *, times=5):
        for _ in range(times):
            x = torch.tanh(self.layer(x))
        return {"x": x, "parts": [x[:1], x.sum()]}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(50, 16), nn.LSTM(16, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3)


def nested():
    return nn.Sequential(Residual(), nn.Linear(4, 2))


def script_inside():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
    return nn.Sequential(scripted, nn.Linear(16, 2))


MODELS = {
    "residual": (Residual, lambda n: torch.randn(n, 4, 8, 8)),
    "shared": (Shared, lambda n: torch.randn(n, 16)),
    "recurrent": (Recurrent, lambda n: torch.randint(0, 50, (n, 7))),
    "encoder": (encoder, lambda n: torch.randn(n, 5, 16)),
    "nested": (nested, lambda n: torch.randn(n, 4, 8, 8)),
    "script inside": (script_inside, lambda n: torch.randn(n, 16)),
}


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = result.values()
    return [tensor for part in result for tensor in flat(part)]


def bits(result):
    return [tensor.numpy().tobytes() for tensor in flat(result)]


def make(name, seed=0):
    torch.manual_seed(seed)
    build, inputs = MODELS[name]
    return build().eval(), inputs


class Interruptions:
    """In place of the gate: another inference runs at some of its checks, in the same thread."""

    def __init__(self, choose):
        self.choose, self.checks, self.stops = choose, 0, 0
        self.other = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).eval()

    def __call__(self):
        self.checks += 1
        if self.choose(self.checks):
            self.stops += 1
            self.other(torch.full((3, 32), float(self.checks)))


@pytest.mark.parametrize("kind", [Preemptible, OperationBoundaries])
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    target_ns=st.sampled_from([0, 20_000, 10**9]),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=PASSES + 4),
)
def test_results_are_the_same_bits_wherever_it_stood_still(name, kind, seed, target_ns, sizes):
    model, inputs = make(name)
    plain, _ = make(name)
    choose = random.Random(seed)
    stops = Interruptions(lambda _: choose.random() < 0.5)
    part = kind(model, stops, target_ns=target_ns)
    for size in sizes:
        given_input = inputs(size)
        assert bits(passes(model, given_input, 1)) == bits(passes(plain, given_input, 1))
    part.detach()
    assert "forward" not in model.__dict__
    assert bits(passes(model, given_input, 1)) == bits(passes(plain, given_input, 1))


def passes(model, x, count):
    with torch.inference_mode():
        for _ in range(count):
            result = model(x)
    return result


def test_a_pass_is_cut_when_it_was_measured(caplog):
    model, inputs = make("residual")
    stops = Interruptions(lambda _: False)
    part = Preemptible(model, stops, target_ns=0)
    with caplog.at_level(logging.INFO, "shunter.preemptible"):
        passes(model, inputs(2), PASSES)
        assert part.cut is None
        passes(model, inputs(2), 1)
    assert part.cut is not None
    assert part.cut.segments == 9  # what is before the first call, then every convolution and norm
    assert "batch 2" in caplog.text
    assert "9 parts" in caplog.text
    before = stops.checks
    passes(model, inputs(2), 1)
    assert stops.checks - before == 9


def test_long_segments_need_few_boundaries_and_leave_the_others_alone():
    model, inputs = make("residual")
    part = Preemptible(model, lambda: None, target_ns=10**12)
    passes(model, inputs(1), PASSES + 1)
    assert part.cut.segments == 1
    assert [name for name, each in model.named_modules() if "forward" in each.__dict__] == [""]


def test_a_larger_batch_is_measured_anew_and_a_smaller_one_is_not():
    model, inputs = make("residual")
    part = Preemptible(model, lambda: None, target_ns=0)
    passes(model, inputs(4), PASSES + 1)
    first = part.cut
    passes(model, inputs(1), 1)
    passes(model, inputs(5), 1)
    assert part.cut is first
    passes(model, inputs(7), 1)
    assert part.cut is None
    passes(model, inputs(2), 1)
    assert part.cut is first  # of smaller batches it is known
    passes(model, inputs(7), PASSES)
    second = part.cut
    assert second is not None and second is not first  # by chance it may be equal
    passes(model, inputs(2), 1)
    assert part.cut is second


@pytest.mark.parametrize("every", [1000, 2, 4, 20])
def test_rare_large_batches_keep_no_model_from_being_cut(every):
    model, inputs = make("shared")
    part = Preemptible(model, lambda: None, target_ns=0)
    for number in range(3 * PASSES):
        passes(model, inputs(64 if number % every == 0 else 2), 1)
    passes(model, inputs(2), 1)
    assert part.cut is not None


def test_passes_that_go_another_way_each_time_can_stand_still_at_every_call():
    class Alternating(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
            self.count = 0

        def forward(self, x):
            self.count += 1
            for layer in list(self.layers)[self.count % 3 :]:
                x = layer(x)
            return x

    model, stops = Alternating().eval(), Interruptions(lambda _: False)
    part = Preemptible(model, stops, target_ns=0)
    passes(model, torch.zeros(1, 8), 2 * PASSES + 3)
    assert part.cut is None
    before = stops.checks
    model.count = 2
    passes(model, torch.zeros(1, 8), 1)
    assert stops.checks - before == 7


class Time:
    """Passes only where the test says so."""

    now_ns = 10**9

    def monotonic_ns(self):
        return self.now_ns

    def spend(self, ns):
        self.now_ns += ns


class Slow(nn.Module):
    """Takes so long."""

    __module__ = "torch.nn.slow"  # torch.fx does not look inside

    def __init__(self, time, ns):
        super().__init__()
        self.time, self.ns = time, ns

    def forward(self, x):
        self.time.spend(self.ns)
        return x


class Page(dict):
    """A runner's line."""

    def get(self, name):
        return super().get(name, 0)

    set = dict.__setitem__


@pytest.mark.parametrize("kind", [Preemptible, OperationBoundaries])
def test_the_time_that_a_pass_stood_still_is_not_its_own(kind, monkeypatch):
    time, runner = Time(), Page()
    monkeypatch.setattr(preemptible, "time", time)
    monkeypatch.setattr(fx_boundaries, "time", time)
    model = nn.Sequential(Slow(time, 1_000_000), Slow(time, 2_000_000), nn.Identity())
    part = kind(
        model,
        lambda: time.spend(50_000_000),  # strict work holds it at every boundary
        target_ns=1_500_000,
        runner=runner,
        cpu_time_ns=lambda: 0,
    )
    passes(model, torch.zeros(1), PASSES + 1)
    assert part.cut is not None
    assert runner["solo_ns"] == 3_000_000
    assert runner["segment_ns"] == 2_000_000


def test_a_pass_that_is_captured_in_a_graph_is_not_measured():
    model, inputs = make("residual")
    capturing = [True]
    part = Preemptible(model, lambda: None, target_ns=0, catch_up=lambda: not capturing[0])
    passes(model, inputs(2), 2 * PASSES)
    assert part.cut is None
    capturing[0] = False
    passes(model, inputs(2), PASSES + 1)
    assert part.cut is not None


def test_a_graph_of_operations_is_not_made_while_a_handler_captures_one():
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return x + 1

    capturing = [True]
    model = Counting()
    OperationBoundaries(model, lambda: None, target_ns=0, catch_up=lambda: not capturing[0])
    passes(model, torch.zeros(1), 3)
    assert Counting.calls == 3
    capturing[0] = False
    passes(model, torch.zeros(1), 1)
    assert Counting.calls > 4


@pytest.mark.parametrize("compiled", ["script", "compile", "compiled in place"])
def test_what_is_compiled_as_a_whole_is_left_alone(compiled):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    inner = model
    if compiled == "script":
        model = inner = torch.jit.script(model)
    elif compiled == "compile":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    expected = passes(copy.deepcopy(inner), torch.ones(2, 4), 1)
    stops = Interruptions(lambda _: True)
    before = [dict(each.__dict__) for each in inner.modules()]
    part = Preemptible(model, stops, target_ns=0)
    assert [each.__dict__.keys() for each in inner.modules()] == [each.keys() for each in before]
    assert torch.equal(passes(model, torch.ones(2, 4), PASSES + 1), expected)
    if compiled == "compile":
        assert part.cut.segments == 1  # the bound is a whole call, and is known
        assert stops.checks > 0
    part.detach()


@pytest.mark.parametrize("kind", [Preemptible, OperationBoundaries])
def test_a_model_that_fails_first_works_afterwards(kind):
    model, inputs = make("residual")
    kind(model, lambda: None, target_ns=0)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            passes(model, torch.zeros(1, 3, 8, 8), 1)
    plain, _ = make("residual")
    x = inputs(2)
    assert torch.equal(passes(model, x, PASSES + 2), passes(plain, x, 1))


@pytest.mark.parametrize("kind", [Preemptible, OperationBoundaries])
def test_what_a_model_had_in_place_of_its_forward_stays_there(kind):
    model, inputs = make("residual")
    inner = model.forward
    model.forward = ours = lambda x: inner(x) + 1
    x = inputs(2)
    expected = passes(model, x, 1)
    part = kind(model, lambda: None, target_ns=0)
    for _ in range(PASSES + 2):
        assert torch.equal(passes(model, x, 1), expected)
    part.detach()
    assert model.forward is ours


def test_a_compiled_model_cut_by_operations_is_left_alone_too():
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), backend="eager")
    expected = passes(model, torch.ones(2, 4), 1)
    part = OperationBoundaries(model, lambda: None, target_ns=0)
    assert torch.equal(passes(model, torch.ones(2, 4), PASSES + 2), expected)
    part.detach()
    assert torch.equal(passes(model, torch.ones(2, 4), 1), expected)


def test_a_copy_of_a_model_is_a_model_of_its_own():
    model, inputs = make("nested")
    x, stops = inputs(2), Interruptions(lambda _: False)
    part = Preemptible(model, stops, target_ns=0)
    passes(model, x, PASSES + 1)
    copied = copy.deepcopy(model)
    before = stops.checks
    with torch.no_grad():
        copied[1].weight.zero_()
        copied[1].bias.fill_(3)
        assert torch.equal(copied(x), torch.full((2, 2), 3.0))
        assert not torch.equal(model(x), copied(x))
    assert stops.checks > before
    part.detach()


def test_a_model_that_is_copied_to_several_devices_is_left_alone():
    model = nn.DataParallel(nn.Linear(2, 2))
    Preemptible(model, lambda: None, target_ns=0)
    assert all("forward" not in each.__dict__ for each in model.modules())


def test_longer_sequences_are_measured_anew():
    model, _ = make("recurrent")
    part = Preemptible(model, lambda: None, target_ns=0)
    passes(model, torch.zeros(1, 4, dtype=torch.int64), PASSES + 1)
    assert part.cut is not None
    passes(model, torch.zeros(1, 40, dtype=torch.int64), 1)
    assert part.cut is None


def test_a_failing_pass_leaves_it_usable():
    model, inputs = make("residual")
    Preemptible(model, lambda: None, target_ns=0)
    with pytest.raises(RuntimeError):
        passes(model, torch.zeros(1, 3, 8, 8), 1)
    plain, _ = make("residual")
    x = inputs(2)
    assert torch.equal(passes(model, x, PASSES + 2), passes(plain, x, 1))


def test_several_threads_may_run_one_model():
    model, inputs = make("residual")
    plain, _ = make("residual")
    x = inputs(2)
    expected = passes(plain, x, 1)
    part = Preemptible(model, lambda: None, target_ns=0)
    wrong = []

    def work():
        wrong.extend(not torch.equal(passes(model, x, 1), expected) for _ in range(30))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 90
    assert not any(wrong)
    part.detach()


def test_a_graph_stands_still_between_operations_of_one_module():
    class Deep(nn.Module):
        def forward(self, x, scale=None):
            for _ in range(10):
                x = torch.relu(x @ x)
            return x

    model, stops = Deep().eval(), Interruptions(lambda _: False)
    part = OperationBoundaries(model, stops, target_ns=0)
    passes(model, torch.eye(64), 1)
    assert part.cut.segments >= 20
    before = stops.checks
    assert torch.equal(passes(model, torch.eye(64), 1), torch.eye(64))
    assert stops.checks - before == part.cut.segments


def test_a_model_that_has_no_graph_stands_still_before_modules(caplog):
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) if x.sum() > -1e9 else x
            return x

    model, stops = Choosing().eval(), Interruptions(lambda _: False)
    expected = passes(copy.deepcopy(model), torch.ones(1, 4), 1)
    part = OperationBoundaries(model, stops, target_ns=0)
    assert torch.equal(passes(model, torch.ones(1, 4), PASSES + 3), expected)
    assert "stands still before modules, not operations" in caplog.text
    assert part.cut.segments == 4
    part.detach()
    assert "forward" not in model.__dict__


def test_the_models_of_a_handler_are_found_wherever_it_keeps_them():
    class Pipeline:
        def __init__(self):
            self.model = nn.Linear(1, 1)

    class Handler:
        pass

    handler = Handler()
    handler.model = nn.Sequential(nn.Linear(1, 1))
    handler.part = handler.model[0]
    handler.more = {"a": nn.Linear(1, 1), "b": [1]}
    handler.list = [nn.Linear(1, 1), None]
    handler.pipeline = Pipeline()
    handler.torch, handler.kind, handler.text = torch, nn.Linear, "model"
    found = models_of(handler)
    expected = [handler.model, handler.more["a"], handler.list[0], handler.pipeline.model]
    assert {id(each) for each in found} == {id(each) for each in expected}
    assert models_of(None) == []
    assert models_of(object()) == []
