"""Which of the models that wait is served next in a pool process. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shunter.allocator.memory.scheduling import Waiting


class ServedOrder:
    """Strict before best effort, then the model that was served longest ago."""

    def __init__(self, ageing_s: float) -> None:
        """``ageing_s``: after so long a wait best effort counts as strict; 0: never."""
        self._ageing_s = ageing_s
        self._served: dict[str, int] = {}
        """Number of a model's last batch among all."""
        self._batches = 0

    def serve(self, name: str) -> None:
        """A batch of this model begins."""
        self._batches += 1
        self._served[name] = self._batches

    def forget(self, name: str) -> None:
        """A model is no more."""
        self._served.pop(name, None)

    def is_urgent(self, each: Waiting, now: float) -> bool:
        """Whether it is strict, or counts as that."""
        return each.strict or (self._ageing_s > 0 and now - each.since >= self._ageing_s)

    def first(self, waiting: Sequence[Waiting], now: float) -> Waiting:
        """The next one."""

        def rank(each: Waiting) -> tuple[bool, int, float]:
            return not self.is_urgent(each, now), self._served.get(each.name, 0), each.since

        return min(waiting, key=rank)
