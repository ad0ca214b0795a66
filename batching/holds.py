"""Hold words: which slices' best-effort work must stand still, and who says so.

One line of the control page per holder. Its owner is the line's only writer, so no atomic
read-modify-write is needed: readers OR the masks of all living holders. The owner keeps a lock on
the line's bytes, which the kernel drops when it ends, so a line never has two writers.
"""

from __future__ import annotations

from shunter.batching.control_page import ControlPage
from shunter.batching.layout import HEADER_SIZE, HOLDER_COUNT, HOLDER_FIELDS, HOLDER_SIZE
from shunter.batching.processes import is_alive

STALE_NS = 2_000_000_000
"""A holder that did not beat for this long is ignored: it hangs."""
SLICES = 64
"""Slices that a mask can name: bits 0 to 63."""
_ALL = (1 << SLICES) - 1
_K = {name: placed.offset // 8 for name, placed in HOLDER_FIELDS.items()}


class NoHolderError(Exception):
    """Every holder line of the page is taken."""


class Holder:
    """One process's own line of hold words, from :func:`claim`.

    While a mask is raised its owner must call a method at least every second.
    """

    def __init__(self, page: ControlPage, index: int, pid: int, now_ns: int) -> None:
        """Take over a line whose lock is held; what a dead owner left in it is cleared first."""
        self._page = page
        self._mask = 0
        self.index = index
        self._set("hold_mask", 0)
        self._set("hold_since_ns", 0)
        self._set("holder_heartbeat_ns", now_ns)
        self._set("holder_pid", pid)

    def raise_mask(self, slices: int, now_ns: int) -> None:
        """Hold these slices beside those already held. Raises ValueError for bits above 63."""
        if not 0 <= slices <= _ALL:
            raise ValueError(f"hold mask {slices:#x}; allowed: bits 0 to {SLICES - 1}")
        self.heartbeat(now_ns)
        if slices and not self._mask:
            self._set("hold_since_ns", now_ns)
        self._show(self._mask | slices)

    def lower_mask(self, slices: int, now_ns: int) -> None:
        """Let best-effort work on these slices go on."""
        self._show(self._mask & ~slices)
        self.heartbeat(now_ns)

    def heartbeat(self, now_ns: int) -> None:
        """Say that the holder lives."""
        self._set("holder_heartbeat_ns", now_ns)

    def release(self) -> None:
        """Lower everything and give the line back; the holder must not be used any more."""
        self._show(0)
        self._set("holder_pid", 0)
        self._page.unlock(HEADER_SIZE + self.index * HOLDER_SIZE)

    def _show(self, mask: int) -> None:
        self._mask = mask
        # The word is signed for Python and Java; bit 63 is its sign.
        self._set("hold_mask", mask - (mask >> 63 << 64))

    def _set(self, name: str, value: int) -> None:
        self._page.words[_base(self.index) + _K[name]] = value


def claim(page: ControlPage, pid: int, now_ns: int) -> Holder:
    """Become the writer of a free holder line, until :meth:`Holder.release` or the page's close.

    ``pid`` is the caller's own. Raises NoHolderError when all lines are taken.
    """
    for index in range(HOLDER_COUNT):
        if page.lock(HEADER_SIZE + index * HOLDER_SIZE):
            return Holder(page, index, pid, now_ns)
    raise NoHolderError(f"all {HOLDER_COUNT} holders of the control page are taken")


def held(page: ControlPage, slices: int, now_ns: int) -> int:
    """Which slices of the mask ``slices`` are held by any living holder, as a mask.

    A holder does not count when its process is dead, or its heartbeat is further than ``STALE_NS``
    from now in either direction.
    """
    found = 0
    for index in range(HOLDER_COUNT):
        base = _base(index)
        mask = page.words[base + _K["hold_mask"]] & slices & _ALL
        if mask & ~found:
            age = now_ns - page.words[base + _K["holder_heartbeat_ns"]]
            if abs(age) <= STALE_NS and is_alive(page.words[base + _K["holder_pid"]]):
                found |= mask
    return found


def _base(index: int) -> int:
    return (HEADER_SIZE + index * HOLDER_SIZE) // 8
