"""The models of one worker of a pool: all of them loaded, some of them hot, one at work.

Each has its service in a space of its own and its weights in the one cold copy of the server. Hot
weights are a cache over that; :mod:`shunter.allocator.memory.scheduling` says which ones come and
which leave. A batch runs at once, wherever its weights are: what has not come yet is read cold.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from shunter.allocator.memory.devices import Device, Devices, DoesNotFit, Model
from shunter.allocator.memory.scheduling import ModelScheduler, Rules, Run, Swap, Waiting
from shunter.handlers.pool.order import ServedOrder
from shunter.handlers.pool.own_threads import OwnThreads
from shunter.handlers.pool.process_state import ProcessState
from shunter.handlers.pool.sharable import LoadedApart, NotSharable, load_apart, seen_changes
from shunter.handlers.pool.space import ModelSpace, World
from shunter.handlers.weights.hot import HotModel
from shunter.handlers.weights.hot_memory import CHUNK, HotMemory, NoRoom, chunks_of
from shunter.handlers.weights.sharing import data_of, share

logger = logging.getLogger("shunter.pool")
Service = TypeVar("Service")
_DEVICE = "hot"
_BANDWIDTH = 4e9
"""Bytes per second of a copy, until one was measured."""


@dataclass
class Counts:
    """Since the process began."""

    hits: int = 0
    """Batches whose weights were all hot."""
    misses: int = 0
    swap_s: float = 0.0
    """That weights took to come."""
    evictions: int = 0


@dataclass
class _Pooled(Generic[Service]):
    space: ModelSpace
    service: Service
    hot: HotModel | None
    """None: it has no weights that could come and go, or they are larger than all hot memory."""


class PooledModels(Generic[Service]):
    """For the one thread of a worker that runs batches."""

    def __init__(self, folder: Path, budget: int, *, swaps: int = 2) -> None:
        """``folder``: of files of weights; ``budget``: bytes of hot memory."""
        self._world, self._folder = World(), folder
        self._memory = HotMemory(budget)
        self._copies = ThreadPoolExecutor(swaps, thread_name_prefix="swap")
        device = Device(_DEVICE, budget // CHUNK * CHUNK, workers=1, bandwidth=_BANDWIDTH)
        self._scheduler = ModelScheduler(Devices([device]), Rules(swaps=swaps))
        self._cache = device.cache
        self._models: dict[str, _Pooled[Service]] = {}
        self._coming: dict[str, tuple[Swap, Future[float] | None]] = {}
        """Swaps that are on their way; None: one that could not begin."""
        self.counts = Counts()
        self.threads = OwnThreads()
        self._begun: list[Run] = []
        """The batch that is next, as the scheduler knows it."""
        self._order = ServedOrder(self._scheduler.rules.ageing_s)

    @property
    def usual(self) -> ProcessState:
        """What this process was before it had models."""
        return self._world.state

    @property
    def by_use(self) -> list[str]:
        """Models in hot memory, the one that was used last at the end."""
        held = self._cache.held
        return sorted(held, key=lambda name: held[name].last_used)

    @property
    def used(self) -> tuple[int, int]:
        """Bytes of hot memory: those that are used, and those that there are."""
        return self._cache.used, self._cache.budget

    @property
    def hot(self) -> set[str]:
        """Models whose weights are in hot memory, or come there."""
        return set(self._cache.held)

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
        hot = self._cold(name, modules_of(loaded.service), resident)
        self._models[name] = _Pooled(space, loaded.service, hot)
        return loaded.service

    def _cold(self, name: str, modules: Sequence[nn.Module], resident: bool) -> HotModel | None:
        try:
            found = share(modules, self._folder)
        except OSError as error:
            logger.warning("The weights of %s are its own: %s", name, error)
            return None
        if found is None:
            return None
        hot = HotModel(
            found.weights, found.file.records, data_of(found.file), self._memory, self._copies
        )
        if not hot.bytes:  # a frozen graph
            return None
        size = chunks_of(hot.bytes) * CHUNK
        try:
            self._scheduler.devices.register(Model(name, size, resident))
        except DoesNotFit as error:
            if resident:
                raise
            logger.warning("The weights of %s are read in the shared copy: %s", name, error)
            return None
        return hot

    def unregister(self, name: str) -> None:
        """Forget a model between two batches; the host has its memory back then."""
        pooled = self._models.pop(name)
        self._order.forget(name)
        self.threads.found.pop(name, None)
        self._world.switch(None)
        if pooled.hot is not None:
            pooled.hot.drop()
            if name in self._coming:
                swap, _ = self._coming.pop(name)
                self._scheduler.swap_ended(swap, time.monotonic(), failed=True)
            self._scheduler.forget(name)
            self._memory.trim()

    def expect(self, names: Sequence[str]) -> None:
        """Requests of these models wait, the next one first: their weights may come meanwhile."""
        now = time.monotonic()
        self._act([Waiting(name, now, batches=0) for name in names if self._is_cached(name)])

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
        if not self._is_cached(first.name):  # it is as hot as it can be
            able = [replace(each, batches=0) for each in able]
        self._begun = self._act(able)
        return self._begun[0].model if self._begun else first.name

    def skip(self) -> None:
        """What :meth:`next_of` has said is not run."""
        for each in self._begun:
            self._scheduler.batch_ended(each)
        self._begun = []

    def run(self, name: str, batch: Callable[[Service], Any]) -> Any:
        """Let ``batch`` run with a model's service, in its space."""
        pooled = self._models[name]
        self._order.serve(name)
        if pooled.hot is None:
            with pooled.space.staying(), self.threads.watched(name):
                return batch(pooled.service)
        runs, self._begun = self._begun or self._act([Waiting(name, time.monotonic())]), []
        try:
            self._settle(pooled.hot)
            with pooled.space.staying(), self.threads.watched(name):
                return batch(pooled.service)
        finally:
            for each in runs:
                self._scheduler.batch_ended(each)
            self._collect()

    def inside(self, waiting: Sequence[Waiting], batch: Callable[[str, Service], Any]) -> Any:
        """Let ``batch`` run for one of these models while the batch of another stands still.

        That one keeps its place in hot memory, and finds its process as it has left it.
        """
        now = time.monotonic()
        name = self._order.first(waiting, now).name
        pooled = self._models[name]
        self._order.serve(name)
        with self.threads.aside(), self._world.standing_still():
            self._come_inside(name, now)
            with pooled.space.staying(), self.threads.watched(name):
                return batch(name, pooled.service)

    def _come_inside(self, name: str, now: float) -> None:
        hot = self._models[name].hot
        if (held := self._cache.held.get(name)) is not None:
            held.last_used = now
        elif hot is not None:
            self._act([Waiting(name, now, batches=0)])  # for the next time
        if hot is not None:
            self._settle(hot)

    def _settle(self, hot: HotModel) -> None:
        is_hit = hot.settle()
        self.counts.hits += is_hit
        self.counts.misses += not is_hit

    def try_out(self, name: str, batch: Callable[[Service], Any]) -> None:
        """:meth:`run` for first batches: what goes on beside a model often begins with them.

        Raises NotSharable; it stays registered.
        """

        def run(service: Service) -> tuple[str, ...]:
            with seen_changes(self._models[name].space) as reasons:
                batch(service)
            return tuple(reasons)

        if reasons := self.run(name, run):
            raise NotSharable(f"{name} needs workers of its own: {'; '.join(reasons)}")

    def _is_cached(self, name: str) -> bool:
        found = self._models.get(name)
        return found is not None and found.hot is not None

    def _act(self, waiting: Sequence[Waiting]) -> list[Run]:
        """Let happen what is decided; batches that begin."""
        self._collect()
        runs: list[Run] = []
        for each in self._scheduler.decide(waiting, time.monotonic()):
            if isinstance(each, Run):
                runs.append(each)
            else:
                self._begin(each)
        return runs

    def _begin(self, swap: Swap) -> None:
        self.counts.evictions += len(swap.evict)
        for name in swap.evict:
            self._hot_of(name).drop()
        try:
            self._coming[swap.model] = swap, self._hot_of(swap.model).swap_in()
        except (NoRoom, OSError) as error:
            logger.warning("The weights of %s stay cold: %s", swap.model, error)
            self._coming[swap.model] = swap, None

    def _collect(self) -> None:
        """Note which swaps have ended. One that failed is noted when no batch is behind it."""
        for name, (swap, done) in list(self._coming.items()):
            if done is None:
                if not self._cache.held[name].running:
                    del self._coming[name]
                    self._scheduler.swap_ended(swap, time.monotonic(), failed=True)
            elif done.done():
                del self._coming[name]
                seconds = done.result()
                self.counts.swap_s += seconds
                self._scheduler.swap_ended(swap, time.monotonic(), seconds)

    def _hot_of(self, name: str) -> HotModel:
        found = self._models[name].hot
        assert found is not None, "only what has weights is registered with the scheduler"
        return found

    def close(self) -> None:
        """Forget all models; the process is as it was without them."""
        for name in list(self._models):
            self.unregister(name)
        self._copies.shutdown()
        self._memory.close()
