"""Best-effort passes on a device stand still when held, go on where they stood, and are right."""

import copy
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import held as held_on
from shunter.handlers.device.capture import is_opaque
from shunter.handlers.device.driver import DeviceError
from shunter.handlers.device.ladder import Rung, RungError

RUNGS = list(Rung)
STANDING = [Rung.SEGMENTS, Rung.GATES]
DEADLINE_S = 60


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch):
    """A GPU does not round to TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


class Residual(nn.Module):
    """Branches, what happens between modules, changes in place, a module that is used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.nothing = nn.Identity()
        self.last = nn.Linear(8 * 16, 5)

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        y = self.relu(self.nothing(self.second(x)) + x)
        y = torch.cat([x, y], 1)
        return self.last(nn.functional.adaptive_avg_pool2d(y, 4).flatten(1)), y.mean()


def mlp():
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.GELU(), layer, nn.LayerNorm(8), nn.Linear(8, 3))


def encoder():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


MODELS = {
    "residual": (Residual, (2, 3, 6, 6)),
    "mlp": (mlp, (4, 8)),
    "encoder": (encoder, (2, 5, 8)),
}


def made(name, seed=0):
    torch.manual_seed(seed)
    make, shape = MODELS[name]
    return make().eval(), lambda: torch.randn(shape)


def flat(found):
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    return [tensor.detach().cpu().clone() for tensor in found]


def wanted(model, x):
    """What it returns without anybody's help; the encoder as it computes when looked at."""
    leaves = [module for module in model.modules() if not any(module.children())]
    hooks = [leaf.register_forward_hook(lambda *_: None) for leaf in leaves]
    try:
        with torch.no_grad():
            return flat(model(x))
    finally:
        for hook in hooks:
            hook.remove()


def same(found, right):
    """A GPU has other algorithms than the CPU whose answers are the right ones."""
    exact = not torch.cuda.is_available()
    return all(
        torch.equal(a, b) if exact else torch.allclose(a, b, atol=1e-4)
        for a, b in zip(found, right, strict=True)
    )


def until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.001)


@contextmanager
def thread(target):
    """A thread that ends, whose error is the test's."""
    failed = []

    def main():
        try:
            target()
        except BaseException as error:
            failed.append(error)

    running = threading.Thread(target=main, daemon=True)
    running.start()
    try:
        yield running
    finally:
        running.join(DEADLINE_S)
    assert not running.is_alive()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_pass_in_parts_gives_what_the_model_gives(executors, rung, name):
    model, draw = made(name)
    captured = executors.capture(copy.deepcopy(model), draw())
    assert len(captured.parts) > 2
    with executors.executor(rung=rung) as executor:
        runners = [executor.best_effort(captured, target_us=us) for us in (1, 25, 1e9)]
        for runner in runners * 2:
            x = draw()
            assert same(flat(runner.run([x])), wanted(model, x))
            assert runner.parks == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_on_the_fake_is_equal_to_the_last_bit(fake_executors, name):
    model, draw = made(name)
    captured = fake_executors.capture(model, draw())
    with fake_executors.executor() as executor:
        runner, x = executor.best_effort(captured), draw()
        found = flat(runner.run([x]))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted(model, x), strict=True))


@pytest.mark.parametrize("rung", STANDING)
def test_what_is_held_begins_nothing_and_goes_on_when_it_is_let(executors, rung):
    model, draw = made("residual")
    captured, x = executors.capture(copy.deepcopy(model), draw()), draw()
    holding, found, asked = threading.Event(), [], []
    holding.set()

    def held():
        asked.append(True)
        return holding.is_set()

    with executors.executor(held, rung, longest_park_ns=10**12) as executor:
        runner = executor.best_effort(captured, target_us=1, progress=True)
        with thread(lambda: found.extend(flat(runner.run([x])))):
            try:
                until(lambda: len(asked) > 2)
                assert executor.flag.raised is (rung is Rung.GATES)
                assert executor.flag.counter == 0
                assert not found
            finally:
                holding.clear()
        assert runner.parks == 1
        assert runner.parked_ns > 0
    assert same(found, wanted(model, x))


def test_at_most_a_window_of_segments_is_on_the_device(fake_executors):
    model, draw = made("residual")
    captured, cuda, x = fake_executors.capture(model, draw()), fake_executors.cuda, draw()
    asked = []

    def held():
        asked.append(len(cuda.launched) - executor.flag.counter // 2)
        return False

    for window in (1, 2, 3, 100):
        with fake_executors.executor(held, "segments") as executor:
            runner = executor.best_effort(captured, window=window, target_us=1, progress=True)
            cuda.launched.clear()
            asked.clear()
            assert same(flat(runner.run([x])), wanted(model, x))
            parts = len(captured.parts)
            assert len(asked) == parts
            # One fewer than the window are under way when it asks for the next.
            assert max(asked) <= min(window, parts) - 1
            assert max(asked) > 0 or window == 1


def test_what_was_held_in_the_middle_runs_a_window_at_most(fake_executors):
    model, draw = made("residual")
    captured, cuda, x = fake_executors.capture(model, draw()), fake_executors.cuda, draw()
    asked, seen = [], []

    def held():
        asked.append(True)
        if 3 < len(asked) < 60:
            for _ in range(5):
                cuda.step()
            seen.append((len(cuda.launched), executor.flag.counter))
            return True
        return False

    with fake_executors.executor(held, "segments") as executor:
        runner = executor.best_effort(captured, window=2, target_us=1, progress=True)
        cuda.launched.clear()
        assert same(flat(runner.run([x])), wanted(model, x))
        assert {launched for launched, _ in seen} == {3}
        assert seen[-1] == (3, 6)
        assert runner.parks == 1


def test_a_closed_gate_lets_its_segment_end_and_no_other_begin(fake_executors):
    model, draw = made("residual")
    captured, cuda, x = fake_executors.capture(model, draw()), fake_executors.cuda, draw()
    holding, stood, found = threading.Event(), [], []
    with fake_executors.executor(holding.is_set, longest_park_ns=10**12) as executor:
        runner = executor.best_effort(captured, target_us=1, progress=True)
        for number in range(2 * len(captured.parts)):
            steps = random.Random(number).randrange(3 * len(captured.parts))

            def some_way_in(steps=steps):
                if executor.flag.counter and len(cuda.started) >= steps:
                    holding.set()
                    until(lambda: executor.flag.raised)

            cuda.on_query = some_way_in
            cuda.started.clear()
            with thread(lambda: found.append(flat(runner.run([x])))) as running:
                until(lambda: executor.flag.raised or not running.is_alive())
                for _ in range(20):
                    cuda.step()
                at = executor.flag.counter
                for _ in range(20):
                    cuda.step()
                if executor.flag.raised:
                    assert executor.flag.counter == at
                    assert at % 2 == 0
                    stood.append(at)
                cuda.on_query = lambda: None
                holding.clear()
    assert len(set(stood)) > 2
    assert all(same(each, wanted(model, x)) for each in found)


@pytest.mark.parametrize("rung", STANDING)
def test_a_batch_that_stood_still_for_too_long_goes_on_to_its_end(executors, rung):
    model, draw = made("mlp")
    captured, x = executors.capture(copy.deepcopy(model), draw()), draw()
    with executors.executor(lambda: True, rung, longest_park_ns=20_000_000) as executor:
        runner = executor.best_effort(captured, target_us=1)
        for _ in range(2):
            assert same(flat(runner.run([x])), wanted(model, x))
            assert runner.parks == 1
            assert runner.parked_ns >= 20_000_000


def test_strict_work_of_the_same_process_that_hangs_ages_out_too(fake_executors):
    model, draw = made("mlp")
    captured, x = fake_executors.capture(model, draw()), draw()
    with fake_executors.executor(longest_park_ns=20_000_000) as executor, executor.flag.strict():
        assert executor.flag.raised
        assert same(flat(executor.best_effort(captured).run([x])), wanted(model, x))
        assert executor.flag.raised  # the next batch is held again


HOLD = """
import os, sys, time
from pathlib import Path
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import claim
page = ControlPage.attach(Path(sys.argv[1]))
now_ns = time.monotonic_ns()
claim(page, os.getpid(), now_ns).hold(1 << 48, 1, now_ns)
print(now_ns, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("rung", STANDING)
def test_a_holder_that_is_killed_holds_nobody(executors, rung, tmp_path):
    model, draw = made("mlp")
    captured, x, found = executors.capture(copy.deepcopy(model), draw()), draw(), []
    page = ControlPage.create(tmp_path / "control", owner_pid=1, created_unix_ns=0, now_ns=0)
    command = [sys.executable, "-c", HOLD, str(tmp_path / "control")]
    with page, subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            asked, held_ns = [], int(holder.stdout.readline())

            def held():
                asked.append(True)
                return bool(held_on(page, 1 << 48, held_ns))  # silence does not end it

            with executors.executor(held, rung, longest_park_ns=10**12) as executor:
                runner = executor.best_effort(captured)
                with thread(lambda: found.extend(flat(runner.run([x])))) as running:
                    until(lambda: len(asked) > 2)
                    assert executor.flag.raised is (rung is Rung.GATES)
                    assert running.is_alive()
                    holder.kill()
        finally:
            holder.kill()
    assert same(found, wanted(model, x))


def test_strict_work_runs_while_best_effort_stands_still(executors):
    strict_model, strict_draw = made("mlp", seed=1)
    model, draw = made("residual")
    strict_captured = executors.capture(copy.deepcopy(strict_model), strict_draw())
    captured, x, found = executors.capture(copy.deepcopy(model), draw()), draw(), []
    with executors.executor(longest_park_ns=10**12) as executor, ExitStack() as both:
        runner = executor.best_effort(captured, target_us=1)
        strict = executor.strict(strict_captured)
        both.enter_context(thread(lambda: found.extend(flat(runner.run([x])))))
        with executor.flag.strict():
            standing = executor.flag.strict_count
            for _ in range(5):
                y = strict_draw()
                assert same(flat(strict.run([y])), wanted(strict_model, y))
                assert executor.flag.strict_count == standing
                assert executor.flag.raised
        assert not executor.flag.raised
    assert same(found, wanted(model, x))


def test_strict_work_has_the_stream_of_the_highest_priority(fake_executors):
    with fake_executors.executor() as executor:
        priorities = fake_executors.cuda.priorities
        assert priorities[executor.strict_lane.stream] == -5
        assert priorities[executor.best_effort_lane.stream] == 0


@pytest.mark.parametrize("rung", RUNGS)
def test_strict_work_that_fails_lets_best_effort_go_on(fake_executors, rung):
    model, draw = made("mlp")
    captured = fake_executors.capture(model, draw())
    with fake_executors.executor(rung=rung) as executor:
        strict = executor.strict(captured)
        with pytest.raises(ValueError, match="zip"):
            strict.run([draw(), draw()])
        assert not executor.holding()
        fake_executors.cuda.failing["cuGraphLaunch"] = 700
        with pytest.raises(DeviceError, match="cuGraphLaunch"):
            strict.run([draw()])
        assert not executor.holding()
        assert not executor.flag.raised
        fake_executors.cuda.failing.clear()
        x = draw()
        assert same(flat(executor.best_effort(captured).run([x])), wanted(model, x))


def test_when_nobody_can_tell_who_holds_gates_are_open_and_the_next_batch_says_so(fake_executors):
    model, draw = made("residual")
    captured, x, asked = fake_executors.capture(model, draw()), draw(), []

    def held():
        asked.append(True)
        if len(asked) == 3:
            raise OSError("the page is gone")
        return True

    with fake_executors.executor(held, longest_park_ns=10**12) as executor:
        runner = executor.best_effort(captured, target_us=1)
        assert same(flat(runner.run([x])), wanted(model, x))
        assert not executor.flag.raised
        with pytest.raises(RuntimeError, match="nobody watches"):
            runner.run([x])


def test_the_way_out_opens_gates_whoever_holds(fake_executors):
    model, draw = made("residual")
    captured, x, found = fake_executors.capture(model, draw()), draw(), []
    holding = threading.Event()
    holding.set()
    with fake_executors.executor(holding.is_set, longest_park_ns=10**12) as executor:
        runner = executor.best_effort(captured, target_us=1)
        with executor.flag.strict(), thread(lambda: found.extend(flat(runner.run([x])))):
            # Both hold, and the batch is behind its first gate when the watcher is told to end.
            until(lambda: executor.watcher._ageing.parks > 0)
            executor.watcher.__exit__(None, None, None)
    assert same(found, wanted(model, x))


def test_where_graphs_take_no_gates_they_lie_between_graphs_on_the_stream(fake_executors):
    model, draw = made("residual")
    captured, x, found = fake_executors.capture(model, draw()), draw(), []
    holding = threading.Event()
    holding.set()
    fake_executors.cuda.failing["cuGraphAddBatchMemOpNode"] = 801
    with fake_executors.executor(holding.is_set, longest_park_ns=10**12) as executor:
        runner = executor.best_effort(captured, target_us=1, progress=True)
        fake_executors.cuda.launched.clear()
        with thread(lambda: found.extend(flat(runner.run([x])))):
            until(lambda: executor.flag.raised)
            assert executor.flag.counter == 0
            holding.clear()
        assert len(fake_executors.cuda.launched) == len(captured.parts)
    assert same(found, wanted(model, x))


def test_without_memory_that_the_device_sees_there_are_segments_but_no_gates(fake_executors):
    model, draw = made("mlp")
    captured, x = fake_executors.capture(model, draw()), draw()
    fake_executors.cuda.failing["cuMemHostRegister"] = 801
    with pytest.raises(RungError, match="host_memory"):
        fake_executors.executor(rung="gates")
    with fake_executors.executor(rung="") as executor:
        assert executor.rung is Rung.SEGMENTS
        assert same(flat(executor.best_effort(captured).run([x])), wanted(model, x))


def test_padding_runs_on_multiprocessors_of_its_own(executors):
    model, draw = made("residual")
    with executors.executor() as executor:
        lane, number = executor.padding_lane(9)
        assert number >= 9
        assert number % 8 == 0
        captured = executors.capture(copy.deepcopy(model), draw(), stream=lane.stream)
        runner, x = executor.beside(lane, captured), draw()
        with executor.flag.strict():
            assert same(flat(runner.run([x])), wanted(model, x))
        with pytest.raises(DeviceError, match="Split"):
            executor.padding_lane(10_000)


def test_a_compiled_model_is_one_part(fake_executors):
    model, draw = made("residual")
    x = draw()
    traced = torch.jit.trace(model, x)
    captured = fake_executors.capture(traced, draw())
    assert len(captured.parts) == 1
    with fake_executors.executor() as executor:
        runner = executor.best_effort(captured)
        assert same(flat(runner.run([x])), wanted(model, x))
        assert runner.bound_us == captured.bound_us == 10
    assert is_opaque(torch.compile(model, backend="eager"))


def test_the_bound_is_a_segment_with_gates_and_a_window_of_them_without(fake_executors):
    model, draw = made("residual")
    captured = fake_executors.capture(model, draw())  # every part takes 10 us
    with fake_executors.executor() as executor:
        bounds = {
            rung: executor.best_effort(captured, rung=rung, target_us=20, window=3).bound_us
            for rung in RUNGS
        }
    parts = len(captured.parts)
    assert bounds == {"priority": 10 * parts, "segments": min(60, 10 * parts), "gates": 20}


def test_everything_is_given_back(fake_executors):
    model, draw = made("mlp")
    captured = fake_executors.capture(model, draw())
    with fake_executors.executor() as executor:
        for rung in RUNGS:
            runner = executor.best_effort(captured, rung=rung)
            runner.run([draw()])
        executor.drop(runner)
        executor.padding_lane(8)
    fake_executors.driver.made.close()
    left = set(fake_executors.cuda.live) - set(captured.parts)
    assert left == set()


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from(RUNGS), st.sampled_from(sorted(MODELS)))
def test_whenever_it_is_held_the_result_is_the_same_and_nobody_waits_for_ever(
    make_executors, seed, rung, name
):
    model, draw = made(name, seed)
    executors, choice = make_executors(seed), random.Random(seed)
    captured = executors.capture(model, draw())
    strict_captured = executors.capture(model, draw())
    holding, over = threading.Event(), threading.Event()

    def others():
        while not over.is_set():
            (holding.set if choice.random() < 0.5 else holding.clear)()
            time.sleep(choice.random() / 1000)

    with executors.executor(holding.is_set, rung, longest_park_ns=5_000_000) as executor:
        strict = executor.strict(strict_captured)
        runner = executor.best_effort(
            captured, window=choice.randrange(1, 4), target_us=choice.choice([1, 25, 60])
        )

        def strict_work():
            while not over.is_set():
                y = draw()
                assert same(flat(strict.run([y])), wanted(model, y))
                time.sleep(choice.random() / 1000)

        with thread(others), thread(strict_work):
            try:
                for _ in range(5):
                    x = draw()
                    assert same(flat(runner.run([x])), wanted(model, x))
            finally:
                over.set()
