"""Two threads that work together, each on a core. Tests of places run in a process of their own."""

import os
import subprocess
import sys

import pytest

from shunter.allocator.cpus.claims import CoreClaims
from shunter.handlers.placement import partners
from shunter.handlers.placement.partners import keep_apart, partner_of

MAIN = 1


@pytest.mark.parametrize(
    ("before", "now", "partner"),
    [
        ({1: 10, 2: 3}, {1: 14, 2: 6.5}, 2),
        ({1: 10, 2: 3, 3: 0}, {1: 14, 2: 6.5, 3: 1.9}, 2),  # less than half: somebody else's work
        ({1: 0, 2: 0}, {1: 0.5, 2: 0.5}, 2),
        ({1: 0, 2: 0}, {1: 0.4, 2: 0.4}, None),  # too little to tell
        ({1: 0, 2: 0}, {1: 4, 2: 1.9}, None),
        ({1: 0, 2: 0, 3: 0}, {1: 4, 2: 4, 3: 4}, None),  # more than two
        ({1: 0, 2: 0, 3: 0}, {1: 0.1, 2: 4, 3: 4}, None),  # the serving one has no part in it
        ({1: 0}, {1: 4, 2: 4}, None),  # it is new: how much of that was in this period?
        ({2: 0}, {1: 4, 2: 4}, None),
        ({1: 0, 2: 0}, {1: 4}, None),  # it has ended
        ({}, {}, None),
    ],
)
def test_a_partner_works_as_the_serving_thread_does(before, now, partner):
    assert partner_of(MAIN, before, now) == partner


@pytest.mark.parametrize(
    ("threads", "own", "environ", "watched"),
    [
        (2, {2, 3}, {}, True),
        (2, {2, 3}, {"SHUNTER_PARTNERS": "1"}, True),
        (2, {2, 3}, {"SHUNTER_PARTNERS": "0"}, False),
        (2, {2, 3}, {"OMP_PROC_BIND": "true"}, False),
        (2, {2, 3}, {"GOMP_CPU_AFFINITY": "2 3"}, False),
        (2, {3}, {}, False),
        (2, {1, 2, 3}, {}, False),
        (1, {2, 3}, {}, False),
        (3, {1, 2, 3}, {}, False),
        (None, {2, 3}, {}, False),
    ],
)
def test_two_threads_on_two_cores_of_their_own_are_watched(
    monkeypatch, tmp_path, threads, own, environ, watched
):
    begun = []

    def start(self):
        begun.append(self)

    monkeypatch.setattr(partners.Partners, "start", start)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: own)
    keep_apart(threads, CoreClaims(tmp_path / "claims"), environ)
    keep_apart(threads, None, environ)
    assert len(begun) == watched


COMMON = """
import _thread, os, subprocess, sys, threading
from shunter.allocator.cpus.claims import CoreClaims
from shunter.handlers.placement import partners
from shunter.handlers.placement.partners import Partners

both = set(sorted(os.sched_getaffinity(0))[:2])
first, second = ({each} for each in sorted(both))
os.sched_setaffinity(0, both)
me = threading.get_native_id()
times = {me: 0.0}
partners._processor_times = lambda: dict(times)
place = os.sched_getaffinity

def start(place=None):
    '''A thread that Python does not know, as OpenMP's: its id, and what ends it.'''
    ready, end, over, known = threading.Event(), threading.Event(), threading.Event(), []

    def run():
        if place:
            os.sched_setaffinity(0, place)
        known.append(_thread.get_native_id())
        ready.set()
        end.wait()
        over.set()

    _thread.start_new_thread(run, ())
    ready.wait()
    return known[0], end

def work(*threads, s=4.0):
    for each in threads:
        times[each] = times.get(each, 0.0) + s

shared = True
watch = Partners(both, me, lambda: shared)

def look():
    watch.learn()
    watch.arrange()

def start_partner():
    it, _ = start()
    times[it] = 0.0
    look()
    work(me, it)
    return it

"""

needs_two_cpus = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to tell them apart"
)


def run(code, **variables):
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_two_cpus
@pytest.mark.parametrize("cores", ["auto", "given"])
def test_a_worker_that_has_loaded_is_watched(tmp_path, cores):
    given = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    run(
        """
from shunter.handlers.placement import placement
seen = []
placement.keep_apart = lambda threads, claims, environ: seen.append((threads, claims.holders(0)))
place = placement.Place(placement.read_placement(os.environ), os.environ)
assert seen == []
place.settle()
assert seen == [(2, set())]
place._lacks_cores, place._claim = True, lambda: None  # others have them
place.settle()
assert len(seen) == 1
place._claim = lambda: tuple(both)  # and then no longer
place.settle()
assert len(seen) == 2
""",
        SHUNTER_THREADS="2",
        SHUNTER_CORES=given if cores == "given" else "auto",
        SHUNTER_CORE_CLAIMS=str(tmp_path / "claims"),
    )


@needs_two_cpus
def test_partners_get_a_core_each_when_they_have_worked():
    run("""
it, _ = start()
other, _ = start()
times.update({it: 0.0, other: 0.0})
look()
assert [place(each) for each in (me, it, other)] == [both, both, both]
work(me, it)
look()
assert [place(each) for each in (me, it, other)] == [first, second, both]
""")


@needs_two_cpus
def test_they_are_bound_only_while_they_share_a_core():
    run("""
shared = False
it = start_partner()
look()
assert [place(me), place(it)] == [both, both]
shared = True
watch.arrange()  # who it is has been learnt
assert [place(me), place(it)] == [first, second]
late, _ = start()
shared = False
watch.arrange()
assert [place(me), place(it), place(late)] == [both, both, both]
look()
assert [place(me), place(it)] == [both, both]
""")


HOLDING = """
import sys
from pathlib import Path
from shunter.allocator.cpus.claims import CoreClaims
claims = CoreClaims(Path(sys.argv[1]))
claims.hold([int(sys.argv[2])])
print("holds", flush=True)
input()
"""


@needs_two_cpus
def test_a_real_process_with_one_of_their_cores_and_its_death_are_noticed(tmp_path):
    run(f"""
import time
from pathlib import Path
from shunter.allocator.cpus.claims import CoreClaims

def until(*wanted):  # they are bound and freed one after the other
    deadline = time.monotonic() + 60
    while (place(me), place(it)) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)

path = Path({str(tmp_path / "claims")!r})
claims = CoreClaims(path)
claims.hold(both)
it, _ = start()
partners.partner_of = lambda main, before, now: it
partners.keep_apart(2, claims, {{}})
time.sleep(0.5)
assert place(me) == both
command = [sys.executable, "-c", {HOLDING!r}, str(path), str(max(both))]
other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert other.stdout.readline() == b"holds\\n"
times[it] = 0.0
until(first, second)
other.kill()
until(both, both)
""")


@needs_two_cpus
def test_what_the_serving_thread_starts_afterwards_gets_the_whole_place():
    run("""
pinned, _ = start(first)  # by its handler: stays
it = start_partner()
look()
late, _ = start()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
assert [place(each) for each in (late, child.pid)] == [first, first]
work(me, it)
look()
assert [place(each) for each in (me, it, pinned)] == [first, second, first]
assert [place(each) for each in (late, child.pid)] == [both, both]
child.communicate(b"\\n")
""")


@needs_two_cpus
def test_when_a_partner_has_ended_the_serving_thread_is_free_and_finds_another():
    run("""
it = start_partner()
look()
assert place(me) == first
del times[it]
next_one, _ = start()
times[next_one] = 0.0
look()
assert [place(each) for each in (me, next_one)] == [both, both]
work(me, next_one)
look()
assert [place(each) for each in (me, next_one)] == [first, second]
""")


@needs_two_cpus
@pytest.mark.parametrize(
    "case",
    [
        "python = threading.Thread(target=threading.Event().wait, daemon=True); python.start(); "
        "it = python.native_id",
        "it, _ = start(second)",
        "it, _ = start(); os.sched_setaffinity(0, second)",
    ],
    ids=["a thread of the handler's", "it has a place", "the serving one has a place"],
)
def test_what_a_handler_has_arranged_stays(case):
    run(f"""
{case}
before = place(me), place(it)
times[it] = 0.0
look()
work(me, it)
look()
assert (place(me), place(it)) == before
""")


@needs_two_cpus
def test_a_partner_that_ends_while_it_is_bound_does_no_harm():
    run("""
gone = 2**22 + 1  # no thread has this number
times[gone] = 0.0
partners._place_of = lambda thread: both if thread == gone else place(thread)
look()
work(me, gone)
look()
assert place(me) == both
""")


@needs_two_cpus
def test_a_serving_thread_that_cannot_be_bound_leaves_nobody_bound_in_the_end():
    run("""
it = start_partner()
set_place = os.sched_setaffinity

def refuse(thread, cpus):
    if thread == me and set(cpus) == first:
        raise OSError
    set_place(thread, cpus)

os.sched_setaffinity = refuse
look()
assert [place(me), place(it)] == [both, second]
shared = False
watch.arrange()
assert [place(me), place(it)] == [both, both]
""")


@needs_two_cpus
def test_torchs_own_two_threads_are_found_and_bound():
    run(
        """
import importlib, time
importlib.reload(partners)
import torch
torch.set_num_threads(2)
watch = partners.Partners(both, me, lambda: True)
a = torch.ones(600, 600)
deadline = time.monotonic() + 120
expected = a @ a
while place(me) == both and time.monotonic() < deadline:  # beside others it takes longer
    look()
    begin = time.thread_time()
    while time.thread_time() - begin < 2:
        assert torch.equal(a @ a, expected)
assert place(me) == first
assert [each for each in os.listdir("/proc/self/task") if place(int(each)) == second]
assert torch.equal(a @ a, expected)
""",
        OMP_NUM_THREADS="2",
        OMP_WAIT_POLICY="active",
    )
