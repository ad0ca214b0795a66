"""What strict requests hold, and what a line of the control page says of it. Pure.

The twin of ``c/core/holding.c``. A function holds its slices while it has strict work and workers,
which say which slices these are (REEF section 4: a real-time request preempts what runs on its
GPU).
What is said is derived anew from all functions at every change, so nothing can stay held by a
request that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shunter.batching.page.hold_words import stores
from shunter.batching.page.layout import HOLDER_FIELDS, SLOT_WORDS
from shunter.batching.page.slices import SliceSet, words_of

_K = {name: placed.offset // 8 for name, placed in HOLDER_FIELDS.items()}
_HEARTBEAT, _MODELS = _K["holder_heartbeat_ns"], _K["hold_models"]
_SINCE, _PROGRESS = _K["hold_since_ns"], _K["hold_progress_ns"]


class Line(Protocol):
    """The signed 8-byte words of a holder's line."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


@dataclass
class Hold:
    """What one function's strict requests hold."""

    slot: int = -1
    """Of its model on the page, -1: it has none there."""
    slices: SliceSet = 0
    """Those of its workers, 0 while it has none: nobody would run what holds them."""
    strict: int = 0
    """Requests that hold: see :attr:`oracle.sessions.Call.holds`."""

    @property
    def is_up(self) -> bool:
        """Whether it holds anything."""
        return self.strict > 0 and self.slices != 0


class Holds:
    """All functions' holds, and the line that shows them."""

    def __init__(self) -> None:
        """Nothing is held, nowhere."""
        self.of: dict[int, Hold] = {}
        """By function."""
        self._line: Line | None = None
        self._said: SliceSet = 0
        """What the line says."""
        self._number = 0

    def write_to(self, line: Line | None, now_ns: int) -> None:
        """Say it here from now on; the line before is lowered."""
        self._store(0, 0, now_ns, raises=False)
        self._line = line
        if line is not None:
            line[_HEARTBEAT] = now_ns
        self._show(now_ns, raises=True)

    def place(self, func_id: int, slot: int, slices: SliceSet, now_ns: int) -> None:
        """A function's slot and slices from now on."""
        hold = self.of[func_id]
        if (hold.slot, hold.slices) == (slot, slices):
            return
        was_up = hold.is_up
        hold.slot, hold.slices = slot, slices
        if was_up or hold.is_up:
            self._show(now_ns, raises=hold.is_up)

    def count(self, func_id: int, more: int, now_ns: int) -> None:
        """One more strict request of a function holds, or one less (-1)."""
        hold = self.of[func_id]
        was_up = hold.is_up
        hold.strict += more
        if hold.is_up != was_up:
            self._show(now_ns, raises=hold.is_up)

    def progress(self, func_id: int, now_ns: int) -> None:
        """A strict batch of a function has begun or ended."""
        if self._line is not None and self.of[func_id].is_up:
            self._line[_PROGRESS] = now_ns

    def beat(self, now_ns: int) -> None:
        """Say that the holder lives."""
        if self._line is not None:
            self._line[_HEARTBEAT] = now_ns

    def _show(self, now_ns: int, *, raises: bool) -> None:
        up = [hold for hold in self.of.values() if hold.is_up]
        slices = models = 0
        for hold in up:
            slices |= hold.slices
            models |= 1 << hold.slot if hold.slot >= 0 else 0
        if any(hold.slot < 0 for hold in up):
            models = 0  # beside whom nobody knows, nothing runs
        self._store(slices, models, now_ns, raises=raises)

    def _store(self, slices: SliceSet, models: int, now_ns: int, *, raises: bool) -> None:
        """A reader that sees slices also sees whose they are: they are raised last, lowered
        first."""
        line = self._line
        if line is None:
            return
        if raises and slices:
            line[_HEARTBEAT] = now_ns
            self._store_models(line, models)
            if slices & ~self._said:
                line[_SINCE] = now_ns
            line[_PROGRESS] = now_ns
            self._store_slices(line, slices)
        else:
            self._store_slices(line, slices)
            self._store_models(line, models)

    def _store_slices(self, line: Line, slices: SliceSet) -> None:
        if slices != self._said:
            self._number += 1
            for word, value in stores(self._said, slices, self._number):
                line[word] = value
            self._said = slices

    def _store_models(self, line: Line, models: int) -> None:
        for n, value in enumerate(words_of(models, SLOT_WORDS)):
            line[_MODELS + n] = value
