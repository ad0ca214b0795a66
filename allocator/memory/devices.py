"""Several devices as one larger cache: their models, workers, and speed of copies. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shunter.allocator.memory.cache import CacheError, DeviceCache, Heat

_NEWS = 0.2
"""Weight of a measured swap in the bandwidth that the next ones are predicted by."""


class DoesNotFit(ValueError):
    """A model for which there is no room even when all that may leave has left."""


@dataclass(frozen=True)
class Model:
    """A registered model."""

    name: str
    bytes: int
    resident: bool = False
    """It is brought in once and never leaves."""


class Device:
    """A device with its cache and its workers."""

    def __init__(self, name: str, budget: int, *, workers: int, bandwidth: float) -> None:
        """``workers`` run one batch each; ``bandwidth``: bytes per second of a copy into it."""
        if workers < 1 or not bandwidth > 0:
            raise ValueError(f"{name}: {workers} workers, {bandwidth} bytes per second")
        self.name, self.workers, self.bandwidth = name, workers, bandwidth
        self.cache = DeviceCache(budget)
        self.running = 0
        """Batches, each on a worker."""
        self.yields: frozenset[str] = frozenset()
        """Models that begin nothing here any more, so that they can leave."""
        self.yields_to: str | None = None
        """For whom."""

    @property
    def idle(self) -> int:
        """Workers without a batch."""
        return self.workers - self.running

    def swap_s(self, size: int) -> float:
        """Predicted seconds until so many bytes are here; swaps share the way."""
        return size * (self.cache.coming + 1) / self.bandwidth

    def measured(self, size: int, seconds: float) -> None:
        """A swap took so long."""
        if seconds > 0 and size > 0:
            self.bandwidth += _NEWS * (size / seconds - self.bandwidth)

    def may_run(self, name: str, heat: Heat) -> bool:
        """Whether an idle worker may begin a batch of a model that is held so."""
        return self.idle > 0 and self.cache.heat(name) is heat and name not in self.yields

    def stop_yielding(self) -> None:
        """What was to leave may begin again."""
        self.yields, self.yields_to = frozenset(), None


class Devices:
    """All devices, and the models that are registered for them."""

    def __init__(self, devices: Collection[Device]) -> None:
        """With at least one device; names are different."""
        self.by_name = {each.name: each for each in devices}
        if not self.by_name or len(self.by_name) != len(devices):
            raise ValueError("devices need different names, and there must be one")
        self.models: dict[str, Model] = {}

    def register(self, model: Model) -> None:
        """Take a model in. Raises DoesNotFit, and CacheError when there is one of that name."""
        if model.name in self.models:
            raise CacheError(f"{model.name} is registered already")
        if model.bytes < 1:
            raise ValueError(f"{model.name} has {model.bytes} bytes")
        with_it = {**self.models, model.name: model}
        homes = self._homes(with_it)
        self.models = with_it
        for name, device in homes.items():
            device.cache.pinned.add(name)

    def unregister(self, name: str) -> None:
        """Forget a model. Raises CacheError while it is at work or coming; nothing changes then."""
        caches = [each.cache for each in self.by_name.values()]
        for cache in caches:
            found = cache.held.get(name)
            if found is not None and (found.running or found.heat is Heat.COMING):
                raise CacheError(f"{name} is at work or coming")
        for cache in caches:
            cache.forget(name)
        for device in self.by_name.values():
            if device.yields_to == name:
                device.stop_yielding()
        self.models.pop(name, None)

    def _homes(self, models: Mapping[str, Model]) -> dict[str, Device]:
        """Where each resident model stays; raises DoesNotFit where something cannot be served.

        A resident model that has its place keeps it. A new one takes the device where the most is
        left, so that the largest of the others still fits somewhere.
        """
        homes: dict[str, Device] = {}
        left = {each.name: each.cache.budget for each in self.by_name.values()}
        residents = [each for each in models.values() if each.resident]
        for model in residents:
            home = self.home(model.name)
            if home is None:
                home = self.by_name[max(left, key=lambda name: left[name])]
            homes[model.name] = home
            left[home.name] -= model.bytes
            if left[home.name] < 0:
                raise DoesNotFit(
                    f"{model.name} has {model.bytes} bytes; beside resident models there are "
                    f"{left[home.name] + model.bytes}"
                )
        most = max(left.values())
        for model in models.values():
            if not model.resident and model.bytes > most:
                raise DoesNotFit(
                    f"{model.name} has {model.bytes} bytes; beside resident models there are {most}"
                )
        return homes

    def home(self, name: str) -> Device | None:
        """The device where a resident model stays."""
        return next((d for d in self.by_name.values() if name in d.cache.pinned), None)

    def holding(self, name: str) -> list[Device]:
        """Devices that a model lies in or comes to."""
        return [each for each in self.by_name.values() if name in each.cache.held]

    def copied(self, device: Device) -> set[str]:
        """Models of a device that are hot on another one, too."""
        others = [each for each in self.by_name.values() if each is not device]
        return {
            name
            for name in device.cache.held
            if any(each.cache.heat(name) is Heat.HOT for each in others)
        }
