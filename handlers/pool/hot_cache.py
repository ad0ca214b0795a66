"""Which models' weights are hot in one worker, with what the scheduler decides made to happen.

Hot weights are a cache over the one cold copy of the server;
:mod:`shunter.allocator.memory.scheduling` says which ones come and which leave.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from shunter.allocator.memory.devices import Device, Devices, DoesNotFit, Model
from shunter.allocator.memory.scheduling import ModelScheduler, Rules, Run, Swap, Waiting
from shunter.handlers.pool.sharable import NotSharable
from shunter.handlers.weights.device_memory import Driver
from shunter.handlers.weights.device_model import DeviceModel
from shunter.handlers.weights.hot import HotModel
from shunter.handlers.weights.hot_memory import CHUNK, NoRoom, chunks_of
from shunter.handlers.weights.places import Host, OnDevice, Place

logger = logging.getLogger("shunter.pool")
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


class HotCache:
    """For the thread that runs batches."""

    def __init__(
        self, folder: Path, budget: int, *, driver: Driver | None = None, swaps: int = 2
    ) -> None:
        """``folder``: of files of weights; ``budget``: bytes of hot memory, which is that of a
        device if there is a ``driver``: what is not there cannot run then."""
        self._copies = ThreadPoolExecutor(swaps, thread_name_prefix="swap")
        self._place: Place = (
            OnDevice(folder, budget, self._copies, driver)
            if driver
            else Host(folder, budget, self._copies)
        )
        self._device = Device(_DEVICE, budget // CHUNK * CHUNK, workers=1, bandwidth=_BANDWIDTH)
        self._scheduler = ModelScheduler(Devices([self._device]), Rules(swaps=swaps))
        self.rules = self._scheduler.rules
        self.cache = self._device.cache
        self._models: dict[str, HotModel | DeviceModel] = {}
        """Those whose weights come and go."""
        self._coming: dict[str, tuple[Swap, Future[float] | None]] = {}
        """Swaps that are on their way; None: one that could not begin."""
        self.counts = Counts()

    def __contains__(self, name: str) -> bool:
        """Whether the weights of a model come and go."""
        return name in self._models

    def register(self, name: str, modules: Sequence[nn.Module], resident: bool) -> None:
        """Let the weights of a model come and go, if it has any.

        Raises DoesNotFit (a resident one) and NotSharable; where weights lie has not changed then,
        or the model cannot be used any more.
        """
        try:
            hot = self._place.model(modules)
        except OSError as error:
            logger.warning("The weights of %s are its own: %s", name, error)
            return
        if hot is None:
            return
        size = chunks_of(hot.bytes) * CHUNK
        try:
            self._scheduler.devices.register(Model(name, size, resident))
        except DoesNotFit as error:
            if resident or not self._place.reads_cold:
                hot.close()
            if resident:
                raise
            if not self._place.reads_cold:
                raise NotSharable(str(error)) from error
            logger.warning("The weights of %s are read in the shared copy: %s", name, error)
            return
        self._models[name] = hot

    def unregister(self, name: str) -> None:
        """Forget a model between two batches; who else wants the memory has it then."""
        hot = self._models.pop(name, None)
        if hot is None:
            return
        hot.close()
        if name in self._coming:
            swap, _ = self._coming.pop(name)
            self._scheduler.swap_ended(swap, time.monotonic(), failed=True)
        self._scheduler.forget(name)
        self._place.trim()

    def act(self, waiting: Sequence[Waiting]) -> list[Run]:
        """Let happen what is decided; batches that begin."""
        self.collect()
        runs: list[Run] = []
        for each in self._scheduler.decide(waiting, time.monotonic()):
            if isinstance(each, Run):
                runs.append(each)
            else:
                self._begin(each)
        return runs

    def bring(self, waiting: Waiting, runs: Sequence[Run] = ()) -> list[Run]:
        """What begins for a model alone, or ``runs``; where nothing is read cold, not before its
        weights are on their way. Raises NoRoom there.
        """
        name, runs = waiting.name, list(runs) or self.act([waiting])
        while not self._place.reads_cold:
            has_failed = self._coming.get(name, (None, True))[1] is None
            if not has_failed and name in self.cache.held:
                return runs
            self.ended(runs)
            self.collect()
            # The device has less than it said, or those that could leave are still coming.
            if not (has_failed and self._make_room()):
                coming = [done for _, done in self._coming.values() if done is not None]
                if not coming:
                    raise NoRoom(f"there is no room for {name}: others use the device's memory")
                wait(coming, return_when=FIRST_COMPLETED)
            runs = self.act([waiting])
        return runs

    def _make_room(self) -> bool:
        """Who was used longest ago leaves, if anybody can."""
        held = self.cache.held
        able = [each for each in held if self.cache.may_leave(each)]
        if able:
            name = min(able, key=lambda each: held[each].last_used)
            self._models[name].drop()
            self.cache.forget(name)
            self.counts.evictions += 1
        return bool(able)

    def finish(self, name: str) -> None:
        """Returns when all weights of a model that is at work are there."""
        if isinstance(found := self._models.get(name), DeviceModel):
            found.finish()

    def pin(self, name: str) -> None:
        """The weights of a model stay where they are from now on: somebody knows where that is."""
        if name in self.cache.held:
            self.cache.pinned.add(name)

    def come_beside(self, name: str, now: float) -> None:
        """A batch of a model begins while another one stands still, which keeps its place."""
        if (held := self.cache.held.get(name)) is not None:
            held.last_used = now
        elif name in self._models:
            self.bring(Waiting(name, now, batches=0))  # in the host: for the next time

    def may_come_beside(self, name: str) -> bool:
        """Whether weights can be where they must be while another model stands still."""
        if self._place.reads_cold or name not in self._models or name in self.cache.held:
            return True
        held = self.cache.held
        stays = sum(held[each].bytes for each in held if not self.cache.may_leave(each))
        fits = self._scheduler.devices.models[name].bytes <= self.cache.budget - stays
        return fits and self._device.yields_to in (None, name)

    @contextmanager
    def reading(self, name: str, *, learn: bool = False) -> Iterator[None]:
        """Inside, a batch computes with a model's weights. ``learn``: it is like others, and how it
        uses them is to be seen."""
        hot = self._models.get(name)
        if hot is None:
            yield
            return
        with hot.reading(learn=learn) as is_hit:
            self.counts.hits += is_hit
            self.counts.misses += not is_hit
            yield

    def ended(self, runs: Sequence[Run]) -> None:
        """Batches that were begun."""
        for each in runs:
            self._scheduler.batch_ended(each)

    def _begin(self, swap: Swap) -> None:
        self.counts.evictions += len(swap.evict)
        for name in swap.evict:
            self._models[name].drop()
        try:
            self._coming[swap.model] = swap, self._models[swap.model].swap_in()
        except (NoRoom, OSError) as error:
            logger.warning("The weights of %s stay cold: %s", swap.model, error)
            self._coming[swap.model] = swap, None

    def collect(self) -> None:
        """Note which swaps have ended. One that failed is noted when no batch is behind it."""
        for name, (swap, done) in list(self._coming.items()):
            if done is not None and not done.done():
                continue
            error = NoRoom("it did not begin") if done is None else done.exception()
            if error is None and done is not None:
                del self._coming[name]
                self.counts.swap_s += done.result()
                self._scheduler.swap_ended(swap, time.monotonic(), done.result())
            elif not self.cache.held[name].running:
                del self._coming[name]
                self._models[name].drop()
                self._scheduler.swap_ended(swap, time.monotonic(), failed=True)

    def close(self) -> None:
        """Nobody is registered any more."""
        self._copies.shutdown()
        self._place.close()
