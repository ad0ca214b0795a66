"""What is put on a device, in which order, how much of it at once, and what it is told to take."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shunter.handlers.device import capture as device_capture
from shunter.handlers.device import flags as device_flags
from shunter.handlers.device import graphs as device_graphs
from shunter.handlers.device.capture import CudaRecorder, capture
from shunter.handlers.device.driver import DeviceError, NotSupported
from shunter.handlers.device.flags import FlagWord, Watcher
from shunter.handlers.device.graphs import (
    MOST_AHEAD,
    Chain,
    Launches,
    MemoryOperation,
    chain,
    costs_us,
    gate,
)
from shunter.handlers.device.padding import green_stream

INVALID, OUT_OF_MEMORY, NOT_SUPPORTED = 1, 2, 801


@pytest.fixture
def device(fake_executors):
    """A driver, and the fake one below it."""
    return fake_executors.driver, fake_executors.cuda


# ---- costs


def test_parts_are_timed_in_the_order_of_the_pass_and_from_its_inputs(device):
    driver, cuda = device
    state, seen = [0], []

    def part(steps):
        def step():
            seen.append(steps)
            state[0] += 1  # works in place: alone it would find what it left itself

        return cuda.graph_of(*[step] * steps)

    def restore():
        seen.append("inputs")
        state[0] = 0

    parts = [part(3), part(1), part(5)]
    before = set(cuda.live)
    found = costs_us(driver, driver.stream(), parts, restore, 2)
    assert found == pytest.approx([4, 2, 6])  # a step takes a microsecond, and so does a stamp
    assert seen == ["inputs", 3, 3, 3, 1, 5, 5, 5, 5, 5] * 2
    assert state[0] == 9
    assert len(set(cuda.live) - before) == 1  # the stream


def test_a_pass_that_changes_its_inputs_is_captured_with_those_of_the_example(fake_executors):
    seen = []

    class InPlace(nn.Module):
        def forward(self, x):
            seen.append(x.clone())
            return x.mul_(2) + 1

    restored = []
    recorder = fake_executors.recorder()
    recorder.costs_us = lambda parts, restore: restored.append(restore) or [1.0] * len(parts)
    example = torch.tensor([1.0, 2.0])
    captured = capture(InPlace(), [example], recorder)
    assert torch.equal(seen[-1], example)
    assert not torch.equal(captured.inputs[0], example)
    restored[0]()
    assert torch.equal(captured.inputs[0], example)


def test_why_a_capture_failed_is_what_failed_first(fake_executors):
    recorder, recording = fake_executors.recorder(), []
    recorder.begin = lambda: recording.append(True)

    def end():
        recording.pop()
        raise RuntimeError("operation failed due to a previous error during capture")

    recorder.end = end

    class Waits(nn.Module):
        def forward(self, x):
            if recording:
                raise RuntimeError("operation not permitted when stream is capturing")
            return x

    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        capture(Waits(), [torch.ones(1)], recorder)
    assert not recording  # what was begun was ended


# ---- gates between graphs


def test_behind_a_closed_gate_lie_no_more_steps_than_a_stream_takes(device):
    driver, cuda = device
    flag, stream, done = FlagWord(driver), driver.stream(), []
    steps = []
    for number in range(6 * MOST_AHEAD):
        steps += [gate(flag), cuda.graph_of(lambda number=number: done.append(number))]
    flag.follow(True, False)
    launches, most = Launches(driver, steps), []
    begun = threading.Event()

    def look(seconds):
        most.append(len(cuda._streams[stream]))
        begun.set()

    waiting = SimpleNamespace(sleep=look)
    real, device_graphs.time = device_graphs.time, waiting
    try:
        running = threading.Thread(target=lambda: launches.launch(stream), daemon=True)
        running.start()
        assert begun.wait(30)
        assert not done
        flag.follow(False, False)
        running.join(60)
        assert not running.is_alive()
    finally:
        device_graphs.time = real
    driver.call("cuStreamSynchronize", stream)
    assert done == list(range(6 * MOST_AHEAD))
    assert max(most) <= MOST_AHEAD + 2  # and the marks
    launches.close()
    flag.close()


@pytest.mark.parametrize(
    ("error", "falls_back"), [(NOT_SUPPORTED, True), (OUT_OF_MEMORY, False), (INVALID, False)]
)
def test_only_a_driver_that_cannot_is_reason_to_do_without(device, error, falls_back):
    driver, cuda = device
    cuda.failing["cuGraphAddBatchMemOpNode"] = error
    steps = [MemoryOperation(False, 4096, 1), cuda.graph_of(lambda: None)]
    if falls_back:
        assert type(chain(driver, steps)) is Launches
        with pytest.raises(NotSupported):
            Chain(driver, steps)
    else:
        with pytest.raises(DeviceError, match="cuGraphAddBatchMemOpNode"):
            chain(driver, steps)


def test_a_binding_that_lacks_a_function_is_one_that_cannot(device):
    driver, _ = device
    with pytest.raises(NotSupported, match="cuNewFunction"):
        driver.call("cuNewFunction", 1)


def test_a_binding_that_takes_other_arguments_is_named_with_advice(device):
    driver, _ = device
    with pytest.raises(DeviceError, match=r"cuStreamCreate: .*pip install 'shunter\[gpu\]'"):
        driver.call("cuStreamCreate", 1, 2, 3)


# ---- who waits for whom


def test_a_capture_waits_for_no_stream_but_its_own(device, monkeypatch):
    """Best effort may stand still on another, for as long as it may."""
    driver, _ = device
    waits = []

    class Stream:
        cuda_stream = 7

        def __init__(self, device):
            self.device = device

        def wait_stream(self, other):
            waits.append(("behind", other))

        def synchronize(self):
            waits.append("own")

    def whole_device(*_):
        pytest.fail("it waits for the whole device")

    cuda = device_capture.torch.cuda
    monkeypatch.setattr(cuda, "Stream", Stream)
    monkeypatch.setattr(cuda, "graph_pool_handle", lambda: 1)
    monkeypatch.setattr(cuda, "synchronize", whole_device)
    monkeypatch.setattr(cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(cuda, "stream", lambda stream: nullcontext())
    recorder = CudaRecorder(driver, torch.device("cuda", 0))
    with recorder.session():
        assert waits == [("behind", "current")]
    assert waits == [("behind", "current"), "own"]


def test_green_contexts_have_queues_of_their_own_where_the_driver_knows_of_them(device):
    driver, cuda = device
    assert green_stream(driver, 9)[1] == 16
    _, queues = cuda.described[-1]
    assert queues.wqConfig.sharingScope == 1
    del type(cuda).CUdevWorkqueueConfigScope.CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED
    try:
        assert green_stream(driver, 9)[1] == 16
    finally:
        type(cuda).CUdevWorkqueueConfigScope.CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED = 1
    assert len(cuda.described[-1]) == 1


def test_a_watcher_rests_between_two_looks(device, monkeypatch):
    driver, _ = device
    monkeypatch.setattr(
        device_flags.time, "sleep", lambda seconds: pytest.fail("it takes a processor")
    )
    looks = []
    flag = FlagWord(driver)
    with Watcher(flag, lambda: looks.append(1) or False) as watcher:
        rests, wait = [], watcher._over.wait

        def rest(seconds):
            rests.append(seconds)
            return wait(seconds)

        watcher._over.wait = rest
        with watcher.batch():
            while len(rests) < 3:
                wait(0.001)
    assert min(rests) > 0
    flag.close()
