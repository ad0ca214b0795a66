"""Profiling a handler that sleeps: what it costs is known, and no processor is needed for it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from shunter.allocator.cpus.cores import choose_cores
from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.planning.measurement import Effort
from shunter.handlers.sample import Sample
from shunter.model_store.pack import pack
from shunter.plugins.errors import UserError
from shunter.plugins.profiling import worker_cache
from shunter.plugins.profiling.concurrent_workers import NotTogether
from shunter.plugins.profiling.profiler import Task, run
from shunter.plugins.profiling.profiles import load_profile
from shunter.plugins.profiling.worker_cache import WorkerCache
from shunter.plugins.torchserve.runtime import TorchServeRuntime

pytest.importorskip("model_archiver")
pytestmark = pytest.mark.slow

HANDLER = """
import json
import os
import time

THREADS = int(os.environ["SHUNTER_THREADS"])
HANGS_AT = int(os.environ.get("SLEEPER_HANGS_AT", 1000))


def note(batch):
    with open(os.environ["SLEEPER_LOG"], "a") as log:
        print(json.dumps([THREADS, batch, os.getpid()]), file=log)


class Handler:
    def initialize(self, context):
        if HANGS_AT == 0:
            note(0)
            time.sleep(600)

    def handle(self, data, context):
        note(len(data))
        if len(data) >= int(os.environ.get("SLEEPER_DIES_AT", 1000)):
            os._exit(3)
        if len(data) >= HANGS_AT:
            time.sleep(600)
        time.sleep(0.003 + 0.008 * len(data) / THREADS)
        return ["done"] * len(data)
"""
RUNTIME = TorchServeRuntime()
ALL = read_topology()
# On a large host as many workers as cores would be started again and again.
HOST = ALL.only(choose_cores(ALL, 2) or [cpu.id for cpu in ALL.cpus])
QUICK = Effort(precision=0.5, most=6, seconds=0.3, visits=1)


def cost_ms(threads, batch):
    return 3 + 8 * batch / threads


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sleeper")
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text("shunter: {sample: sample.json}\n")
    (folder / "sample.json").write_text("{}")
    return pack(folder, folder / "store", name="sleeper")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sleeper.profile.json"


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    """What the handler has been asked: [threads, batch, pid]."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("SLEEPER_LOG", str(path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    before = set(psutil.Process().children())
    yield lambda: [json.loads(line) for line in path.read_text().splitlines()]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert set(psutil.Process().children()) <= before


def task(archive, **changes):
    """A quick one; with ``alone`` it takes half the workers."""
    defaults = {"samples": [], "threads": 2, "batch": 4, "exhaustive": True, "effort": QUICK}
    defaults["alone"] = True
    defaults["runtime"] = RUNTIME
    return Task(archive, **{**defaults, **changes})


def interrupting(after):
    """A report that is interrupted by Ctrl-C when so many cells are there."""

    def report(progress):
        if len(progress.profile.cells) == after:
            raise KeyboardInterrupt

    return report


def test_all_cells_are_measured_and_each_is_saved_at_once(archive, path):
    seen = []

    def report(progress):
        seen.append((progress.next, progress.left))
        if progress.profile.cells:
            assert load_profile(path).cells == progress.profile.cells

    profile = run(task(archive, alone=False), path, HOST, report)
    keys = [(t, b) for t in (1, 2) for b in (1, 2, 4)]
    assert [key for key, _ in seen] == [*keys, None]
    assert [left for _, left in seen] == [6, 5, 4, 3, 2, 1, 0]
    assert list(profile.cells) == keys
    assert load_profile(path) == profile
    assert profile.complete
    for (threads, batch), cell in profile.cells.items():
        assert cell.ms >= cost_ms(threads, batch)
        assert cell.low_ms <= cell.ms <= cell.high_ms
        assert cell.peak_bytes > 10_000_000
    assert profile.cells[1, 4].ms > profile.cells[1, 1].ms
    assert profile.cells[2, 4].ms < profile.cells[1, 4].ms


def test_a_smaller_range_throws_nothing_away(archive, path):
    first = run(task(archive), path, HOST)
    again = run(task(archive, threads=1, batch=2), path, HOST)
    assert again.cells == first.cells
    assert (again.threads, again.batch) == (2, 4)
    larger = run(task(archive, threads=1, batch=8), path, HOST)
    assert set(larger.cells) == {*first.cells, (1, 8), (2, 8)}


def test_a_larger_range_keeps_the_largest_batch_so_far(archive, path):
    first = run(task(archive, threads=1, batch=3), path, HOST)
    larger = run(task(archive, threads=1, batch=4), path, HOST)
    assert set(larger.cells) == {(1, 1), (1, 2), (1, 3), (1, 4)}
    assert first.cells.items() <= larger.cells.items()
    assert load_profile(path) == larger


def test_an_interrupted_run_is_continued_without_measuring_a_cell_again(archive, path, log):
    with pytest.raises(KeyboardInterrupt):
        run(task(archive, threads=1), path, HOST, interrupting(after=2))
    kept = load_profile(path)
    assert set(kept.cells) == {(1, 1), (1, 2)}
    assert not kept.complete

    asked = len(log())
    profile = run(task(archive, threads=1), path, HOST)
    ran = [batch for _, batch, _ in log()[asked:]]
    assert set(ran) == {4}
    assert {key: profile.cells[key] for key in kept.cells} == kept.cells
    assert set(profile.cells) == {(1, 1), (1, 2), (1, 4)}
    assert profile.seconds > kept.seconds

    # A finished one has nothing left to be measured, unless it is begun anew.
    asked = len(log())
    assert run(task(archive, threads=1), path, HOST).cells == profile.cells
    assert len(log()) == asked
    with pytest.raises(KeyboardInterrupt):
        run(task(archive, restart=True), path, HOST, interrupting(after=0))


def spoil(path, **provenance):
    content = json.loads(path.read_text())
    content["provenance"].update(provenance)
    path.write_text(json.dumps(content))


def test_a_profile_of_something_else_is_neither_continued_nor_harmed(archive, path, log):
    run(task(archive, threads=1, batch=1), path, HOST)
    asked, before = len(log()), path.read_text()
    for changes, said in [
        ({"torch": "0.1"}, "torch '0.1', here"),
        ({"model_hash": "0"}, "was measured with model '0', here"),
        ({"cpu": "Z80"}, "processor 'Z80', here"),
        ({"sample_hash": "0"}, "was measured with another request"),
    ]:
        path.write_text(before)
        spoil(path, **changes)
        spoiled = path.read_text()
        with pytest.raises(UserError, match=f"(?s){said}.*begin anew with --restart"):
            run(task(archive, threads=1, batch=1), path, HOST)
        assert path.read_text() == spoiled
    assert len(log()) == asked


@pytest.mark.parametrize(
    ("alone", "advice"),
    [
        (True, "measured with one at a time: give --alone"),
        (False, "measured with several at a time: leave out --alone"),
    ],
)
def test_alone_and_side_by_side_are_not_mixed(archive, path, log, alone, advice):
    first = run(task(archive, threads=1, batch=1, alone=alone), path, HOST)
    asked = len(log())
    with pytest.raises(UserError, match=f"{advice}, or begin anew with --restart"):
        run(task(archive, threads=1, batch=1, alone=not alone), path, HOST)
    assert len(log()) == asked
    assert load_profile(path) == first
    assert first.alone is alone
    assert run(task(archive, threads=1, batch=1, alone=alone), path, HOST).cells == first.cells


def test_a_batch_that_no_profile_may_have_is_refused_before_it_is_measured(archive, path, log):
    with pytest.raises(UserError, match="batch 4097; allowed: a whole number from 1 to 4096"):
        run(task(archive, batch=4097), path, HOST)
    assert log() == []


def test_what_else_uses_the_cpus_before_or_after_is_in_the_profile(archive, path):
    loads = iter([0.0, 1.5])
    profile = run(task(archive, batch=1, threads=1, busy=lambda: next(loads)), path, HOST)
    assert profile.busy == load_profile(path).busy == 1.5
    assert "something else used 1.5 CPUs" in profile.doubt
    # Nothing is left to measure, so the load of now says nothing; what was measured stays so.
    again = run(task(archive, batch=1, threads=1, busy=lambda: 9.0), path, HOST)
    assert again.busy == 1.5


def test_where_a_batch_fails_larger_ones_are_not_tried(archive, path, log, monkeypatch):
    monkeypatch.setenv("SLEEPER_DIES_AT", "3")
    profile = run(task(archive, batch=16, threads=1), path, HOST)
    assert set(profile.cells) == {(1, 1), (1, 2)}
    [(key, reason)] = profile.failed.items()
    assert key == (1, 4)
    assert reason.startswith("the worker ended with status 3")
    assert max(batch for _, batch, _ in log()) == 4
    assert load_profile(path).complete


def test_a_model_that_cannot_take_one_request_cannot_be_profiled(archive, path, monkeypatch):
    monkeypatch.setenv("SLEEPER_DIES_AT", "1")
    with pytest.raises(UserError, match="the worker ended with status 3"):
        run(task(archive), path, HOST)
    assert not path.exists()


def test_a_model_without_an_example_needs_an_input(tmp_path, path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/handler.py").write_text("def handle(data, context):\n    return data\n")
    plain = pack(tmp_path / "model", tmp_path / "store")
    with pytest.raises(UserError, match="model has no example of a request: give one with --input"):
        run(task(plain), path, HOST)


def test_an_archive_that_is_missing_is_named(tmp_path, path):
    with pytest.raises(UserError, match=r"missing\.mar cannot be read as a model archive"):
        run(task(tmp_path / "missing.mar"), path, HOST)


def test_a_batch_takes_the_given_requests_in_turn(archive, path):
    samples = [Sample(b"one"), Sample(b"two", "text/plain")]
    profile = run(task(archive, samples=samples, threads=1, batch=4), path, HOST)
    assert set(profile.cells) == {(1, 1), (1, 2), (1, 4)}
    with pytest.raises(UserError, match="another request"):
        run(task(archive, samples=samples[:1], threads=1, batch=4), path, HOST)


def open_workers(archive, tmp_path, **options):
    model = RUNTIME.unpack(archive, tmp_path / "unpacked")
    return WorkerCache(
        RUNTIME, model, HOST, **{"threads": 2, "batch": 4, "alone": False, **options}
    )


def test_workers_stay_open_until_one_is_dead_or_too_many_are(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_cache, "OPEN", 2)
    with contextlib.closing(open_workers(archive, tmp_path)) as found:
        one, two = found.of(1, 2)
        assert found.of(1) == [one]
        os.kill(two[0].pid, signal.SIGKILL)
        while not two[0].is_dead:
            time.sleep(0.01)
        (again,) = found.of(2)
        assert again is not two
        found.of(3)
        assert ([worker.is_dead for worker in one], again[0].is_dead) == ([True, True], False)


@pytest.mark.skipif(HOST.limited or HOST.cores < 2, reason="needs two cores of its own")
def test_as_many_are_measured_together_as_will_run_together(archive, tmp_path):
    with contextlib.closing(open_workers(archive, tmp_path)) as found:
        places = [psutil.Process(worker.pid).cpu_affinity() for worker in found.of(1)[0]]
        assert len(places) == 2 and set(places[0]).isdisjoint(places[1])
        assert len(found.of(2)[0]) == 1
    with contextlib.closing(open_workers(archive, tmp_path / "few", threads=1)) as found:
        assert len(found.of(1)[0]) == 2
    with contextlib.closing(open_workers(archive, tmp_path / "alone", alone=True)) as found:
        assert len(found.of(1)[0]) == 1


TWO_NODES = Topology(
    tuple(Cpu(i, physical=i // 2, node=0) for i in range(4))
    + tuple(Cpu(i, physical=i // 2, node=1) for i in range(4, 12))
)


@pytest.mark.parametrize(
    ("topology", "threads", "cpus"),
    [
        # Two cores and four, of two CPUs each.
        (TWO_NODES, 1, [0, 2]),
        (TWO_NODES, 3, [4, 6, 8, 10]),
        (TWO_NODES, 6, [4, 5, 6, 7, 8, 10]),
        (TWO_NODES, 9, []),
        (replace(TWO_NODES, quota=3.5), 3, [4, 6, 8]),
    ],
)
def test_instances_share_the_cores_of_one_node(topology, threads, cpus):
    assert [cpu.id for cpu in worker_cache._shared_node(topology, threads).cpus] == cpus


def test_no_more_are_opened_than_memory_holds(archive, tmp_path, monkeypatch):
    with contextlib.closing(open_workers(archive, tmp_path)) as found:
        ((fat,),) = found.of(2)
        # Room for one and a half of them.
        room = 1.5 / 0.8 * fat.peak_bytes
        monkeypatch.setattr(worker_cache, "available_bytes", lambda: room)
        assert len(found.of(1)[0]) == 1
        assert fat.is_dead
        room /= 3
        with pytest.raises(NotTogether):
            found.of(1, 2)
        one, other = found.of(2, 2)
        assert one is other


PROGRAM = """
import os
import sys
from pathlib import Path
from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.measurement import Effort
from shunter.plugins.hosts import runtime_of
from shunter.plugins.profiling.profiler import Task, run

effort = Effort(precision=0.5, most=6, seconds=0.3, visits=1)
limits = {"threads": 2, "batch": 2, "exhaustive": True, "effort": effort}
task = Task(Path(sys.argv[1]), [], runtime=runtime_of(), **limits)
try:
    run(task, Path(sys.argv[2]), read_topology(sorted(os.sched_getaffinity(0))[:2]))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("batch", "cells"),
    [pytest.param(2, {(1, 1)}, id="in a batch"), pytest.param(0, set(), id="while loading")],
)
def test_ctrl_c_leaves_the_cells_so_far_and_no_worker(archive, path, log, batch, cells):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(archive), str(path)],
        env={**os.environ, "SLEEPER_HANGS_AT": str(batch), "TMPDIR": str(path.parent / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        while not log() or log()[-1][1] != batch:
            assert program.poll() is None, program.stdout.read()
            time.sleep(0.02)
        workers = psutil.Process(program.pid).children()
        assert log()[-1][2] in {worker.pid for worker in workers}
        # What a terminal does: everybody in the foreground gets it.
        os.killpg(program.pid, signal.SIGINT)
        said, _ = program.communicate(timeout=300)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    assert said == "interrupted\n"
    assert not any(worker.is_running() for worker in workers)
    assert (set(load_profile(path).cells) if path.exists() else set()) == cells
