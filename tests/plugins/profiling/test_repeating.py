"""Measuring workers whose times are invented: what is measured again, and what the file says.

The clock is theirs: how much is repeated depends on how long it took, and a busy host is slow.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from shunter.allocator.planning.measurement import Effort
from shunter.allocator.planning.profile import Profile, Provenance, Undecided
from shunter.handlers.sample import Sample
from shunter.plugins.host import WorkerFailed
from shunter.plugins.profiling import concurrent_workers, profiler
from shunter.plugins.profiling.concurrent_workers import NotTogether
from shunter.plugins.profiling.profiler import Task, begin, measure_all
from shunter.plugins.profiling.profiles import load_profile, write_profile

EFFORT = Effort(most=8, seconds=0.2)


class Invented:
    """Of 100 and 60 ms a request on one and two threads; the first ``slow`` visits take longer."""

    now = 0.0

    def __init__(self, slow=0, factor=1.8, breaks_at=1000):
        self.visits = []
        self._slow, self._factor, self._breaks_at = slow, factor, breaks_at
        self.closed = False

    def of(self, *threads):
        self.visits.append(threads)
        return [[Side(self, each)] for each in threads]

    def run(self, threads, batch):
        if len(self.visits) >= self._breaks_at:
            raise WorkerFailed("it is gone\nfor good")
        slow = self._factor if len(self.visits) <= self._slow else 1
        seconds = {1: 0.1, 2: 0.06}[threads] * len(batch) * slow
        Invented.now += seconds
        return seconds

    def close(self):
        self.closed = True


class Side:
    """A worker with so many threads."""

    peak_bytes = 1

    def __init__(self, invented, threads):
        self._invented, self._threads = invented, threads

    def run(self, batch):
        return self._invented.run(self._threads, batch)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    def now():
        return Invented.now

    for module in (profiler, concurrent_workers):
        clock = SimpleNamespace(monotonic=now, perf_counter=now)
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture
def measured(tmp_path):
    """Measures; returns the profile and what was reported."""

    def measured(workers, **options):
        origin = Provenance("a", "", "", 2, "", "")
        task = Task(Path("a.mar"), [], 2, 2, None, effort=Effort(**vars(EFFORT) | options))
        seen, path = [], tmp_path / "a.profile.json"
        empty = Profile(origin, 2, 2, "adaptive")
        found = measure_all(task, path, empty, [Sample(b"")], workers, seen.append)
        assert load_profile(path).cells == found.cells
        assert load_profile(path).undecided == found.undecided
        return found, seen

    return measured


def test_cells_are_measured_again_and_reported_as_such(measured):
    workers = Invented()
    profile, seen = measured(workers)
    pairs = [(each.next, each.beside) for each in seen if each.beside]
    met = Counter(key for pair in pairs for key in pair)
    assert pairs and len(pairs) == len(set(pairs))
    assert {key: cell.visits for key, cell in profile.cells.items()} == {
        key: 1 + met[key] for key in profile.cells
    }
    assert profile.undecided == ()
    assert profile.cells[2, 2].ms == pytest.approx(120, rel=0.05)
    assert len(workers.visits) == len(seen) - 1
    assert workers.closed


def test_what_a_disturbance_made_slow_is_put_right(measured):
    profile, _ = measured(Invented(slow=2))
    assert profile.cells[2, 1].ms == pytest.approx(60, rel=0.05)
    # Two instances of one thread take 100 ms: even at half of it this would be no better.
    assert (profile.cells[2, 2].ms, profile.cells[2, 2].visits) == (pytest.approx(216), 1)


def test_who_cannot_run_in_turns_is_visited_one_after_the_other(measured):
    class Apart(Invented):
        def of(self, *threads):
            if len(set(threads)) > 1:
                raise NotTogether
            return super().of(*threads)

    profile, seen = measured(Apart(slow=2))
    assert any(each.beside for each in seen)
    assert profile.cells[2, 1].ms == pytest.approx(60, rel=0.05)
    assert profile.undecided == ()


def test_with_one_visit_nothing_is_repeated(measured):
    profile, seen = measured(Invented(), visits=1)
    assert not any(each.beside for each in seen)
    assert {cell.visits for cell in profile.cells.values()} == {1}


def test_a_worker_that_fails_the_second_time_leaves_what_was_measured(measured):
    first, _ = measured(Invented(), visits=1)
    profile, _ = measured(Invented(breaks_at=len(first.cells) + 1))
    assert profile.complete
    assert profile.failed == {}
    assert profile.cells.keys() == first.cells.keys()
    assert {cell.visits for cell in profile.cells.values()} == {1}


def test_a_complete_profile_stays_so_while_cells_are_visited_again(tmp_path, measured):
    profile, _ = measured(Invented(), visits=1)
    assert {cell.visits for cell in profile.cells.values()} == {1}

    class Interrupted(Invented):
        def run(self, threads, batch):
            if len(self.visits) > 1:
                raise KeyboardInterrupt
            return super().run(threads, batch)

    path = tmp_path / "a.profile.json"
    task = Task(Path("a.mar"), [], 2, 2, None, effort=EFFORT, busy=lambda: 1.0)
    with pytest.raises(KeyboardInterrupt):
        measure_all(task, path, profile, [Sample(b"")], Interrupted(), lambda progress: None)
    kept = load_profile(path)
    assert kept.complete and kept.busy == profile.busy
    assert 2 in {cell.visits for cell in kept.cells.values()}


def test_what_could_not_be_settled_is_told_again_when_nothing_is_measured(tmp_path, measured):
    profile, _ = measured(Invented())
    told = (Undecided(2, "2x1x1", "1x2x2", 0.03, 0.08),)
    path, task = tmp_path / "a.profile.json", Task(Path("a.mar"), [], 2, 2, None, effort=EFFORT)
    write_profile(path, replace(profile, undecided=told))
    earlier = begin(task, path, profile.provenance)
    found = measure_all(task, path, earlier, [Sample(b"")], Invented(), lambda progress: None)
    assert found.undecided == load_profile(path).undecided == told
