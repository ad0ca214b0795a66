"""How many instances of each model there should be (PROTEAN, section 4.2). Pure.

One for every batch of requests that came. One that is not needed any more is kept until it was not
needed for a while: the load comes back more often than not, and a start is expensive. Memory is
counted once for all models: what one model keeps for later is given up when another one needs the
room now.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

KEEP_S = 600.0
"""How long an instance has to be surplus before it ends."""


def instances(requests: float, batch_size: int) -> int:
    """One for each batch that so many requests make.

    >>> instances(129, 128), instances(0, 128)
    (2, 0)
    """
    return math.ceil(requests / batch_size)


def total(requests: Mapping[str, float], batch_size: Mapping[str, int]) -> int:
    """n_c: of all models together.

    >>> total({"a": 130, "b": 4}, {"a": 128, "b": 4})
    3
    """
    return sum(instances(count, batch_size[model]) for model, count in requests.items())


@dataclass(frozen=True)
class KeepAlive:
    """Of one model: how many instances it was found to need, as far as that still matters."""

    keep_s: float = KEEP_S
    least: int = 0
    """So many stay warm even when nothing comes."""
    needs: tuple[tuple[float, int], ...] = ()
    """Times and numbers, the latest last; ever fewer, as a later larger one hides those before."""

    def after(self, now: float, needed: int) -> KeepAlive:
        """With what is needed now; times must not go back."""
        held = tuple(
            (at, count)
            for at, count in self.needs
            if count > needed and at + self.keep_s > now  # of age: surplus all the while
        )
        return replace(self, needs=(*held, (now, needed)))

    @property
    def target(self) -> int:
        """How many there should be: the most of what was needed in the last ``keep_s``."""
        return max(self.least, self.needs[0][1] if self.needs else 0)

    @property
    def needed(self) -> int:
        """What was needed last, without any that are only kept."""
        return self.needs[-1][1] if self.needs else 0


@dataclass(frozen=True)
class Want:
    """Of one model: how many instances it needs now, and would like to keep."""

    model: str
    needed: int
    kept: int
    """At least ``needed``."""
    once: Mapping[str, float]
    """Bytes of each kind of memory (host, gpu) that the first instance brings: weights, shared."""
    each: Mapping[str, float]
    """Bytes of every instance."""
    last_used: float = 0.0
    is_strict: bool = False


def within(wants: Iterable[Want], memory: Mapping[str, float]) -> dict[str, int]:
    """How many instances each model may have, all together within the memory of every kind.

    What is needed now comes before what is kept, strict models before others, and what was used
    last is kept longest. Nobody gets a second instance before all others that need one have one.
    """
    left = dict(memory)
    order = sorted(wants, key=lambda each: (not each.is_strict, -each.last_used, each.model))
    found = {each.model: 0 for each in order}
    for field in ("needed", "kept"):
        going = [each for each in order if getattr(each, field) > found[each.model]]
        while going:
            going = [
                each
                for each in going
                if _take(each, found, left) and getattr(each, field) > found[each.model]
            ]
    return found


def _take(want: Want, found: dict[str, int], left: dict[str, float]) -> bool:
    """Give a model one more instance where there is room."""
    asked = dict(want.each)
    if found[want.model] == 0:
        for kind, count in want.once.items():
            asked[kind] = asked.get(kind, 0.0) + count
    if any(count > left.get(kind, 0.0) for kind, count in asked.items()):
        return False
    for kind, count in asked.items():
        left[kind] = left.get(kind, 0.0) - count
    found[want.model] += 1
    return True
