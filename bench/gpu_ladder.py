"""Measurements of the preemption ladder on a device: gates, latencies, strict beside others."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict

import torch
from common import Row, percentile
from gpu_bed import NAMES, Desk
from gpu_clients import Background, Pass, solo_us, steady, until

from shunter.handlers.device.graphs import Chain, chain, gate
from shunter.handlers.device.ladder import Rung
from shunter.handlers.device.runner import Whole

TARGETS_US = (10, 25, 50, 100, 200)
WINDOWS = (1, 2, 4, 8, 16)
PADDING_SMS = (8, 16, 32, 64)
SETTLED_NS = 300_000
"""The device stands still when it told nothing for so long."""
TOO_LONG_S = 5.0
STRICT, OTHER = "vgg19", "resnet152"
"""The pair of DISB A, which the ladder is measured with."""
STRICT_HZ = 200.0
WHOLE = 1e12
"""A segment that is the whole pass."""
ATTRIBUTES = (
    *("MULTIPROCESSOR_COUNT", "COMPUTE_MODE", "STREAM_PRIORITIES_SUPPORTED"),
    *("CAN_USE_64_BIT_STREAM_MEM_OPS", "CAN_USE_STREAM_WAIT_VALUE_NOR"),
)


def attributes(desk: Desk) -> Row:
    """What there is: only read."""
    driver = desk.bed.driver
    found: Row = {name.lower(): driver.attribute(name) for name in ATTRIBUTES}
    found |= asdict(desk.bed.found)
    found["gates_in_graphs"] = False
    if desk.bed.found.wait_value:
        made = chain(driver, [gate(desk.executor.flag)])
        found["gates_in_graphs"] = isinstance(made, Chain)
        made.close()
    found["mps"] = shutil.which("nvidia-cuda-mps-control") is not None
    found["torch"] = torch.__version__
    return found


def gate_cost(desk: Desk, passes: int) -> list[Row]:
    """How much longer a pass takes in segments, with open gates and launched by the host."""
    rows = []
    for name in NAMES:
        captured, example = desk.of_best_effort(name), desk.bed.model(name)[1]
        with using(desk, desk.best_effort(name, Rung.PRIORITY)) as runner:
            whole = solo_us(runner, example, passes)
        row: Row = {"model": name, "pass_us": whole, "parts": len(captured.parts)}
        row["longest_part_us"] = captured.bound_us
        for target in TARGETS_US:
            count = len(captured.segments(target))
            cell: Row = {"segments": count}
            for rung in rungs(desk):
                with using(desk, desk.best_effort(name, rung, target_us=target)) as runner:
                    longer = solo_us(runner, example, passes) - whole
                cell[rung] = {"overhead": longer / whole, "us_per_segment": longer / count}
            row[f"{target}_us"] = cell
        rows.append(row)
    return rows


def rungs(desk: Desk) -> list[Rung]:
    """Those that stand still, as far as they can be had."""
    return [r for r in (Rung.SEGMENTS, Rung.GATES) if not desk.bed.found.missing(r)]


@contextmanager
def using(desk: Desk, runner: Whole) -> Iterator[Whole]:
    """A runner, given back."""
    try:
        yield runner
    finally:
        desk.executor.drop(runner)


# ---- from a store to standing still


def latencies(desk: Desk, name: str, way: str, seconds: float) -> Row:
    """Preemption and resumption of one model. ``way``: whole, segments, gates, gates_page.

    From the store (``gates_page``: of the hold word on the control page) until the device has
    told the end of the last segment that it began; only from moments at which a segment ran.
    Resumption: from the store until the device tells the next beginning.
    """
    rung = Rung.GATES if way.startswith("gates") else Rung.SEGMENTS
    whole = {"target_us": WHOLE, "window": 1} if way == "whole" else {}
    hold = desk.hold_on_page if way.endswith("page") else desk.hold_directly
    runner = desk.best_effort(name, rung, progress=True, **whole)
    base = solo_us(runner, desk.bed.model(name)[1], 20)
    preempted, resumed = [], []
    choose = random.Random(1)
    if way.endswith("page"):
        desk.watched.set()
    try:
        with using(desk, runner), steady(), Background(desk.bed, {name: runner}) as others:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                until(time.perf_counter(), choose.uniform(0.0002, 0.0002 + 2 * base / 1e6))
                sample = one(desk, hold)
                if sample is not None:
                    preempted.append(sample[0])
                    resumed.append(sample[1])
    finally:
        desk.watched.clear()
    return {
        "model": name,
        "way": way,
        "bound_us": runner.bound_us,
        "preempt": spread(preempted),
        "resume": spread(resumed),
        "restore_overhead": restore_overhead(others.passes, base),
        "preempted_passes": sum(one.parks > 0 for one in others.passes),
        "wrong_answers": sum(not one.right for one in others.passes),
        "samples_us": preempted,
    }


def one(desk: Desk, hold: Callable[[], AbstractContextManager[None]]) -> tuple[float, float] | None:
    """Microseconds of a preemption and of the resumption; None if nothing ran at that moment."""
    flag = desk.executor.flag
    give_up = time.perf_counter() + TOO_LONG_S
    ran = flag.counter % 2 == 1
    begin = last = time.perf_counter_ns()
    with hold():
        known = flag.counter
        while time.perf_counter() < give_up:
            now, found = time.perf_counter_ns(), flag.counter
            if found != known:
                known, last = found, now
            elif found % 2 == 0 and now - last > SETTLED_NS:
                break
            time.sleep(0)
        else:
            raise TimeoutError("the device does not come to stand still")
    again = time.perf_counter_ns()
    while flag.counter == known:
        if time.perf_counter() > give_up:
            raise TimeoutError("the device does not go on")
        time.sleep(0)
    resumed = (time.perf_counter_ns() - again) / 1000
    return ((last - begin) / 1000, resumed) if ran else None


def spread(samples: Sequence[float]) -> Row:
    """Percentiles of microseconds."""
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found: Row = {key: percentile(samples, share) for key, share in shares.items()}
    return {**found, "count": len(samples)}


def restore_overhead(passes: Sequence[Pass], base_us: float) -> float | None:
    """Share of a pass that one preemption costs, the time of standing still not counted."""
    costs = [(p.us - p.parked_us - base_us) / base_us / p.parks for p in passes if p.parks]
    return percentile(costs, 0.5) if costs else None


# ---- strict work beside best effort


def ladder_cells(desk: Desk) -> Iterator[tuple[str, Rung | None, Mapping[str, float], int]]:
    """Label, rung of best effort, its options, and multiprocessors of padding."""
    yield "alone", None, {}, 0
    yield "V0 priority", Rung.PRIORITY, {}, 0
    possible = rungs(desk)
    if Rung.SEGMENTS in possible:
        for window in WINDOWS:
            yield f"V1 window {window}", Rung.SEGMENTS, {"window": window}, 0
    if Rung.GATES in possible:
        for target in TARGETS_US:
            yield f"V2 segment {target} us", Rung.GATES, {"target_us": target}, 0
    if desk.bed.found.green_contexts and possible:
        for sms in PADDING_SMS:
            yield f"V8 {sms} SM", possible[-1], {}, sms


def cell(
    desk: Desk, rung: Rung | None, options: Mapping[str, float], sms: int, seconds: float
) -> Row:
    """Periodic strict work, and best effort beside it by a rung."""
    row: Row = {}
    with ExitStack() as stack:
        strict = stack.enter_context(using(desk, desk.strict(STRICT)))
        backgrounds = []
        if rung is not None:
            runner = stack.enter_context(using(desk, desk.best_effort(OTHER, rung, **options)))
            backgrounds.append(Background(desk.bed, {OTHER: runner}))
        if sms:
            padding, row["sms"] = desk.beside(OTHER, sms)
            stack.enter_context(using(desk, padding))
            backgrounds.append(Background(desk.bed, {OTHER: padding}, desk.executor.holding))
        stack.enter_context(steady())
        for background in backgrounds:
            stack.enter_context(background)
        begin = time.perf_counter()
        row["strict_us"] = periodic_strict(desk, strict, seconds)
        row["seconds"] = time.perf_counter() - begin
        passes = [one for background in backgrounds for one in background.passes]
    row["passes"] = len(passes)
    row["wrong_answers"] = sum(not one.right for one in passes)
    return row


def periodic_strict(desk: Desk, strict: Whole, seconds: float) -> list[float]:
    """Microseconds from when each was due until its answer."""
    example, took = desk.bed.model(STRICT)[1], []
    begin = time.perf_counter()
    for number in range(max(1, int(seconds * STRICT_HZ))):
        due = number / STRICT_HZ
        until(begin, due)
        strict.run([example])
        took.append((time.perf_counter() - begin - due) * 1e6)
    return took
