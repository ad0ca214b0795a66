"""Loading a model behind everyone else, so that those who serve keep their latency.

Best is the scheduling class ``SCHED_IDLE``: the load gets what nobody wants. Coming back from it
needs a privilege (``CAP_SYS_NICE``, or ``ulimit -e`` of 20), so that is tried first, on a thread
that ends. Without the privilege the load is confined to one CPU, and all other CPUs of those who
serve stay undisturbed. That must wait until torch is imported: OpenMP takes the number of CPUs
that it finds then for good, and its threads never spin when they are more.

On a host that has nothing to spare ``SCHED_IDLE`` would take for ever; after ``PATIENCE_S`` the
load becomes an ordinary one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection

PATIENCE_S = 15.0


def begin(cpus: Collection[int], *, idle: bool) -> Callable[[], None]:
    """Step back from now on, by ``SCHED_IDLE`` or to one of ``cpus``. Returns what ends it."""
    # Started before stepping back, so that the timer itself is not held up.
    timer = threading.Timer(PATIENCE_S, _settle, (cpus, idle))
    timer.daemon = True
    timer.start()
    if idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.sched_setaffinity(0, {min(cpus)})

    def end() -> None:
        timer.cancel()
        _settle(cpus, idle)

    return end


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


def _settle(cpus: Collection[int], idle: bool) -> None:
    """Every thread of this process, and those they start meanwhile, back to the usual.

    A thread that a handler has placed itself stays there.
    """
    if not idle:
        move_threads({min(cpus)}, cpus)
        return

    def wake(thread: int) -> None:
        if os.sched_getscheduler(thread) == os.SCHED_IDLE:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))

    _each_thread(wake)


def move_threads(old: Collection[int], new: Collection[int]) -> None:
    """Move every thread of this process whose CPUs are exactly ``old`` to ``new``."""
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
