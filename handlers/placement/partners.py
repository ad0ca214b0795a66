"""The two threads of a worker with two, each on a core of its own while the worker is replaced.

A pass runs on the thread that serves and on one of OpenMP's. They wait for each other after each
operator, and spin for milliseconds meanwhile. Where models that load fill their cores, at whatever
low priority, Linux wakes both on the same core and leaves them there for 0.1 to 0.5 s; each spins
for the slice that the other needs, and requests take ten times as long
(``bench/packrat_reconfigure.py``). At other times it costs 2 to 4 % of the throughput to bind them.
So they are bound while another process has claimed one of their cores, as those that follow do.

Which thread it is the kernel's clocks tell: the one that works when the serving one does. So it
holds for any OpenMP, and nothing is bound before they have worked. What the serving thread starts
while it is bound would inherit its core, and is let go within ``PERIOD_S``.

With more than two OpenMP ends threads and starts new ones as operators are small or large, on the
core of whoever starts them, so those stay as they are. ``SHUNTER_PARTNERS=0``, and variables that
bind OpenMP's threads, leave them too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from shunter.allocator.cpus.claims import CoreClaims
from shunter.handlers.placement.gentle import each_thread

VARIABLE = "SHUNTER_PARTNERS"
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
LOOK_S = 0.2
"""How often is asked who shares the cores, which takes about 12 us."""
PERIOD_S = 5.0
"""How often is asked who works."""
LEAST_S = 0.5
"""Processor time of a period that says who works together."""
ALIKE = 0.5
"""Of the serving thread's time, what its partner has at least; others have less."""


def partner_of(main: int, before: Mapping[int, float], now: Mapping[int, float]) -> int | None:
    """The one thread that worked as the main one did, by their processor times in s.

    >>> partner_of(1, {1: 0.0, 2: 0.0}, {1: 4.0, 2: 3.5, 3: 0.1})
    2
    """
    used = {thread: s - before.get(thread, s) for thread, s in now.items()}
    least = max(LEAST_S, ALIKE * used.get(main, 0.0))
    working = [thread for thread, s in used.items() if s >= least]
    if main not in working or len(working) != 2:
        return None
    return next(thread for thread in working if thread != main)


class Partners(threading.Thread):
    """Looks all the time; ends with the process."""

    def __init__(self, cores: Collection[int], main: int, is_shared: Callable[[], bool]) -> None:
        """``cores``: the two of this process; ``main``: the thread that serves; ``is_shared``:
        whether another process has one of the cores too."""
        super().__init__(name="partners", daemon=True)
        self._cores, self._main, self._is_shared = sorted(cores), main, is_shared
        self._times: dict[int, float] = {}
        self._partner: int | None = None
        self._is_bound = False
        self._as_they_were: set[int] = set()

    def run(self) -> None:
        learn_at = time.monotonic()
        while True:
            if (now := time.monotonic()) >= learn_at:
                self.learn()
                learn_at = now + PERIOD_S
            self.arrange()
            time.sleep(LOOK_S)

    def learn(self) -> None:
        """Who the partner is, and what came to the serving thread's core since it is bound."""
        before, self._times = self._times, _processor_times()
        if self._partner is not None and self._partner not in self._times:
            self._set_free()
            self._partner = None
        if self._is_bound:
            self._let_go(but={self._main, *self._as_they_were})
        elif (found := partner_of(self._main, before, self._times)) is not None:
            self._partner = found

    def arrange(self) -> None:
        """Bind the two while they share a core with others, and only then."""
        is_shared = self._is_shared()
        if self._is_bound and not is_shared:
            self._set_free()
        elif is_shared and not self._is_bound and self._may_be_bound():
            self._bind()

    def _may_be_bound(self) -> bool:
        """Who it is is known; its handler has placed neither, nor started it from Python."""
        if (partner := self._partner) is None:
            return False
        known = {each.native_id for each in threading.enumerate()} - {self._main}
        places = (_place_of(thread) for thread in (self._main, partner))
        return partner not in known and all(place == set(self._cores) for place in places)

    def _bind(self) -> None:
        assert self._partner is not None
        first, second = self._cores
        here: set[int] = set()
        each_thread(here.add)
        self._as_they_were = {thread for thread in here if _place_of(thread) == {first}}
        with suppress(OSError):  # it has ended, or the cpuset has changed
            os.sched_setaffinity(self._partner, {second})
            self._is_bound = True  # from here on there is something to undo
            os.sched_setaffinity(self._main, {first})

    def _set_free(self) -> None:
        if self._is_bound:
            self._is_bound = False
            self._let_go(but=self._as_they_were)
            assert self._partner is not None
            with suppress(OSError):  # it has ended
                if _place_of(self._partner) == {self._cores[1]}:
                    os.sched_setaffinity(self._partner, self._cores)

    def _let_go(self, but: Collection[int]) -> None:
        """The whole place for threads, of children too, that are on the first core only."""

        def let_go(thread: int) -> None:
            if thread not in but and _place_of(thread) == {self._cores[0]}:
                os.sched_setaffinity(thread, self._cores)

        each_thread(let_go)


def keep_apart(threads: int | None, claims: CoreClaims | None, environ: Mapping[str, str]) -> None:
    """Watch over the thread that calls this, which serves, and over the other one.

    ``claims``: what tells others that this process, which has loaded its model, has its CPUs.
    """
    own = os.sched_getaffinity(0)
    if (
        threads == 2
        and len(own) == 2
        and claims is not None
        and environ.get(VARIABLE, "1") != "0"
        and not any(environ.get(name) for name in BINDING_VARIABLES)
    ):

        def is_shared() -> bool:
            return any(claims.holders(cpu) for cpu in own)

        Partners(own, threading.get_native_id(), is_shared).start()


def _place_of(thread: int) -> set[int]:
    with suppress(OSError):
        return os.sched_getaffinity(thread)
    return set()


def _processor_times() -> dict[int, float]:
    """Of each thread of this process, in s."""
    import psutil  # of TorchServe's worker, which has imported it; not before a place is taken

    return {each.id: each.user_time + each.system_time for each in psutil.Process().threads()}
