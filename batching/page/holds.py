"""Hold words: which slices' best-effort work must stand still, and who says so.

One line of the control page per holder. Its owner is the line's only writer, so no atomic
read-modify-write is needed: readers OR what all living holders say. The first line is the server's
own, which made the page; the owner of another keeps a lock on the line's bytes, which the kernel
drops when it ends, so a line never has two writers.

A hold that nobody would ever end does not count: of a process that died or hangs, and one behind
which no strict work has begun or ended for too long.
"""

from __future__ import annotations

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.hold_words import held_here, stores
from shunter.batching.page.layout import (
    HEADER_SIZE,
    HOLDER_COUNT,
    HOLDER_FIELDS,
    HOLDER_SIZE,
    RUNNERS_OFFSET,
    SLOT_WORDS,
)
from shunter.batching.page.processes import is_alive
from shunter.batching.page.slices import EVERY, SliceSet, mask_of, words_of

STALE_NS = 2_000_000_000
"""A holder that did not beat for this long is ignored: it hangs."""
MAX_HOLD_NS = 2_000_000_000
"""So is one that holds for this long without progress, where the controller says nothing else."""
_K = {name: placed.offset // 8 for name, placed in HOLDER_FIELDS.items()}
_BASES = tuple((HEADER_SIZE + index * HOLDER_SIZE) // 8 for index in range(HOLDER_COUNT))
_NUMBERS = slice(_BASES[0] + _K["hold_number"], RUNNERS_OFFSET // 8, HOLDER_SIZE // 8)


class NoHolderError(Exception):
    """Every holder line of the page is taken."""


class Holder:
    """One process's own line of hold words, from :func:`claim`.

    While it holds its owner must call a method at least every second.
    """

    def __init__(self, page: ControlPage, index: int, pid: int, now_ns: int) -> None:
        """Take over a line whose lock is held; what a dead owner left in it is cleared first."""
        self._page = page
        self._slices = self._models = self._number = 0
        self.index = index
        for name in ("hold_number", "hold_since_ns", "hold_progress_ns"):
            self._set(name, 0)
        for i, word in enumerate(words_of(0)):
            page.words[_BASES[index] + _K["hold_slices"] + i] = word
        self._set_models(0)
        self._set("holder_heartbeat_ns", now_ns)
        self._set("holder_pid", pid)

    def hold(self, slices: SliceSet, models: int, now_ns: int) -> None:
        """From now on hold these slices, for the strict work of these slots; 0 lets go.

        Raises ValueError for slices that do not exist.
        """
        if not 0 <= slices <= EVERY:
            raise ValueError(f"slices {slices:#x}; allowed: bits 0 to {EVERY.bit_length() - 1}")
        self.heartbeat(now_ns)
        if not slices:
            self._set_slices(0)
        if models != self._models:
            self._set_models(models)
        if slices & ~self._slices:
            self._set("hold_since_ns", now_ns)
        if slices and not self._slices:
            self._set("hold_progress_ns", now_ns)
        # Last, so that a reader who sees the slices sees all that belongs to them.
        if slices != self._slices:
            self._set_slices(slices)
        self._models = models

    def progress(self, now_ns: int) -> None:
        """Strict work that holds has begun or ended a batch."""
        self._set("hold_progress_ns", now_ns)

    def heartbeat(self, now_ns: int) -> None:
        """Say that the holder lives."""
        self._set("holder_heartbeat_ns", now_ns)

    def release(self) -> None:
        """Let go of everything and give the line back; the holder must not be used any more."""
        self._set_slices(0)
        self._set_models(0)
        self._set("holder_pid", 0)
        self._page.unlock(HEADER_SIZE + self.index * HOLDER_SIZE)

    def _set(self, name: str, value: int) -> None:
        self._page.words[_BASES[self.index] + _K[name]] = value

    def _set_slices(self, slices: SliceSet) -> None:
        self._number += 1
        for at, word in stores(self._slices, slices, self._number):
            self._page.words[_BASES[self.index] + at] = word
        self._slices = slices

    def _set_models(self, models: int) -> None:
        for i, word in enumerate(words_of(models, SLOT_WORDS)):
            self._page.words[_BASES[self.index] + _K["hold_models"] + i] = word


def claim(page: ControlPage, pid: int, now_ns: int) -> Holder:
    """Become the writer of a free holder line, until :meth:`Holder.release` or the page's close.

    ``pid`` is the caller's own. Raises NoHolderError when all lines are taken.
    """
    for index in range(1, HOLDER_COUNT):
        if page.lock(HEADER_SIZE + index * HOLDER_SIZE):
            return Holder(page, index, pid, now_ns)
    raise NoHolderError(f"all {HOLDER_COUNT - 1} holders of the control page are taken")


def held(
    page: ControlPage,
    slices: SliceSet,
    now_ns: int,
    *,
    beside: int = 0,
    max_hold_ns: int = MAX_HOLD_NS,
) -> SliceSet:
    """Which of these slices are held by any holder that counts.

    ``beside`` is a mask of slots; a holder all of whose strict work is theirs does not count.
    """
    found = 0
    for base in _raised(page.words):
        here = held_here(page.words, base, slices)
        if here and _counts(page.words, base, now_ns, beside, max_hold_ns):
            found |= here
    return found


def is_raised(page: ControlPage, slices: SliceSet) -> bool:
    """Whether any line says that one of these slices is held; :func:`held` knows if it counts."""
    words = page.words
    # Between two parts of a pass nothing is held almost always: that must be found out at once.
    if not any(words[_NUMBERS]):
        return False
    return any(held_here(words, base, slices) for base in _raised(words))


def since_ns(page: ControlPage, slices: SliceSet) -> int:
    """When the newest hold of these slices was raised; 0 when none is."""
    words = page.words
    raised = [base for base in _raised(words) if held_here(words, base, slices)]
    return max((words[base + _K["hold_since_ns"]] for base in raised), default=0)


def progress_ns(page: ControlPage) -> int:
    """When strict work of any holder last began or ended a batch."""
    return max(page.words[base + _K["hold_progress_ns"]] for base in _BASES)


def holding_models(page: ControlPage, now_ns: int) -> int:
    """Whose strict work holds slices now, as a mask of slots."""
    found = 0
    for base in _raised(page.words):
        if _counts(page.words, base, now_ns, 0, MAX_HOLD_NS):
            found |= mask_of(page.words, base + _K["hold_models"], SLOT_WORDS)
    return found


def _raised(words: memoryview) -> list[int]:
    """Lines on which anything is held."""
    return [base for base, number in zip(_BASES, words[_NUMBERS], strict=True) if number]


def _counts(words: memoryview, base: int, now_ns: int, beside: int, max_hold_ns: int) -> bool:
    models = mask_of(words, base + _K["hold_models"], SLOT_WORDS)
    if models and not models & ~beside:
        return False
    if abs(now_ns - words[base + _K["holder_heartbeat_ns"]]) > STALE_NS:
        return False
    progress = max(words[base + _K["hold_since_ns"]], words[base + _K["hold_progress_ns"]])
    return now_ns - progress <= max_hold_ns and is_alive(words[base + _K["holder_pid"]])
