"""A device's memory as a cache of models: which lie in it, and which may give way. Pure.

A model is held from the moment its swap begins: its bytes count at once, so that swaps that run at
the same time never need more than there is. Weights are only read and their cold copy stays, so to
evict a model is to forget it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum


class CacheError(ValueError):
    """What was asked for would break a rule of the cache; nothing has changed."""


class Heat(Enum):
    """Where a held model's weights are."""

    COMING = "coming"
    """Its swap is on the way."""
    HOT = "hot"


@dataclass
class Held:
    """A model in a device's memory."""

    bytes: int
    heat: Heat
    last_used: float
    """When a batch of it began last; before the first one when its swap began."""
    running: int = 0
    """Batches that run now."""
    is_awaited: bool = True
    """It was brought in and has not run since."""
    hot_since: float = 0.0


class DeviceCache:
    """What lies in one device's memory. It decides nothing."""

    def __init__(self, budget: int) -> None:
        """Room for ``budget`` bytes of weights."""
        if budget < 0:
            raise CacheError(f"a budget of {budget} bytes")
        self.budget = budget
        self.held: dict[str, Held] = {}
        self.pinned: set[str] = set()
        """Names that never leave, held or not."""

    @property
    def used(self) -> int:
        """Bytes of all that is held, also of what is still coming."""
        return sum(each.bytes for each in self.held.values())

    @property
    def free(self) -> int:
        """Bytes that nothing lies in."""
        return self.budget - self.used

    @property
    def coming(self) -> int:
        """Swaps on the way."""
        return sum(each.heat is Heat.COMING for each in self.held.values())

    def heat(self, name: str) -> Heat | None:
        """None: it is not here."""
        found = self.held.get(name)
        return found.heat if found else None

    def may_leave(self, name: str) -> bool:
        """Whether a held model is neither pinned nor at work nor coming."""
        found = self.held[name]
        return name not in self.pinned and not found.running and found.heat is Heat.HOT

    def begin_swap(self, name: str, size: int, now: float, evict: Collection[str] = ()) -> None:
        """Let ``evict`` go and take ``name`` in, which is hot after :meth:`end_swap`."""
        if name in self.held:
            raise CacheError(f"{name} is here already")
        for each in evict:
            if each not in self.held or not self.may_leave(each):
                raise CacheError(f"{each} cannot leave")
        room = self.free + sum(self.held[each].bytes for each in set(evict))
        if size > room:
            raise CacheError(f"{name} has {size} bytes, there is room for {room}")
        for each in set(evict):
            del self.held[each]
        self.held[name] = Held(size, Heat.COMING, now)

    def end_swap(self, name: str, now: float, *, failed: bool = False) -> None:
        """The copy is complete, or never will be.

        Batches that follow a copy fail with it: they must have ended before that is said.
        """
        found = self.held.get(name)
        if found is None or found.heat is not Heat.COMING:
            raise CacheError(f"{name} is not coming")
        if not failed:
            found.heat, found.hot_since = Heat.HOT, now
        elif found.running:
            raise CacheError(f"{name} is at work")
        else:
            del self.held[name]

    def start(self, name: str, now: float) -> None:
        """A batch of a held model begins: also of one that comes, behind its copy."""
        found = self.held.get(name)
        if found is None:
            raise CacheError(f"{name} is not here")
        found.running += 1
        found.last_used, found.is_awaited = now, False

    def finish(self, name: str) -> None:
        """A batch has ended."""
        found = self.held.get(name)
        if found is None or not found.running:
            raise CacheError(f"{name} is not at work")
        found.running -= 1

    def forget(self, name: str) -> None:
        """A model is no more. Raises CacheError while it is at work or coming."""
        found = self.held.get(name)
        if found is not None and (found.running or found.heat is Heat.COMING):
            raise CacheError(f"{name} is at work or coming")
        self.held.pop(name, None)
        self.pinned.discard(name)

    def victims(
        self, size: int, among: Iterable[str], copied: Collection[str] = ()
    ) -> tuple[str, ...] | None:
        """Who leaves so that ``size`` bytes fit, the first that will; None: not even all suffice.

        Of ``among``, those with a copy on another device first, and then the least recently used.
        """
        chosen: list[str] = []
        room = self.free
        ranked = sorted(
            among, key=lambda name: (name not in copied, self.held[name].last_used, name)
        )
        for name in ranked:
            if room >= size:
                break
            chosen.append(name)
            room += self.held[name].bytes
        return tuple(chosen) if room >= size else None
