"""What a front end holds on the page of its server: real processes, which are also killed."""

import contextlib
import os
import signal
import time

import pytest

from shunter.batching.page import holds
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import HEADER_SIZE, HOLDER_COUNT, HOLDER_FIELDS, HOLDER_SIZE
from shunter.batching.page.processes import try_lock
from shunter.batching.page.slices import EVERY, read_slices
from shunter.nic_frontend.wire.layout import WireStatus

PLACE = {"slot": 3, "slices": 1 << 575 | 1 << 63 | 0b101}
SLICES = PLACE["slices"]
BEST_EFFORT = 2


class Held:
    """The page of a server that this process plays, with a front end and workers."""

    def __init__(self, nic, processes, folder):
        folder.mkdir(mode=0o700)
        self._lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        assert try_lock(self._lock, 0, 0)
        path, me = folder / "control", os.getpid()
        self.page = ControlPage.create(path, owner_pid=me, created_unix_ns=1, now_ns=1)
        self.site, self._until = nic.Site(processes, folder), nic.until

    def close(self):
        self.site.close()
        self.page.close()
        os.close(self._lock)

    def now(self):
        """What a runner would find, if it had no bound for holds without progress."""
        return holds.held(self.page, EVERY, time.monotonic_ns(), max_hold_ns=1 << 62)

    def until(self, mask):
        self._until(lambda: self.now() == mask, f"{mask:#x} is held")

    def words(self, name):
        """A word of every holder."""
        field = HOLDER_FIELDS[name].offset
        at = [(HEADER_SIZE + n * HOLDER_SIZE + field) // 8 for n in range(HOLDER_COUNT)]
        return [self.page.words[n] & (1 << 64) - 1 for n in at]

    @property
    def slices(self):
        """Of every holder."""
        at = (HEADER_SIZE + HOLDER_FIELDS["hold_slices"].offset) // 8
        lines = range(at, at + HOLDER_COUNT * HOLDER_SIZE // 8, HOLDER_SIZE // 8)
        return [read_slices(self.page.words, line) for line in lines]

    @property
    def since_ns(self):
        """When something was held last."""
        return max(self.words("hold_since_ns"))

    def serve(self):
        """Start a front end; its process has a line of the page then."""
        self.site.serve(server=True, run_s=0.1)
        self._until(lambda: self.site.front in self.words("holder_pid"), "it has a line")


@pytest.fixture
def held(nic, patient_processes, tmp_path):
    with contextlib.ExitStack() as stack:
        folder = tmp_path / f"shunter-{os.geteuid()}-{os.getpid()}"
        held = Held(nic, patient_processes, folder)
        stack.callback(held.close)
        held.serve()
        yield held


def test_its_slices_are_held_while_a_strict_request_runs(held, nic):
    held.site.worker(**PLACE)
    client = held.site.client()
    held.site.hold()
    client.ask(7)
    nic.until(held.site.ran, "it runs")
    held.until(SLICES)
    index = held.slices.index(SLICES)
    assert held.words("holder_pid")[index] == held.site.front
    assert held.words("hold_models")[index] == 1 << 3
    progress = held.words("hold_progress_ns")[index]
    assert held.since_ns <= progress <= time.monotonic_ns()
    held.site.go_on()
    assert client.answers(1) == {1: client.expected(7)}
    held.until(0)


def test_nothing_is_held_for_best_effort(held, nic):
    held.site.worker(**PLACE)
    client = held.site.client()
    held.site.hold()
    client.ask(7, priority=BEST_EFFORT)
    nic.until(held.site.ran, "it runs")
    held.site.look()  # whatever it says when a request begins, it has said
    assert held.now() == 0
    held.site.go_on()
    assert client.answers(1) == {1: client.expected(7)}
    assert held.since_ns == 0


def test_the_first_part_of_a_request_holds_but_not_for_long_if_no_more_comes(held, nic):
    puppet = held.site.puppet(**PLACE)
    client = held.site.client()
    client.segment(1, 0, priority=BEST_EFFORT)
    for seq in range(1, 4):  # who has not sent a whole request is not believed
        client.segment(1, seq, priority=BEST_EFFORT)
    assert puppet.batch() is not None
    puppet.done(WireStatus.OK)
    client.segment(2, 0)
    nic.until(lambda: held.since_ns, "its header holds")
    first = held.since_ns
    held.until(0)
    for seq in range(1, 4):
        client.segment(2, seq)
    held.until(SLICES)
    assert held.since_ns > first and puppet.batch() is not None
    puppet.done(WireStatus.OK)
    held.until(0)


def test_what_no_worker_could_run_holds_nothing_until_one_comes(held, nic):
    held.site.puppet().die()
    nic.until(lambda: held.site.function()["workers"] == [])
    again = held.site.puppet(**PLACE)
    client = held.site.client()
    again.die()
    nic.until(lambda: held.site.function()["workers"] == [])
    client.ask()
    nic.until(lambda: held.site.function()["waiting"] == 1)
    assert held.since_ns == 0
    puppet = held.site.puppet(**PLACE)
    held.until(SLICES)
    assert puppet.batch() is not None
    puppet.done(WireStatus.OK)
    held.until(0)


def test_the_slices_of_all_workers_are_held(held, nic):
    first = held.site.puppet(slot=3, slices=0b001)
    held.site.puppet(slot=3, slices=0b110)
    client = held.site.client()
    client.ask()
    held.until(0b111)
    first.die()  # it is not said that the request may run twice
    assert client.answers(1) == {1: WireStatus.WORKER_DIED}
    held.until(0)
    client.ask()
    held.until(0b110)


def test_a_front_end_that_is_killed_holds_nothing_and_the_next_one_does(held, nic):
    held.site.worker(**PLACE)
    held.site.hold()
    held.site.client().ask(7)
    held.until(SLICES)
    killed = held.site.front
    held.site.kill(killed)
    assert held.now() == 0
    assert SLICES in held.slices  # only because it is dead
    held.serve()
    nic.until(lambda: killed not in held.words("holder_pid"), "its line is taken over")
    held.site.go_on()  # the worker sees that it is alone
    nic.until(lambda: held.site.function() and held.site.function()["workers"])
    held.site.hold()
    held.site.client().ask(8)
    held.until(SLICES)
    held.site.go_on()
    held.until(0)


def test_a_worker_that_is_killed_holds_nothing(held, nic):
    worker = held.site.worker(**PLACE)
    client = held.site.client()
    held.site.hold()
    client.ask(7)
    nic.until(held.site.ran, "it runs")
    held.until(SLICES)
    held.site.kill(worker)
    held.until(0)
    assert client.answers(1) == {1: WireStatus.WORKER_DIED}
    assert max(held.slices) == 0


def test_at_its_end_it_gives_its_line_back(held):
    puppet = held.site.puppet(**PLACE)
    held.site.client().ask()
    assert puppet.batch() is not None
    puppet.leave()  # it would get no more, and never answers what it has
    held.until(SLICES)
    held.site.kill(held.site.front, signal.SIGTERM)
    assert held.site.front not in held.words("holder_pid")
    assert max(held.slices) == max(held.words("hold_models")) == 0
    lines = [holds.claim(held.page, os.getpid(), 1).index for _ in range(HOLDER_COUNT - 1)]
    assert len(set(lines)) == HOLDER_COUNT - 1
