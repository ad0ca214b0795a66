"""Loading a model, and leaving, behind everyone else: those who serve keep their latency.

The scheduling class ``SCHED_IDLE`` gets what nobody wants, on whatever CPU that is. Coming back
from it needs a privilege (``CAP_SYS_NICE``, or ``ulimit -e`` of 20), so that is tried first, on a
thread that ends; without it a load is an ordinary one, on the worker's own cores. On a host that
has nothing to spare it would take for ever; if it had less than a small share for ``patience_s``
it gets one, and after ``LONGEST`` times that it is an ordinary one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, MutableMapping
from pathlib import Path

PATIENCE_S = 15.0
LONGEST = 4
"""Times the patience."""
SMALL = 10
"""Niceness of a small share."""
SMALL_CPUS = 0.1
"""What that is beside an ordinary process, in CPUs."""
GENTLE_VARIABLE = "SHUNTER_GENTLE"
EARLY = "early"
"""What it says in a process that was started with a small share."""


def usual_patience_s(startup_s: float) -> float:
    """Of a load that may take so long: half of that is left when it is an ordinary one.

    >>> [usual_patience_s(startup_s) for startup_s in (float("inf"), 120, 60, 0)]
    [15.0, 15.0, 7.5, 0.0]
    """
    return min(PATIENCE_S, startup_s / (2 * LONGEST))


def has_less(cpu_s: float, wall_s: float) -> bool:
    """Whether a process that ran for ``cpu_s`` has less than its small share would give it.

    >>> has_less(1.4, 15), has_less(1.6, 15)
    (True, False)
    """
    return cpu_s < SMALL_CPUS * wall_s


class _Behind:
    """A load behind the others: it takes what nobody wants, then a small share, then its own."""

    def __init__(self, patience_s: float, at_last: Callable[[], None]) -> None:
        """From now on the patience counts. ``at_last``: what makes it an ordinary one."""
        self._lock, self._over = threading.Lock(), False
        self._may_share = os.getpriority(os.PRIO_PROCESS, 0) == 0  # else an operator has chosen one
        self._shares = False
        # Of threads that are not behind, so that these are not held up.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        self._looked = time.process_time(), time.monotonic()
        steps: dict[float, Callable[[], None]] = {
            times * patience_s: self._share_if_it_has_less for times in range(1, LONGEST)
        }
        steps[LONGEST * patience_s] = lambda: self._take(at_last)
        self._timers = [threading.Timer(s, self._unless_over, [do]) for s, do in steps.items()]
        for each in self._timers:
            each.daemon = True
            each.start()

    def _unless_over(self, step: Callable[[], None]) -> None:
        with self._lock:
            if not self._over:
                step()

    def end(self, step: Callable[[], None]) -> None:
        """It is over with this step."""
        for each in self._timers:
            each.cancel()
        with self._lock:
            self._over = True
            self._take(step)

    def _share_if_it_has_less(self) -> None:
        before, self._looked = self._looked, (time.process_time(), time.monotonic())
        if has_less(self._looked[0] - before[0], self._looked[1] - before[1]):
            self._shares = self._may_share
            each_thread(_hurry)

    def _take(self, step: Callable[[], None]) -> None:
        if self._shares:
            each_thread(_take_share)
        step()


def end_early(environ: MutableMapping[str, str]) -> None:
    """The whole share again, for what follows."""
    if environ.get(GENTLE_VARIABLE) == EARLY:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        environ[GENTLE_VARIABLE] = "1"


def begin(
    cpus: Collection[int], near: Collection[int], patience_s: float = PATIENCE_S
) -> Callable[[], None]:
    """Take only what others leave, on ``near`` CPUs. Returns what ends it, on ``cpus``."""

    def wake() -> None:
        each_thread(_wake)
        move_threads(near, cpus)

    behind = _Behind(patience_s, wake)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # the cpuset has changed: it loads where it is
        os.sched_setaffinity(0, near)
    return lambda: behind.end(wake)


def begin_idle(step_back: Callable[[], None], patience_s: float = PATIENCE_S) -> Callable[[], None]:
    """Load best effort behind everyone else, but not for ever. Returns what ends the load.

    ``step_back`` puts this process in its class. A host that has nothing to spare for a while would
    let the load run into its time-out, so it loses patience as :func:`begin` does, until it is
    done. Where a process cannot come back, it stays behind.
    """
    if not can_return_from_idle():
        step_back()
        return lambda: None
    behind = _Behind(patience_s, lambda: each_thread(_wake))
    step_back()
    return lambda: behind.end(lambda: each_thread(_step_back))


def leave() -> None:
    """This process ends now: taking an interpreter with torch down costs a quarter of a second.

    That is too much for the worker that follows it on its cores.
    """
    anywhere = range(os.cpu_count() or 1)

    def step_aside(thread: int) -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(thread, anywhere)

    each_thread(step_aside)


def can_return_from_idle() -> bool:
    """Whether a thread of this process may leave ``SCHED_IDLE`` again."""
    found = []

    def attempt() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            return
        found.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return bool(found)


def _step_back(thread: int) -> None:
    """Behind the others, unless a handler has chosen another class."""
    if os.sched_getscheduler(thread) == os.SCHED_OTHER:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def _hurry(thread: int) -> None:
    """A small share, unless a handler has chosen a class, or a share."""
    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
        if os.getpriority(os.PRIO_PROCESS, thread) == 0:
            os.setpriority(os.PRIO_PROCESS, thread, SMALL)
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _wake(thread: int) -> None:
    """Back to the usual class, unless a handler has chosen another."""
    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _take_share(thread: int) -> None:
    """The whole share again."""
    if os.getpriority(os.PRIO_PROCESS, thread) == SMALL:
        os.setpriority(os.PRIO_PROCESS, thread, 0)


def move_threads(old: Collection[int], new: Collection[int]) -> None:
    """Move every thread, of children too, whose CPUs are exactly ``old`` to ``new``.

    A thread that a handler has placed itself stays there.
    """
    wanted = set(old)

    def move(thread: int) -> None:
        if os.sched_getaffinity(thread) == wanted:
            os.sched_setaffinity(thread, new)

    each_thread(move)


def each_thread(change: Callable[[int], None]) -> None:
    """For all threads of this process and of those it has started, which inherit their place.

    Also for those that start meanwhile; their parent may not have been changed yet.
    """
    done: set[int] = set()
    while new := set(_threads(os.getpid())) - done:
        for thread in new:
            # It ended meanwhile, is another user's, or its cpuset has none of those CPUs any more
            # (EINVAL): where it is then is the kernel's choice, and no reason not to serve.
            with contextlib.suppress(OSError):
                change(thread)
        done |= new


def _threads(pid: int) -> Iterator[int]:
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return
    for name in names:
        yield int(name)
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{name}/children").read_text().split():
                yield from _threads(int(child))
