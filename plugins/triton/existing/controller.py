"""The controller of one existing model: looks at Triton's statistics, writes the model's page, and
changes the number of its instances while it serves.

A thin loop. The latency of a batch is fitted as everywhere, by
:mod:`shunter.batching.forming.latency`, and the configuration is chosen as everywhere, by
:mod:`shunter.allocator.planning`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from shunter.allocator.planning.optimizer import NoConfiguration
from shunter.batching.forming.latency import LatencyFit
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError
from shunter.plugins.triton.existing.choice import Choices, Target
from shunter.plugins.triton.existing.page import StrategyPage
from shunter.plugins.triton.existing.statistics import Counters, Load, began_anew, between

LOGGER = logging.getLogger("shunter.existing")
WEIGHT = 8
"""So often a size counts at most, of whose batches only the mean is known."""
LONGEST_PAUSE = 6
"""After n failures in a row the next change waits for 2**n pauses, up to this n."""


class Model(Protocol):
    """What is asked of the server; :mod:`shunter.plugins.triton.existing.server` has it."""

    def counters(self) -> Counters: ...

    def present(self) -> tuple[int, int]: ...

    def change(self, instances: int, threads: int = 0) -> None: ...


@dataclass(frozen=True)
class Terms:
    """What the operator says."""

    request_class: int = 0
    slo_ms: float = 0.0
    apart: bool = True
    cap: int = 0
    """Fixed; 0: as the profile says, or as many as Triton takes."""


@dataclass
class Controller:
    """Looks at one model in each ``cycle``."""

    model: Model
    page: StrategyPage
    terms: Terms
    present: Target
    """What it has now; ``threads`` 0: its own business."""
    choices: Choices | None = None
    """None: there is no profile, and its instances stay as they are."""
    clock: Callable[[], int] = time.monotonic_ns
    pause_s: float = 30.0
    """After a change that failed, twice as long after each in a row."""
    changes: int = 0
    problem: str = ""
    load: Load | None = None
    """Of the last cycle."""
    fit: LatencyFit = field(default_factory=LatencyFit)
    _before: tuple[Counters, int] | None = None
    _changing: tuple[Target, Future[None]] | None = None
    """By a thread of its own: the page is renewed meanwhile."""
    _changer: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "shunter-change")
    )
    _is_gone: bool = False
    _is_known: bool = True
    """What it has now: a server that was started again has what its files say."""
    _refusals: int = 0
    _not_before_ns: int = 0

    def cycle(self) -> None:
        """Look once, and do what follows from it. What fails is told in ``problem``."""
        now_ns = self.clock()
        try:
            counters = self.model.counters()
        except HostError as error:
            self._complain(str(error))  # the page runs out by itself when this goes on
            self._is_gone, self._is_known = True, False
            return
        if self._is_gone:
            self._is_gone, self.problem = False, ""
        self.settle()
        before, self._before = self._before, (counters, now_ns)
        if before is not None and now_ns > before[1]:
            self.load = between(before[0], counters, (now_ns - before[1]) / 1e9)
            self._learn(self.load)
            self._is_known &= not began_anew(before[0], counters)
        may_follow = self._changing is None and (self._is_known or self._look_again())
        if may_follow and self.load is not None and self.choices is not None:
            self._follow(self.load, self.choices, now_ns)
        self._write()

    def _look_again(self) -> bool:
        """Whether it is known now what it has."""
        try:
            instances, threads = self.model.present()
        except HostError as error:
            self._complain(str(error))
            self._is_gone = True
            return False
        self.present = replace(self.present, instances=instances, threads=threads)
        self._is_known = True
        return True

    def _learn(self, load: Load) -> None:
        for size, (count, ns) in sorted(load.batches.items()):
            for _ in range(min(count, WEIGHT)):
                self.fit.observe(size, round(ns))

    def _write(self) -> None:
        known = self.fit.known
        self.page.write(
            **{"class": self.terms.request_class},
            cap=self.terms.cap or self.present.cap,
            apart=int(self.terms.apart),
            slo_ns=round(self.terms.slo_ms * 1e6),
            fixed_ns=max(0, round(self.fit.fixed_ns)) if known else 0,
            per_row_ns=max(0, round(self.fit.per_request_ns)) if known else 0,
            waited_ns=self.load.waited_ns if self.load else 0,
        )

    def _follow(self, load: Load, choices: Choices, now_ns: int) -> None:
        batch = choices.look(load.depth, now_ns)
        if batch is None or now_ns < self._not_before_ns:
            return
        try:
            target = choices.best(batch)
        except NoConfiguration as error:
            self._complain(str(error))
            return
        present = replace(self.present, threads=self.present.threads or target.threads)
        is_same = (target.instances, target.threads) == (present.instances, present.threads)
        if is_same:
            self.present = replace(self.present, cap=target.cap)
        elif choices.is_worth_it(present, target, batch):
            other = target.threads if target.threads != present.threads else 0
            self._changing = (
                target,
                self._changer.submit(self.model.change, target.instances, other),
            )

    def settle(self, timeout_s: float | None = None) -> None:
        """Take note of a change that is made, or wait for one that is under way."""
        if self._changing is None:
            return
        target, made = self._changing
        if timeout_s is None and not made.done():
            return
        try:
            made.result(timeout_s)
        except TimeoutError:
            return
        except UserError as error:
            self._refusals = min(self._refusals + 1, LONGEST_PAUSE)
            pause_s = self.pause_s * 2**self._refusals
            self._not_before_ns = self.clock() + round(pause_s * 1e9)
            self._complain(str(error))
        else:
            LOGGER.info("%s instead of %s", target, self.present)
            kept = target.threads if self.present.threads else 0
            self.present, self.problem = replace(target, threads=kept), ""
            self._refusals, self.changes = 0, self.changes + 1
        self._changing = None

    def close(self) -> None:
        """Wait for a change that is under way; the page is the caller's."""
        self._changer.shutdown()

    def _complain(self, text: str) -> None:
        if text != self.problem:
            self.problem = text
            LOGGER.warning("%s", text)
