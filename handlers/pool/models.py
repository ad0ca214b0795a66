"""The models of one worker of a pool: all of them loaded, some of them hot, one at work.

Each has its service in a space of its own and its weights in the one cold copy of the server. Hot
weights are a cache over that; :mod:`shunter.allocator.memory.scheduling` says which ones come and
which leave. A batch runs at once, wherever its weights are: what has not come yet is read cold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from shunter.allocator.memory.scheduling import Run, Waiting
from shunter.handlers.pool.hot_cache import HotCache
from shunter.handlers.pool.order import ServedOrder
from shunter.handlers.pool.own_threads import OwnThreads
from shunter.handlers.pool.process_state import ProcessState
from shunter.handlers.pool.sharable import (
    GRAPHS,
    LoadedApart,
    NotSharable,
    load_apart,
    seen_changes,
)
from shunter.handlers.pool.space import ModelSpace, World
from shunter.handlers.weights.device_memory import Driver

Service = TypeVar("Service")


@dataclass
class _Pooled(Generic[Service]):
    space: ModelSpace
    service: Service


class PooledModels(Generic[Service]):
    """For the one thread of a worker that runs batches."""

    def __init__(
        self, folder: Path, budget: int, *, driver: Driver | None = None, swaps: int = 2
    ) -> None:
        """See :class:`HotCache`."""
        self._world = World()
        self.weights = HotCache(folder, budget, driver=driver, swaps=swaps)
        self._models: dict[str, _Pooled[Service]] = {}
        self.threads = OwnThreads()
        self._begun: list[Run] = []
        """The batch that is next, as the scheduler knows it."""
        self._order = ServedOrder(self.weights.rules.ageing_s)

    @property
    def usual(self) -> ProcessState:
        """What this process was before it had models."""
        return self._world.state

    @property
    def by_use(self) -> list[str]:
        """Models in hot memory, the one that was used last at the end."""
        held = self.weights.cache.held
        return sorted(held, key=lambda name: held[name].last_used)

    @property
    def used(self) -> tuple[int, int]:
        """Bytes of hot memory: those that are used, and those that there are."""
        return self.weights.cache.used, self.weights.cache.budget

    @property
    def hot(self) -> set[str]:
        """Models whose weights are in hot memory, or come there."""
        return set(self.weights.cache.held)

    def register(
        self,
        name: str,
        folder: Path,
        load: Callable[[], Service],
        modules_of: Callable[[Service], Sequence[nn.Module]],
        *,
        resident: bool = False,
        state: ProcessState | None = None,
    ) -> Service:
        """Load a model from the folder of its archive; ``modules_of`` says what it holds, ``state``
        what a process of its own would begin with.

        Raises NotSharable, DoesNotFit (a resident one), and what ``load`` does; the model is not
        there then.
        """
        if name in self._models:
            raise ValueError(f"{name} is registered already")
        space = ModelSpace(self._world, folder, state)
        loaded: LoadedApart[Service] = load_apart(space, load)
        if loaded.reasons:
            raise NotSharable(f"{name} needs workers of its own: {'; '.join(loaded.reasons)}")
        self.weights.register(name, modules_of(loaded.service), resident)
        self._models[name] = _Pooled(space, loaded.service)
        return loaded.service

    def unregister(self, name: str) -> None:
        """Forget a model between two batches; the host has its memory back then."""
        del self._models[name]
        self._order.forget(name)
        self.threads.found.pop(name, None)
        self._world.switch(None)
        self.weights.unregister(name)

    def expect(self, names: Sequence[str]) -> None:
        """Requests of these models wait, the next one first: their weights may come meanwhile."""
        now = time.monotonic()
        self.weights.act([Waiting(name, now, batches=0) for name in names if name in self.weights])

    def next_of(self, waiting: Sequence[Waiting]) -> str:
        """Which of these models' batches :meth:`run` is to be called for now.

        Strict before best effort, then who is hot, then the least recently served. The weights of
        others that wait begin to come. Where nobody can be hot now, the first runs cold.
        """
        now = time.monotonic()
        first = self._order.first(waiting, now)
        is_urgent = self._order.is_urgent(first, now)
        able = [
            each
            if self._order.is_urgent(each, now) == is_urgent
            else replace(each, batches=0)  # it may come meanwhile
            for each in waiting
        ]
        if first.name not in self.weights:  # it is as hot as it can be
            able = [replace(each, batches=0) for each in able]
        self._begun = self.weights.act(able)
        return self._begun[0].model if self._begun else first.name

    def skip(self) -> None:
        """What :meth:`next_of` has said is not run."""
        self.weights.ended(self._begun)
        self._begun = []

    def run(self, name: str, batch: Callable[[Service], Any], *, learn: bool = False) -> Any:
        """Let ``batch`` run with a model's service, in its space. ``learn``: see HotCache."""
        pooled = self._models[name]
        self._order.serve(name)
        if name not in self.weights:
            with pooled.space.staying(), self.threads.watched(name):
                return batch(pooled.service)
        begun, self._begun = self._begun, []
        runs = self.weights.bring(Waiting(name, time.monotonic()), begun)
        graphs = GRAPHS.captured
        try:
            with (
                pooled.space.staying(),
                self.threads.watched(name),
                GRAPHS.after(lambda: self.weights.finish(name)),
                self.weights.reading(name, learn=learn),
            ):
                return batch(pooled.service)
        finally:
            if GRAPHS.captured > graphs:
                self.weights.pin(name)
            self.weights.ended(runs)
            self.weights.collect()

    def inside(self, waiting: Sequence[Waiting], batch: Callable[[str, Service], Any]) -> Any:
        """Let ``batch`` run for one of these models while the batch of another stands still.

        That one keeps its place in hot memory, and finds its process as it has left it. Raises
        NoRoom where a device has less than it said; ``batch`` was not called then.
        """
        now = time.monotonic()
        name = self._order.first(waiting, now).name
        pooled = self._models[name]
        self._order.serve(name)
        with self.threads.aside(), self._world.standing_still():
            self.weights.come_beside(name, now)
            with (
                pooled.space.staying(),
                self.threads.watched(name),
                self.weights.reading(name),
            ):
                return batch(name, pooled.service)

    def try_out(self, name: str, batch: Callable[[Service], Any]) -> None:
        """:meth:`run` for first batches: what goes on beside a model often begins with them.

        Raises NotSharable; it stays registered.
        """

        def run(service: Service) -> tuple[str, ...]:
            with seen_changes(self._models[name].space) as reasons:
                batch(service)
            return tuple(reasons)

        if reasons := self.run(name, run, learn=True):
            raise NotSharable(f"{name} needs workers of its own: {'; '.join(reasons)}")

    def close(self) -> None:
        """Forget all models; the process is as it was without them."""
        for name in list(self._models):
            self.unregister(name)
        self.weights.close()
