"""Workers that run beside each other on a slice: who is timed against whom, and what is kept."""

import json
import threading
import time

import pytest

from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.planning.profile import Cell, Profile, ProfileError, Provenance, read_profile
from shunter.plugins.profiling.bandwidth import add_bandwidth
from shunter.plugins.profiling.profiler import Task
from shunter.plugins.profiling.profiles import load_profile, write_profile
from shunter.plugins.profiling.together import Subject, Together, learn

TWO = Topology(tuple(Cpu(id=i, physical=i, node=0) for i in range(2)))


class Slice:
    """Time on it passes faster or slower; nobody has to be fast."""

    def __init__(self):
        self.lock, self.running, self.most, self.started, self.closed = threading.Lock(), 0, 0, 0, 0

    def worker(self, fbr=0.0):
        return FakeWorker(self, fbr)


class FakeWorker:
    """It wants a share of the slice while it runs."""

    def __init__(self, on, fbr):
        self._on, self._fbr = on, fbr

    def start(self):
        self._on.started += 1
        return self

    def run(self, batch):
        with self._on.lock:
            self._on.running += self._fbr
            slowdown = max(1.0, self._on.running)
            self._on.most = max(self._on.most, self._on.running)
        time.sleep(0.001)
        with self._on.lock:
            self._on.running -= self._fbr
        return 0.001 * slowdown

    def close(self):
        self._on.closed += 1


def test_everybody_runs_at_once_and_all_are_closed():
    here = Slice()
    subjects = {
        name: Subject(lambda fbr=fbr: here.worker(fbr).start(), ["request"])
        for name, fbr in (("one", 0.25), ("two", 0.5))
    }
    together = Together(subjects, 0.05)
    found = together.observe(("one", "two", "two"))
    assert here.most == 1.25
    assert [(each.model, each.beside) for each in found] == [
        ("one", ("two", "two")),
        ("two", ("one", "two")),
        ("two", ("one", "two")),
    ]
    assert together.alone_ms == {"one": pytest.approx(1.0), "two": pytest.approx(1.0)}
    # A copy that was there is used again, also by the pair with another model.
    assert here.started == 3
    together.close()
    assert here.closed == 3


def test_learning_ends_and_says_what_it_did():
    here, told = Slice(), []
    together = Together({"m": Subject(lambda: here.worker(0.0).start(), ["request"])}, 0.02)
    observations, known = learn(together, 3, told.append)
    assert told == [("m", "m"), ("m", "m", "m")]
    assert len(observations) == 5
    assert known.at_most == {"m": pytest.approx(1 / 3)}


class FakeRuntime:
    """Its workers share one slice."""

    def __init__(self, fbr):
        self.here, self.fbr, self.cores = Slice(), fbr, []

    def unpack(self, archive, folder):
        class Model:
            name = "m"

        return Model()

    def worker(self, model, *, threads, cores, batch):
        self.cores.append(cores)
        return self.here.worker(self.fbr)


def profile():
    cell = Cell(1, 1, 1.0, 1.0, 1.0, 5)
    where = Provenance("m", "hash", "cpu", 2, "2.0", "sample")
    return Profile(where, 2, 1, "adaptive", {(1, 1): cell}, complete=True)


def test_what_copies_cost_each_other_is_kept_with_the_profile(tmp_path):
    path, runtime = tmp_path / "m.profile.json", FakeRuntime(0.0)
    write_profile(path, profile())
    task = Task(tmp_path / "m.mar", ["request"], 2, 1, runtime)
    add_bandwidth(task, path, TWO, seconds=0.02)
    assert load_profile(path).fbr == {1: 0.0}  # two threads have no second set
    assert sorted(runtime.cores) == [(0,), (1,)]
    assert runtime.here.closed == 2


@pytest.mark.parametrize("bad", [{"1": 2.0}, {"0": 0.5}, {"x": 0.5}, [1]])
def test_a_damaged_share_is_told(bad):
    content = json.loads(profile().to_json()) | {"fbr": bad}
    with pytest.raises(ProfileError, match="damaged"):
        read_profile(json.dumps(content))
