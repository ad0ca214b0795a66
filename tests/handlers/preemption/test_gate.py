"""The gate against a page whose words another thread or the test itself writes."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from shunter.batching.page import holds, runners
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    HEADER_FIELDS,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
    RunnerState,
)
from shunter.handlers.preemption.gate import EVERY_SLOT, Gate, WorkerPlace

ME = os.getpid()


@pytest.fixture
def page(tmp_path):
    with ControlPage.create(
        tmp_path / "control", owner_pid=ME, created_unix_ns=1, now_ns=time.monotonic_ns()
    ) as found:
        yield found


class Clock:
    """Time that passes by sleeping only, at which the test may do something."""

    def __init__(self):
        self.now_ns = time.monotonic_ns()
        self.at = {}
        self.slept = 0

    def __call__(self):
        return self.now_ns

    def sleep(self, seconds):
        self.slept += 1
        self.now_ns += int(seconds * 1e9)
        for when in sorted(when for when in self.at if when <= self.slept):
            self.at.pop(when)()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def holder(page, clock):
    return holds.claim(page, ME, clock.now_ns)


def gate_of(page, clock, *, slot=0, slices=1, beside=0, may_drop=False):
    runner = runners.claim(page, ME, clock.now_ns)
    place = WorkerPlace(slot, slices)
    return Gate(
        page, runner, place, beside=beside, may_drop=may_drop, clock=clock, sleep=clock.sleep
    ), runner


def test_nothing_held_is_nothing_waited_for(page, clock):
    gate, runner = gate_of(page, clock)
    gate.begin_batch()
    gate.check()
    assert (clock.slept, runner.get("preemptions"), runner.get("batches")) == (0, 0, 1)


def test_it_stands_still_until_the_hold_ends_and_says_so(page, clock, holder):
    gate, runner = gate_of(page, clock)
    gate.check()
    clock.now_ns += 1000
    holder.hold(1, 1, clock.now_ns)
    clock.now_ns += 30_000
    seen = []

    def look():
        seen.append(runner.get("runner_state"))

    def release():
        holder.progress(clock.now_ns - 70_000)
        holder.hold(0, 0, clock.now_ns)

    clock.at = {2: look, 5: release}
    gate.check()
    assert seen == [RunnerState.PARKED]
    assert clock.slept == 5
    assert runner.get("runner_state") == RunnerState.RUNNING
    assert runner.get("preemptions") == 1
    assert runner.get("yield_ns") == runner.get("yield_worst_ns") == 30_000
    assert runner.get("parked_ns") == 5 * 200_000
    assert runner.get("restore_ns") == 70_000


def test_other_slices_are_none_of_its_business(page, clock, holder):
    gate, runner = gate_of(page, clock, slices=0b0110)
    holder.hold(0b1001, 1, clock.now_ns)
    gate.check()
    assert runner.get("preemptions") == 0


def padding(page, slot, mask, known=1):
    base = (SLOTS_OFFSET + slot * SLOT_SIZE) // 8
    page.words[base + SLOT_FIELDS["beside"].offset // 8] = mask
    page.words[base + SLOT_FIELDS["padding_known"].offset // 8] = known


@pytest.mark.parametrize(
    ("default", "known", "mask", "models", "parks"),
    [
        (0, 0, 0, 0b1, True),
        (EVERY_SLOT, 0, 0, 0b1, False),
        (EVERY_SLOT, 1, 0, 0b1, True),
        (0, 1, 0b1, 0b1, False),
        (0, 1, 0b1, 0b11, True),
        (0, 0, 0b1, 0b1, True),
        (EVERY_SLOT, 0, 0, 0, True),
    ],
)
def test_the_controller_says_beside_whom_it_may_run(
    page, clock, holder, default, known, mask, models, parks
):
    gate, runner = gate_of(page, clock, slot=3, beside=default)
    padding(page, 3, mask, known)
    holder.hold(1, models, clock.now_ns)
    clock.at = {1: lambda: holder.hold(0, 0, clock.now_ns)}
    gate.check()
    assert runner.get("preemptions") == int(parks)


def beat(holder, clock):
    """Let the holder live and get on, whatever the time is."""

    def step():
        holder.heartbeat(clock.now_ns)
        holder.progress(clock.now_ns)
        clock.at[clock.slept + 1] = step

    clock.at[1] = step


def test_a_batch_that_stood_still_for_as_long_as_it_may_goes_on_to_its_end(page, clock, holder):
    gate, runner = gate_of(page, clock)
    beat(holder, clock)
    holder.hold(1, 1, clock.now_ns)
    gate.begin_batch()
    assert runner.get("parked_ns") == 1_000_000_000
    before = clock.slept
    for _ in range(5):
        gate.check()
    assert (clock.slept, runner.get("preemptions")) == (before, 1)
    gate.begin_batch()
    assert runner.get("preemptions") == 2


def test_times_of_one_batch_add_up_to_what_it_may_stand_still(page, clock, holder):
    gate, runner = gate_of(page, clock)
    page.words[HEADER_FIELDS["longest_park_us"].offset // 8] = 10_000
    gate.begin_batch()
    for _ in range(3):
        holder.hold(1, 1, clock.now_ns)
        clock.at = {clock.slept + 20: lambda: holder.hold(0, 0, clock.now_ns)}
        gate.check()
    assert runner.get("parked_ns") == 3 * 4_000_000 - 2_000_000
    holder.hold(1, 1, clock.now_ns)
    gate.check()
    assert runner.get("preemptions") == 3


def test_a_hold_without_progress_does_not_park_for_ever(page, clock, holder):
    gate, runner = gate_of(page, clock)
    page.words[HEADER_FIELDS["longest_park_us"].offset // 8] = 3_600_000_000
    page.words[HEADER_FIELDS["max_hold_us"].offset // 8] = 500_000
    holder.hold(1, 1, clock.now_ns)
    clock.at = {n: lambda: holder.heartbeat(clock.now_ns) for n in range(1, 5000, 100)}
    gate.check()
    assert 500_000_000 <= runner.get("parked_ns") < 502_000_000


def same(*args):
    """Of work that changes none of its arguments."""
    return lambda: args


def test_a_dropped_batch_begins_anew_with_what_it_was_given(page, clock, holder):
    gate, _ = gate_of(page, clock, may_drop=True)
    page.words[HEADER_FIELDS["memory_wanted"].offset // 8] = 1
    runs = []

    def work(rows):
        runs.append(list(rows))
        rows[0] /= 255  # a handler may normalise in place
        if len(runs) == 1:
            holder.hold(1, 1, clock.now_ns)
        gate.check()
        return rows

    def keep(rows):
        kept = list(rows)
        return lambda: (kept,)

    clock.at = {3: lambda: holder.hold(0, 0, clock.now_ns)}
    assert gate.guard(work, keep)([255.0]) == [1.0]
    assert runs == [[255.0]] * 2


def test_what_is_never_dropped_is_not_kept(page, clock):
    gate, _ = gate_of(page, clock)
    assert gate.guard(lambda x: x + 1, lambda x: pytest.fail("it was kept"))(1) == 2


def test_a_dropped_batch_begins_anew_when_the_hold_is_over(page, clock, holder):
    gate, runner = gate_of(page, clock, may_drop=True)
    wanted = HEADER_FIELDS["memory_wanted"].offset // 8
    runs = []

    def work(number):
        runs.append(number)
        if len(runs) == 1:
            holder.hold(1, 1, clock.now_ns)
            page.words[wanted] = 1
        gate.check()
        return number + 1

    clock.at = {3: lambda: holder.hold(0, 0, clock.now_ns)}
    assert gate.guard(work, same)(41) == 42
    assert runs == [41, 41]
    assert runner.get("drops") == 1
    assert clock.slept == 3  # standing still, with nothing in its hands, before it began anew


def test_what_may_not_be_dropped_stays(page, clock, holder):
    gate, runner = gate_of(page, clock)
    page.words[HEADER_FIELDS["memory_wanted"].offset // 8] = 1
    holder.hold(1, 1, clock.now_ns)
    clock.at = {4: lambda: holder.hold(0, 0, clock.now_ns)}
    gate.check()
    assert (runner.get("drops"), clock.slept) == (0, 4)


def test_a_drop_passes_handlers_that_catch_every_error(page, clock, holder):
    gate, _ = gate_of(page, clock, may_drop=True)
    page.words[HEADER_FIELDS["memory_wanted"].offset // 8] = 1
    tries = []

    def work():
        tries.append(clock.slept)
        if len(tries) == 1:
            holder.hold(1, 1, clock.now_ns)
        try:
            gate.check()
        except Exception:
            pytest.fail("it was swallowed")

    clock.at = {9: lambda: holder.hold(0, 0, clock.now_ns)}
    gate.guard(work, same)()
    assert tries == [0, 9]


def test_a_batch_is_dropped_once_at_most(page, clock, holder):
    gate, runner = gate_of(page, clock, may_drop=True)
    page.words[HEADER_FIELDS["memory_wanted"].offset // 8] = 1
    tries = []

    def work():
        tries.append(clock.slept)
        holder.hold(1, 1, clock.now_ns)
        clock.at = {clock.slept + 5: lambda: holder.hold(0, 0, clock.now_ns)}
        gate.check()
        return "done"

    assert gate.guard(work, same)() == "done"
    assert gate.guard(work, same)() == "done"
    assert (len(tries), runner.get("drops")) == (4, 2)


def test_each_step_of_a_generator_stands_still_and_none_begins_anew(page, clock, holder):
    gate, runner = gate_of(page, clock, may_drop=True)
    page.words[HEADER_FIELDS["memory_wanted"].offset // 8] = 1
    ended = []

    def work(count):
        try:
            for number in range(count):
                gate.check()
                yield number
        finally:
            ended.append(clock.slept)

    steps = gate.guard(work, same)(3)
    found = []
    for number in steps:
        found.append((number, clock.slept))
        holder.hold(1, 1, clock.now_ns)
        clock.at = {clock.slept + 5: lambda: holder.hold(0, 0, clock.now_ns)}
    assert found == [(0, 0), (1, 5), (2, 10)] and ended == [15]
    assert (runner.get("batches"), runner.get("preemptions"), runner.get("drops")) == (1, 3, 0)
    steps = gate.guard(work, same)(3)
    assert next(steps) == 0
    steps.close()
    assert len(ended) == 2


def test_a_generator_gives_way_however_long_it_runs(page, clock, holder):
    gate, runner = gate_of(page, clock)
    page.words[HEADER_FIELDS["longest_park_us"].offset // 8] = 1000
    steps = gate.guard(lambda: iter(range(100)), same)()
    next(steps)
    for count in range(1, 4):
        holder.hold(1, 1, clock.now_ns)  # for longer than it stands still
        next(steps)
        assert runner.get("preemptions") == count


class Alarm(BaseException):
    """What a handler's own time limit raises, wherever its thread is."""


def test_an_exception_while_it_stands_still_leaves_the_gate_as_it_was(page, clock, holder):
    gate, runner = gate_of(page, clock)

    def alarm():
        raise Alarm

    for times in (1, 2):
        holder.hold(1, 1, clock.now_ns)
        clock.at = {clock.slept + 3: alarm}
        with pytest.raises(Alarm):
            gate.begin_batch()
        assert runner.get("runner_state") == RunnerState.RUNNING
        assert runner.get("preemptions") == times
        assert runner.get("parked_ns") == times * 2 * 200_000
    clock.at = {clock.slept + 4: lambda: holder.hold(0, 0, clock.now_ns)}
    gate.begin_batch()
    assert runner.get("preemptions") == 3
    assert runner.get("runner_state") == RunnerState.RUNNING


def test_threads_that_stand_still_together_do_so_once(page, clock, holder):
    gate, runner = gate_of(page, clock)
    page.words[HEADER_FIELDS["longest_park_us"].offset // 8] = 10_000
    gate.begin_batch()
    holder.hold(1, 1, clock.now_ns)
    both, waits = threading.Barrier(2), []
    is_held = gate._is_held

    def looked(now_ns):
        found = is_held(now_ns)
        if len(waits) < 2:  # both have seen the hold before either has the lock
            waits.append(now_ns)
            both.wait(30)
        return found

    gate._is_held = looked
    clock.at = {40: lambda: holder.hold(0, 0, clock.now_ns)}
    threads = [threading.Thread(target=gate.check) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert clock.slept == 40
    assert (runner.get("preemptions"), runner.get("parked_ns")) == (1, 40 * 200_000)
    assert gate._parked_ns == 40 * 200_000


@pytest.mark.parametrize("slot", [-1, 0, 127])
def test_a_model_without_a_slot_has_its_own_default(page, clock, holder, slot):
    gate, runner = gate_of(page, clock, slot=slot, beside=0)
    holder.hold(1, 1, clock.now_ns)
    clock.at = {1: lambda: holder.hold(0, 0, clock.now_ns)}
    gate.check()
    assert runner.get("preemptions") == 1


def test_the_environment_says_where_it_stands():
    found = WorkerPlace.read({"SHUNTER_SLOT": "5", "SHUNTER_SLICES": hex(1 << 575 | 1)})
    assert found == WorkerPlace(5, 1 << 575 | 1)
    assert WorkerPlace.read({}) == WorkerPlace(-1, 0)
    with pytest.raises(ValueError, match="SHUNTER_SLICES='all'; allowed: a whole number"):
        WorkerPlace.read({"SHUNTER_SLICES": "all"})
    for text in ("-1", hex(1 << 576)):
        with pytest.raises(ValueError, match=f"SHUNTER_SLICES='{text}'; allowed: 0 to 0xff"):
            WorkerPlace.read({"SHUNTER_SLICES": text})


HOLDER = """
import os, sys, time
from pathlib import Path
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import claim
page = ControlPage.attach(Path(sys.argv[1]))
holder = claim(page, os.getpid(), time.monotonic_ns())
holder.hold(1, 1, time.monotonic_ns())
print("held", flush=True)
while True:
    holder.heartbeat(time.monotonic_ns())
    holder.progress(time.monotonic_ns())
    time.sleep(0.05)
"""


def test_a_killed_holder_parks_nobody(page, tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "control")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    runner = runners.claim(page, ME, time.monotonic_ns())
    page.words[HEADER_FIELDS["longest_park_us"].offset // 8] = 3_600_000_000
    gate = Gate(page, runner, WorkerPlace(0, 1), beside=0)
    killed = threading.Event()

    def passes():
        """On a busy host the holder may look dead for a while before it is killed."""
        while not killed.is_set():
            gate.check()

    parked = threading.Thread(target=passes)
    try:
        assert child.stdout.readline() == b"held\n"
        parked.start()
        while runner.get("runner_state") != RunnerState.PARKED:
            time.sleep(0.001)
        assert parked.is_alive()
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
        killed.set()
    parked.join(timeout=300)
    assert not parked.is_alive()
    assert runner.get("runner_state") == RunnerState.RUNNING


def test_random_holds_under_several_threads_never_leave_it_parked(page):
    runner = runners.claim(page, ME, time.monotonic_ns())
    gate = Gate(page, runner, WorkerPlace(0, 1), beside=0)
    holder = holds.claim(page, ME, time.monotonic_ns())
    choose = random.Random(6)
    done = threading.Event()
    passed = [0, 0]

    def work(number):
        while not done.is_set():
            gate.begin_batch()
            time.sleep(0)
            passed[number] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 300
    while runner.get("preemptions") < 300 and time.monotonic() < end:
        now = time.monotonic_ns()
        holder.hold(choose.randrange(3), choose.randrange(2), now)
        time.sleep(choose.random() * 0.001)
    holder.hold(0, 0, time.monotonic_ns())
    done.set()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads)
    assert runner.get("preemptions") >= 300
    assert min(passed) > 0
    assert runner.get("runner_state") == RunnerState.RUNNING


class Waiters:
    """Strict batches that come to the process of a gate, and run when they may pass."""

    def __init__(self, clock):
        self.clock, self.may, self.waiting, self.ran = clock, True, 0, 0
        self.gate = None

    def may_stand(self):
        return self.may

    def are_there(self):
        return self.waiting > 0

    def run_one(self):
        if not self.waiting:
            return False
        self.waiting -= 1
        self.ran += 1
        self.may = False  # as where a batch runs in which nobody stands still
        self.gate.check()
        self.may = True
        self.clock.now_ns += 3_000_000
        return True


def passed_gate(page, clock):
    runner, waiters = runners.claim(page, ME, clock.now_ns, first=5), Waiters(clock)
    waiters.gate = Gate(
        *(page, runner, WorkerPlace(0, 1)),
        beside=0,
        passers=waiters,
        clock=clock,
        sleep=clock.sleep,
    )
    return waiters.gate, runner, waiters


def test_strict_batches_of_its_process_pass_one_after_the_other_without_a_hold(page, clock):
    gate, runner, waiters = passed_gate(page, clock)
    gate.begin_batch()
    waiters.waiting = 3
    gate.check()
    assert (waiters.ran, waiters.waiting, clock.slept) == (3, 0, 0)
    assert (runner.get("preemptions"), runner.get("parked_ns")) == (1, 9_000_000)
    assert runner.get("runner_state") == RunnerState.RUNNING


def test_what_only_loads_stands_still_for_nobody(page, clock, holder):
    gate, runner, waiters = passed_gate(page, clock)
    holder.hold(1, 1, clock.now_ns)
    waiters.may, waiters.waiting = False, 1
    gate.begin_batch()
    assert (waiters.ran, runner.get("preemptions")) == (0, 0)


def test_a_batch_that_stood_still_for_long_goes_on_beside_those_that_wait(page, clock):
    gate, runner, waiters = passed_gate(page, clock)
    gate.begin_batch()
    waiters.waiting = 10_000
    gate.check()
    assert (waiters.ran, runner.get("parked_ns")) == (334, 334 * 3_000_000)
    gate.check()
    assert waiters.ran == 334
    gate.begin_batch()
    assert waiters.ran == 2 * 334


@pytest.mark.parametrize("seed", range(20))
def test_nobody_waits_behind_a_batch_that_goes_on(page, clock, holder, seed):
    chance = random.Random(seed)
    gate, runner, waiters = passed_gate(page, clock)
    for _ in range(40):
        gate.begin_batch()
        for _ in range(chance.randrange(4)):
            held, count = chance.random() < 0.4, chance.randrange(4)
            holder.hold(int(held), 1, clock.now_ns)
            waiters.waiting += count
            if held:
                clock.at = {clock.slept + chance.randrange(1, 9): lambda: holder.hold(0, 0, 0)}
            if chance.random() < 0.5:  # one that comes while it stands still
                clock.at[clock.slept + 2.5] = lambda: setattr(waiters, "waiting", 1)
            gate.check()
            clock.at = {}
            assert waiters.waiting == 0
            assert not gate.is_held()
            assert runner.get("runner_state") == RunnerState.RUNNING
    assert waiters.ran > 0
