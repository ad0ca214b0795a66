"""A loaded best-effort worker's batches go through the gate of its server's page."""

import logging
import os
import threading
import time

import pytest
import torch
from torch import nn

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import claim
from shunter.batching.page.layout import RunnerState
from shunter.batching.page.runners import read_runners
from shunter.handlers.preemption import yielding
from shunter.handlers.preemption.fx_boundaries import OperationBoundaries
from shunter.handlers.preemption.preemptible import PASSES, Preemptible
from shunter.handlers.preemption.yielding import PreemptionSettings, yielding_of


class Handler:
    def __init__(self):
        torch.manual_seed(1)
        self.model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)]).eval()
        self.calls = 0

    def handle(self, data, context):
        self.calls += 1
        with torch.inference_mode():
            return self.model(data)


@pytest.fixture
def page(tmp_path):
    with ControlPage.create(
        tmp_path / "control", owner_pid=os.getpid(), created_unix_ns=1, now_ns=time.monotonic_ns()
    ) as found:
        yield found


def keep(*arguments):
    return lambda: arguments


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ({}, PreemptionSettings(1.0, "modules", False)),
        ({"preemptible": True}, PreemptionSettings(1.0, "modules", False)),
        (
            {"preemptible": {"segment_ms": 2, "boundaries": "fx", "drop": True}},
            PreemptionSettings(2.0, "fx", True),
        ),
    ],
)
def test_what_a_model_says_of_its_cuts(section, settings):
    assert PreemptionSettings.read(section) == settings


def environ(tmp_path, **more):
    return {"SHUNTER_RUNTIME": str(tmp_path), "SHUNTER_SLOT": "3", "SHUNTER_SLICES": "0x5", **more}


def test_a_batch_stands_still_on_the_word_of_another_process(page, tmp_path):
    handler, x = Handler(), torch.ones(2, 8)
    expected = handler.handle(x, None)
    guarded = yielding_of(handler, {}, environ(tmp_path)).guard(handler.handle, keep)
    [line] = read_runners(page)
    assert (line.runner_pid, line.runner_slot, line.runner_slices) == (os.getpid(), 3, 5)
    assert line.runner_class == 1
    page.write_bounds(3_600_000_000, 3_600_000_000)  # however busy this host is
    holder = claim(page, os.getpid(), time.monotonic_ns())
    holder.hold(4, 1, time.monotonic_ns())
    results = []
    batch = threading.Thread(target=lambda: results.append(guarded(x, None)))
    batch.start()
    end = time.monotonic() + 300
    while read_runners(page)[0].runner_state != RunnerState.PARKED and time.monotonic() < end:
        holder.heartbeat(time.monotonic_ns())
    assert not results
    holder.hold(0, 0, time.monotonic_ns())
    batch.join(timeout=300)
    assert torch.equal(results[0], expected)
    [line] = read_runners(page)
    assert (line.preemptions, line.batches) == (1, 1)


def test_how_many_multiprocessors_a_pass_keeps_busy_is_not_known(page, tmp_path, monkeypatch):
    handler = Handler()
    monkeypatch.setattr(yielding, "device_of_model", lambda model: torch.device("cuda", 0))
    monkeypatch.setattr(yielding, "DeviceCheck", lambda check, mark: check)
    monkeypatch.setattr(yielding, "catch_up", lambda device: True)
    yielding_of(handler, {}, environ(tmp_path))
    for _ in range(PASSES + 1):
        handler.handle(torch.ones(2, 8), None)
    [line] = read_runners(page)
    assert line.solo_ns > 0
    assert line.solo_cpu_ns == 0  # and not the time of the host


@pytest.mark.parametrize(
    ("boundaries", "kind"), [("modules", Preemptible), ("fx", OperationBoundaries)]
)
def test_models_are_cut_as_they_wish(page, tmp_path, boundaries, kind):
    section = {"preemptible": {"boundaries": boundaries, "segment_ms": 0.5}}
    [part] = yielding_of(Handler(), section, environ(tmp_path))._parts
    assert type(part) is kind
    assert part._target_ns == 500_000


def test_the_bound_of_what_cannot_be_cut_is_its_longest_batch(page, tmp_path):
    handler = Handler()
    handler.model = torch.jit.script(handler.model)
    guarded = yielding_of(handler, {}, environ(tmp_path)).guard(handler.handle, keep)
    for _ in range(3):
        guarded(torch.ones(1, 8), None)
    [line] = read_runners(page)
    assert line.segments == 0
    assert line.segment_ns > 0


def test_the_bound_of_a_generator_is_its_longest_step(page, tmp_path):
    def work(count):
        for number in range(count):
            time.sleep(0.02)
            yield number

    guarded = yielding_of(Handler(), {}, environ(tmp_path)).guard(work, keep)
    assert list(guarded(3)) == [0, 1, 2]
    [line] = read_runners(page)
    assert line.segment_ns >= 20_000_000


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"SHUNTER_SLICES": "many"}, "SHUNTER_SLICES"),
        ({"SHUNTER_RUNTIME": "/nonexistent"}, "No such file"),
    ],
)
def test_without_a_page_the_kernel_alone_preempts_and_the_log_says_so(
    page, tmp_path, caplog, change, complaint
):
    with caplog.at_level(logging.WARNING, "shunter.yielding"):
        assert yielding_of(Handler(), {}, environ(tmp_path, **change)) is None
    assert "by the kernel's scheduling alone" in caplog.text
    assert complaint in caplog.text
