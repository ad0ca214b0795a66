"""Hold words: which slices' best-effort work must stand still, and who says so.

One line of the control page per holder. Its owner is the line's only writer, so no atomic
read-modify-write is needed: readers OR what all living holders say. The first line is the server's
own, which made the page; the owner of another keeps a lock on the line's bytes, which the kernel
drops when it ends, so a line never has two writers.

A hold that nobody would ever end does not count: of a process that died or hangs, and one behind
which no strict work has begun or ended for too long.
"""

from __future__ import annotations

from shunter.batching.control_page import ControlPage
from shunter.batching.layout import (
    HEADER_SIZE,
    HOLDER_COUNT,
    HOLDER_FIELDS,
    HOLDER_SIZE,
    SLOT_WORDS,
)
from shunter.batching.page_records import mask_of, words_of
from shunter.batching.processes import is_alive

STALE_NS = 2_000_000_000
"""A holder that did not beat for this long is ignored: it hangs."""
MAX_HOLD_NS = 2_000_000_000
"""So is one that holds for this long without progress, where the controller says nothing else."""
SLICES = 64
"""Slices that a mask can name: bits 0 to 63."""
_ALL = (1 << SLICES) - 1
_K = {name: placed.offset // 8 for name, placed in HOLDER_FIELDS.items()}
_BASES = tuple((HEADER_SIZE + index * HOLDER_SIZE) // 8 for index in range(HOLDER_COUNT))
_MASKS = tuple(base + _K["hold_mask"] for base in _BASES)


class NoHolderError(Exception):
    """Every holder line of the page is taken."""


class Holder:
    """One process's own line of hold words, from :func:`claim`.

    While it holds its owner must call a method at least every second.
    """

    def __init__(self, page: ControlPage, index: int, pid: int, now_ns: int) -> None:
        """Take over a line whose lock is held; what a dead owner left in it is cleared first."""
        self._page = page
        self._slices = self._models = 0
        self.index = index
        for name in ("hold_mask", "hold_since_ns", "hold_progress_ns"):
            self._set(name, 0)
        self._set_mask("hold_models", 0, SLOT_WORDS)
        self._set("holder_heartbeat_ns", now_ns)
        self._set("holder_pid", pid)

    def hold(self, slices: int, models: int, now_ns: int) -> None:
        """From now on hold these slices, for the strict work of these slots; 0 lets go.

        Raises ValueError for slices above bit 63.
        """
        if not 0 <= slices <= _ALL:
            raise ValueError(f"hold mask {slices:#x}; allowed: bits 0 to {SLICES - 1}")
        self.heartbeat(now_ns)
        if not slices:
            self._set("hold_mask", 0)
        if models != self._models:
            self._set_mask("hold_models", models, SLOT_WORDS)
        if slices and not self._slices:
            self._set("hold_since_ns", now_ns)
            self._set("hold_progress_ns", now_ns)
        # Last, so that a reader who sees the slices sees all that belongs to them.
        if slices:
            self._set_mask("hold_mask", slices, 1)
        self._slices, self._models = slices, models

    def progress(self, now_ns: int) -> None:
        """Strict work that holds has begun or ended a batch."""
        self._set("hold_progress_ns", now_ns)

    def heartbeat(self, now_ns: int) -> None:
        """Say that the holder lives."""
        self._set("holder_heartbeat_ns", now_ns)

    def release(self) -> None:
        """Let go of everything and give the line back; the holder must not be used any more."""
        self._set("hold_mask", 0)
        self._set_mask("hold_models", 0, SLOT_WORDS)
        self._set("holder_pid", 0)
        self._page.unlock(HEADER_SIZE + self.index * HOLDER_SIZE)

    def _set(self, name: str, value: int) -> None:
        self._page.words[_BASES[self.index] + _K[name]] = value

    def _set_mask(self, name: str, mask: int, count: int) -> None:
        for i, word in enumerate(words_of(mask, count)):
            self._page.words[_BASES[self.index] + _K[name] + i] = word


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
    slices: int,
    now_ns: int,
    *,
    beside: int = 0,
    max_hold_ns: int = MAX_HOLD_NS,
) -> int:
    """Which slices of the mask ``slices`` are held by any holder that counts, as a mask.

    ``beside`` is a mask of slots; a holder all of whose strict work is theirs does not count.
    """
    found = 0
    words = page.words
    for index, at in enumerate(_MASKS):
        mask = words[at] & slices
        if mask and _counts(page, index, now_ns, beside, max_hold_ns):
            found |= mask & _ALL
    return found


def is_raised(page: ControlPage, slices: int) -> bool:
    """Whether any word says that one of these slices is held; :func:`held` knows if it counts."""
    words = page.words
    return any(words[at] & slices for at in _MASKS)


def since_ns(page: ControlPage, slices: int) -> int:
    """When the newest hold of these slices was raised; 0 when none is."""
    words = page.words
    raised = [_BASES[i] for i, at in enumerate(_MASKS) if words[at] & slices]
    return max((words[base + _K["hold_since_ns"]] for base in raised), default=0)


def progress_ns(page: ControlPage) -> int:
    """When strict work of any holder last began or ended a batch."""
    return max(page.words[base + _K["hold_progress_ns"]] for base in _BASES)


def holding_models(page: ControlPage, now_ns: int) -> int:
    """Whose strict work holds slices now, as a mask of slots."""
    found = 0
    for index, base in enumerate(_BASES):
        if page.words[_MASKS[index]] and _counts(page, index, now_ns, 0, MAX_HOLD_NS):
            found |= mask_of(page.words, base + _K["hold_models"], SLOT_WORDS)
    return found


def _counts(page: ControlPage, index: int, now_ns: int, beside: int, max_hold_ns: int) -> bool:
    words, base = page.words, _BASES[index]
    models = mask_of(words, base + _K["hold_models"], SLOT_WORDS)
    if models and not models & ~beside:
        return False
    if abs(now_ns - words[base + _K["holder_heartbeat_ns"]]) > STALE_NS:
        return False
    progress = max(words[base + _K["hold_since_ns"]], words[base + _K["hold_progress_ns"]])
    return now_ns - progress <= max_hold_ns and is_alive(words[base + _K["holder_pid"]])
