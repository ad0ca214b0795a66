"""Loading gently, with real threads. Each test runs in a process of its own, whose place it is."""

import os
import subprocess
import sys

import pytest

from shunter.handlers.placement.gentle import can_return_from_idle, has_less

COMMON = """
import os, threading, time
from types import SimpleNamespace
from shunter.handlers.placement import gentle
from shunter.handlers.placement.placement import Place, read_placement

cpus = os.sched_getaffinity(0)
first = {min(cpus)}

class Thread:
    '''A thread that lives until it is let go; `place` runs in it.'''

    def __init__(self, place=lambda: None):
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(place,), daemon=True)
        self._thread.start()
        self._ready.wait()
        self.id = self._thread.native_id

    def _run(self, place):
        place()
        self._ready.set()
        self._end.wait()

def policies(*threads):
    return [os.sched_getscheduler(each.id if each else 0) for each in threads]

def places(*threads):
    return [os.sched_getaffinity(each.id if each else 0) for each in threads]

def shares(*threads):
    return [os.getpriority(os.PRIO_PROCESS, each.id if each else 0) for each in threads]

def starve(is_so=True):
    '''Whether the load has less than a small share, however busy this host is.'''
    gentle.has_less = lambda cpu_s, wall_s: is_so

def pin(cpus):
    return lambda: os.sched_setaffinity(0, cpus)

class Timer:
    '''Comes when a test says so, not when a busy host gets round to it.'''

    made = []

    def __init__(self, seconds, call, args):
        self.seconds, self._call, self._args = seconds, call, args
        self.made.append(self)

    def start(self):
        pass

    def cancel(self):
        pass

    def comes(self):
        self._call(*self._args)

def come_by_hand():
    gentle.threading = SimpleNamespace(Lock=threading.Lock, Thread=threading.Thread, Timer=Timer)
"""

needs_privilege = pytest.mark.skipif(
    not can_return_from_idle(), reason="needs CAP_SYS_NICE or a nice limit of 20"
)
needs_two_cpus = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to tell them apart"
)


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@needs_privilege
def test_a_load_takes_only_what_nobody_wants_and_all_its_threads_come_back():
    run("""
before = Thread()
end = gentle.begin(cpus, cpus)
during = Thread()
assert policies(None, during, before) == [os.SCHED_IDLE, os.SCHED_IDLE, os.SCHED_OTHER]
assert places(None, during) == [cpus, cpus]
end()
assert policies(None, during, before, Thread()) == [os.SCHED_OTHER] * 4
""")


@needs_privilege
def test_a_thread_whose_class_a_handler_has_set_keeps_it():
    run("""
end = gentle.begin(cpus, cpus)
own = Thread(lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
end()
assert policies(None, own) == [os.SCHED_OTHER, os.SCHED_BATCH]
""")


@needs_privilege
@needs_two_cpus
def test_what_nobody_wants_may_be_on_any_cpu_and_then_it_goes_where_it_belongs():
    run("""
os.sched_setaffinity(0, first)
end = gentle.begin(first, cpus)
during = Thread()
assert places(None, during) == [cpus, cpus]
end()
assert places(None, during, Thread()) == [first] * 3
assert policies(None, during) == [os.SCHED_OTHER] * 2
""")


@needs_privilege
@needs_two_cpus
def test_a_thread_that_a_handler_has_pinned_stays_there():
    run("""
last = {max(cpus)}
os.sched_setaffinity(0, first)
end = gentle.begin(first, cpus)
pinned = Thread(pin(last))
end()
assert places(None, pinned) == [first, last]
""")


@needs_privilege
@needs_two_cpus
def test_processes_that_a_handler_has_started_come_back_too():
    run("""
import subprocess
os.sched_setaffinity(0, first)
end = gentle.begin(first, cpus)
with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
    inner = []
    while not inner:
        inner = open(f"/proc/{shell.pid}/task/{shell.pid}/children").read().split()
    found = [shell.pid, int(inner[0])]
    assert [os.sched_getscheduler(pid) for pid in found] == [os.SCHED_IDLE] * 2
    end()
    assert [os.sched_getscheduler(pid) for pid in found] == [os.SCHED_OTHER] * 2
    assert [os.sched_getaffinity(pid) for pid in found] == [first] * 2
    for pid in found:
        os.kill(pid, 9)
""")


@needs_privilege
def test_a_thread_that_is_started_while_it_ends_comes_back_too():
    run("""
look, late = os.listdir, []

def listdir(path):
    found = look(path)
    if not late:
        late.append(Thread())  # not among those found, and still where the load is
    return found

end = gentle.begin(cpus, cpus)
os.listdir = listdir
end()
assert late and policies(None, *late) == [os.SCHED_OTHER] * 2
""")


@needs_privilege
def test_the_patience_of_a_load_is_limited():
    run("""
starve()
come_by_hand()
end = gentle.begin(cpus, cpus, 0.5)
during = Thread()
assert [each.seconds for each in Timer.made] == [0.5, 1, 1.5, 2]
assert (policies(None, during), shares(None, during)) == ([os.SCHED_IDLE] * 2, [0] * 2)
*looks, last = Timer.made
for look in looks:
    look.comes()
    assert policies(None, during) == [os.SCHED_OTHER] * 2
    assert shares(None, during) == [gentle.SMALL] * 2
last.comes()
assert (policies(None, during), shares(None, during)) == ([os.SCHED_OTHER] * 2, [0] * 2)
end()
assert policies(None, during) == [os.SCHED_OTHER] * 2
""")


@pytest.mark.parametrize(
    ("cpu_s", "wall_s", "less"), [(0, 15, True), (1.4, 15, True), (1.6, 15, False), (30, 15, False)]
)
def test_a_small_share_is_a_tenth_of_a_cpu(cpu_s, wall_s, less):
    assert has_less(cpu_s, wall_s) == less


@needs_privilege
def test_a_load_that_gets_more_than_a_small_share_of_what_nobody_wants_has_more_patience():
    run("""
starve(False)
come_by_hand()
end = gentle.begin(cpus, cpus, 0.2)
during = Thread()
*looks, last = Timer.made
for look in looks:
    look.comes()
    assert (policies(None, during), shares(None, during)) == ([os.SCHED_IDLE] * 2, [0] * 2)
last.comes()
assert (policies(None, during), shares(None, during)) == ([os.SCHED_OTHER] * 2, [0] * 2)
end()
""")


@needs_privilege
def test_a_small_share_is_not_more_when_it_is_looked_at_again():
    run("""
looks = []

def has_less(cpu_s, wall_s):
    looks.append(os.getpriority(os.PRIO_PROCESS, os.getpid()))  # not of the thread that looks
    return True

gentle.has_less = has_less
end = gentle.begin(cpus, cpus, 0.2)
while len(looks) < gentle.LONGEST - 1:
    time.sleep(0.01)
end()
assert looks == [0, gentle.SMALL, gentle.SMALL]
""")


@needs_privilege
def test_a_load_that_gets_nothing_later_on_takes_a_small_share_then():
    run("""
looks = iter([100, 103, 103.5]), iter([0, 15, 30])
gentle.time = SimpleNamespace(process_time=looks[0].__next__, monotonic=looks[1].__next__)
come_by_hand()
end = gentle.begin(cpus, cpus, 0.3)
for look, share in zip(Timer.made, (0, gentle.SMALL)):
    look.comes()
    assert shares(None) == [share]
end()
assert [next(each, None) for each in looks] == [None] * 2
""")


@needs_privilege
@pytest.mark.parametrize("begin", ["begin(cpus, cpus, 0.2)", "begin_idle(step_back, 0.2)"])
def test_a_load_that_ends_with_a_small_share_leaves_none(begin):
    run(f"""
def step_back():
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

starve()
come_by_hand()
before = policies(None)
end = gentle.{begin}
during = Thread()
Timer.made[0].comes()
assert shares(None, during) == [gentle.SMALL] * 2
end()
assert shares(None, during, Thread()) == [0] * 3
assert set(policies(None, during)) == {{os.SCHED_IDLE if "idle" in "{begin}" else os.SCHED_OTHER}}
""")


@needs_privilege
def test_a_share_that_a_handler_has_chosen_stays():
    run("""
starve()
come_by_hand()
end = gentle.begin(cpus, cpus, 0.2)
own = Thread(lambda: os.setpriority(os.PRIO_PROCESS, 0, 5))
Timer.made[0].comes()
assert (shares(None, own), policies(None, own)) == ([gentle.SMALL, 5], [os.SCHED_OTHER] * 2)
end()
assert shares(None, own) == [0, 5]
""")


@needs_privilege
def test_a_share_that_an_operator_has_chosen_stays():
    run("""
starve()
os.setpriority(os.PRIO_PROCESS, 0, gentle.SMALL)
end = gentle.begin(cpus, cpus, 0.2)
during = Thread()
while policies(None, during) != [os.SCHED_OTHER] * 2:
    time.sleep(0.01)
end()
assert shares(None, during) == [gentle.SMALL] * 2
""")


@needs_privilege
def test_who_was_started_with_a_small_share_has_the_whole_one_from_its_place_on():
    run("""
os.setpriority(os.PRIO_PROCESS, 0, gentle.SMALL)
environ = {"SHUNTER_GENTLE": "early"}
place = Place(read_placement(environ), environ)
timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
assert {os.sched_getscheduler(each.native_id) for each in timers} == {os.SCHED_OTHER}
assert len(timers) == gentle.LONGEST
assert {os.getpriority(os.PRIO_PROCESS, each.native_id) for each in timers} == {0}
assert shares(None) == [0]
assert policies(None) == [os.SCHED_IDLE]
place.settle()
assert (policies(None), shares(None)) == ([os.SCHED_OTHER], [0])
""")


@needs_privilege
def test_who_starts_beside_others_keeps_the_share_that_an_operator_has_chosen():
    run("""
os.setpriority(os.PRIO_PROCESS, 0, gentle.SMALL)
environ = {"SHUNTER_GENTLE": "1"}
Place(read_placement(environ), environ).settle()
assert (policies(None), shares(None)) == ([os.SCHED_OTHER], [gentle.SMALL])
""")


@needs_privilege
def test_a_handlers_share_that_is_as_small_as_that_of_a_long_load_stays():
    run("""
end = gentle.begin(cpus, cpus)
own = Thread(lambda: os.setpriority(os.PRIO_PROCESS, 0, gentle.SMALL))
while shares(own) != [gentle.SMALL]:
    time.sleep(0.01)
end()
assert shares(None, own) == [0, gentle.SMALL]
""")


@needs_privilege
def test_ending_leaves_no_timer_behind():
    run("""
end = gentle.begin(cpus, cpus)
end()
for thread in threading.enumerate():
    if isinstance(thread, threading.Timer):
        thread.join(10)
        assert not thread.is_alive()
end()
""")


def test_cpus_that_a_cpuset_has_taken_away_end_no_worker():
    run("""
import errno
tried = []

def refuse(thread, cpus):
    tried.append(thread)
    raise OSError(errno.EINVAL, "Invalid argument")

thread, real = Thread(), os.sched_setaffinity
os.sched_setaffinity = refuse
gentle.move_threads(cpus, first)
assert thread.id in tried and os.getpid() in tried
assert places(None, thread) == [cpus, cpus]
""")


def test_who_leaves_takes_only_what_nobody_wants_on_any_cpu():
    run("""
os.sched_setaffinity(0, first)
thread = Thread()
gentle.leave()
assert policies(None, thread) == [os.SCHED_IDLE] * 2
assert places(None, thread) == [cpus, cpus]
""")


def test_asking_for_the_privilege_leaves_the_asker_as_it_was():
    before = os.sched_getscheduler(0)
    can_return_from_idle()
    assert os.sched_getscheduler(0) == before
