"""Preemptible execution of any ``nn.Module``, without a change to the model.

A pass is cut in segments at calls of its modules: before such a call the thread looks at the gate
(:mod:`shunter.handlers.preemption.gate`) and stands still there, with everything that it has
computed, for as long as strict work wants the cores. So it goes on at the very segment; the
arithmetic is the same as without, bit by bit.

Which calls are boundaries is chosen by measured cost: the first passes with inputs of one size are
timed at every call, then only those remain that keep segments as long as wanted
(:mod:`shunter.batching.preemption.cutting`), for this size and smaller ones. Until then, and where
passes call different modules each time, every call is a boundary once the wanted time has passed.

A module that is compiled as a whole (TorchScript, ``torch.compile``) cannot stand still inside: the
bound is the time of one call of it, and is stated with the others' in the log and on the page.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from shunter.batching.page.runners import Runner
from shunter.batching.preemption.cutting import Cut, cut
from shunter.handlers.preemption.modules import (
    Replacement,
    batch_of,
    can_be_seen,
    inner_modules,
    restore,
    size_of,
)

logger = logging.getLogger("shunter.preemptible")
SEGMENT_MS = 1.0
"""Wanted time of a segment where the model says nothing else."""
PASSES = 4
"""Passes that are measured; of each call the shortest time counts, and the first pass does not."""
GROWTH = 1.5
"""Inputs whose sizes differ by less than this factor are measured together."""


def at_once() -> bool:
    """What is computed on the host is there at once."""
    return True


@dataclass
class _Pass:
    """What was seen of one pass of the model."""

    batch: int
    begin_ns: int
    begin_cpu_ns: int
    calls: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    """When each of them began, and when the pass ended, had it never stood still."""
    stood_ns: int = 0
    cpu_ns: int = 0


class Preemptible:
    """One model whose passes stand still at a gate."""

    def __init__(
        self,
        model: nn.Module,
        check: Callable[[], None],
        *,
        target_ns: int = int(SEGMENT_MS * 1e6),
        runner: Runner | None = None,
        catch_up: Callable[[], bool] = at_once,
        cpu_time_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        """Attach to ``model``; ``check`` is called wherever it can stand still.

        ``catch_up`` returns when what was computed so far is there, False where nothing is computed
        but only captured. ``cpu_time_ns`` tells how long processors have worked.
        """
        self._model, self._check, self._target_ns = model, check, target_ns
        self._runner, self._catch_up, self._cpu_time_ns = runner, catch_up, cpu_time_ns
        self._modules = list(inner_modules(model))
        self._wrapped: list[tuple[nn.Module, Callable[..., Any] | None]] = []
        self._thread = 0
        """Of the pass that is measured; 0: none is."""
        self._pass: _Pass | None = None
        self._checked_ns = 0
        self._passes: defaultdict[int, list[_Pass]] = defaultdict(list)
        """Measured ones, by step of size."""
        self._known: tuple[int, Cut | None] = -1, None
        """The cut of the largest inputs that were measured, and their step."""
        self.cut: Cut | None = None
        """How passes are cut; None while those of the last input's size are measured."""
        if can_be_seen(model):
            self._wrap(model, self._whole)
            self._time_calls()

    def detach(self) -> None:
        """Leave the model as it was."""
        for module, before in reversed(self._wrapped):
            restore(module, before)
        self._wrapped.clear()

    # ---- a pass

    def _whole(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._thread:  # the model calls itself, or another thread runs a pass
                return inner(*args, **kwargs)
            self._thread = threading.get_ident()
            try:
                arguments = (*args, *kwargs.values())
                # Sizes by steps: one rare large input must not keep the usual ones from being cut.
                step = int(math.log(size_of(arguments), GROWTH))
                self._begin(step, arguments)
                result = inner(*args, **kwargs)
                self._end(step)
                return result
            finally:
                self._pass, self._thread = None, 0

        return forward

    def _begin(self, step: int, arguments: tuple[Any, ...]) -> None:
        largest, known = self._known
        self._use(known if step <= largest else None)
        self._check()
        self._checked_ns = time.monotonic_ns()
        if self.cut is None:
            batch = batch_of(arguments)
            self._pass = _Pass(batch, self._checked_ns, self._cpu_time_ns())

    def _end(self, step: int) -> None:
        seen = self._pass
        if seen is None or not self._catch_up():
            return
        seen.times_ns.append(time.monotonic_ns() - seen.stood_ns)
        seen.cpu_ns = self._cpu_time_ns() - seen.begin_cpu_ns
        self._passes[step].append(seen)
        if len(self._passes[step]) == PASSES + 1:
            self._settle(step, self._passes.pop(step)[1:])

    # ---- measuring

    def _time_calls(self) -> None:
        """From now on every call is timed, and is a boundary."""
        for number, module in enumerate(self._modules):
            self._wrap(module, functools.partial(self._timed, number))

    def _timed(self, number: int, inner: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            seen = self._pass if threading.get_ident() == self._thread else None
            if seen is not None and not self._catch_up():
                seen = self._pass = None
            now_ns = time.monotonic_ns()
            if now_ns - self._checked_ns >= self._target_ns:
                self._check()
                self._checked_ns = time.monotonic_ns()
                if seen is not None:
                    seen.stood_ns += self._checked_ns - now_ns
            if seen is not None:
                seen.calls.append(number)
                seen.times_ns.append(time.monotonic_ns() - seen.stood_ns)
            return inner(*args, **kwargs)

        return forward

    def _settle(self, step: int, passes: list[_Pass]) -> None:
        """Enough passes are measured: keep the boundaries that are needed."""
        calls = passes[0].calls
        if any(each.calls != calls for each in passes):
            return  # another way each time: every call remains a boundary
        costs = [_costs(each) for each in passes]
        least = [min(of_call) for of_call in zip(*costs, strict=True)]
        found = cut(calls, least[1:], self._target_ns, least[0])
        self._known = step, found
        self._use(found)
        cpu_ns = min(each.cpu_ns for each in passes)
        report(self._model, found, self._runner, passes[-1].batch, sum(least), cpu_ns)

    # ---- other modules' forward

    def _use(self, found: Cut | None) -> None:
        """Cut from now on in this way; None: time every call."""
        if found is self.cut:
            return
        self.cut = found
        while len(self._wrapped) > 1:
            restore(*self._wrapped.pop())
        if found is None:
            self._time_calls()
            return
        for number, module in enumerate(self._modules):
            if number in found.boundaries:
                self._wrap(module, self._gated)

    def _gated(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        check = self._check

        def forward(*args: Any, **kwargs: Any) -> Any:
            check()
            return inner(*args, **kwargs)

        return forward

    def _wrap(
        self, module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        # Not a hook: layers with hooks leave torch's fused fast paths, and results would differ.
        inner = module.forward
        self._wrapped.append((module, module.__dict__.get("forward")))
        module.forward = Replacement(module, make(inner), inner)  # type: ignore[method-assign]


def report(
    model: nn.Module,
    found: Cut,
    runner: Runner | None,
    batch: int,
    solo_ns: int,
    cpu_ns: int,
) -> None:
    """Say in the log and on the page how passes of a model are cut, and what one takes alone."""
    logger.info(
        "Passes of %s (batch %d, %.1f ms) consist of %d parts between which they can stand "
        "still; the longest takes %.2f ms.",
        type(model).__name__,
        batch,
        solo_ns / 1e6,
        found.segments,
        found.longest_ns / 1e6,
    )
    if runner is None or solo_ns <= runner.get("solo_ns"):
        return  # of several models of a handler the largest counts
    words = {
        "segments": found.segments,
        "segment_ns": found.longest_ns,
        "solo_ns": solo_ns,
        "solo_cpu_ns": cpu_ns,
        "solo_batch": batch,
    }
    for name, value in words.items():
        runner.set(name, value)


def _costs(seen: _Pass) -> list[int]:
    """Time before the first call, then from each call to the next one or the end."""
    marks = [seen.begin_ns, *seen.times_ns]
    return [b - a for a, b in itertools.pairwise(marks)]
