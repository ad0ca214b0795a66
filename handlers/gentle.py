"""Loading a model, and leaving, behind everyone else: those who serve keep their latency.

Best is the scheduling class ``SCHED_IDLE``: the load gets what nobody wants, on whatever CPU that
is. Coming back from it needs a privilege (``CAP_SYS_NICE``, or ``ulimit -e`` of 20), so that is
tried first, on a thread that ends. Without the privilege the load is confined to one CPU, and all
other CPUs of those who serve stay undisturbed. That must wait until torch is imported: OpenMP takes
the number of CPUs that it finds then for good, and its threads never spin when they are more.

On a host that has nothing to spare ``SCHED_IDLE`` would take for ever; after ``PATIENCE_S`` the
load becomes an ordinary one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection

PATIENCE_S = 15.0


def begin_idle(cpus: Collection[int], near: Collection[int]) -> Callable[[], None]:
    """Take only what others leave, on ``near`` CPUs. Returns what ends it, on ``cpus``."""

    def end() -> None:
        _each_thread(_wake)
        move_threads(near, cpus)

    cancel = _after_patience(end)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, near)
    return cancel


def begin_confined(cpus: Collection[int]) -> Callable[[], None]:
    """Run on one of ``cpus``. Returns what ends it."""
    one = {min(cpus)}
    cancel = _after_patience(lambda: move_threads(one, cpus))
    os.sched_setaffinity(0, one)
    return cancel


def _after_patience(end: Callable[[], None]) -> Callable[[], None]:
    """Call ``end`` when patience is over, or when the returned function is called."""
    # Started before stepping back, so that the timer itself is not held up.
    timer = threading.Timer(PATIENCE_S, end)
    timer.daemon = True
    timer.start()

    def end_now() -> None:
        timer.cancel()
        end()

    return end_now


def leave() -> None:
    """This process ends now: taking an interpreter with torch down costs a quarter of a second.

    That is too much for the worker that follows it on its cores.
    """
    anywhere = range(os.cpu_count() or 1)

    def step_aside(thread: int) -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(thread, anywhere)

    _each_thread(step_aside)


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


def _wake(thread: int) -> None:
    """Back to the usual class, unless a handler has chosen another."""
    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def move_threads(old: Collection[int], new: Collection[int]) -> None:
    """Move every thread of this process whose CPUs are exactly ``old`` to ``new``.

    A thread that a handler has placed itself stays there.
    """
    wanted = set(old)

    def move(thread: int) -> None:
        if os.sched_getaffinity(thread) == wanted:
            os.sched_setaffinity(thread, new)

    _each_thread(move)


def _each_thread(change: Callable[[int], None]) -> None:
    """Also those that start meanwhile; their parent may not have been changed yet."""
    done: set[int] = set()
    while new := {int(name) for name in os.listdir("/proc/self/task")} - done:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                change(thread)
        done |= new
