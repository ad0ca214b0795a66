"""The worker's end of answers in parts, in C: see ``parts.h``."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from ctypes import c_int, c_uint32, c_uint64, c_void_p

from shunter.batching.queue.native import Batch, FrontEndError, WorkerQueue, check

LONGEST_SLEEP_NS = 1_000_000_000


class Parts:
    """The parts of one answer."""

    def __init__(self, entry: int) -> None:
        """``entry``: of its request."""
        self.entry = entry
        self.written = 0
        self.place: int | None = None
        """The entry into which the next one belongs; None: there is none yet."""
        self.wanted = True
        self.is_over = False


class PartsEnd:
    """Where parts of answers belong, and when."""

    def __init__(self, end: WorkerQueue) -> None:
        """``end`` stays the caller's."""
        self._end, library = end, end.library
        self._place, self._is_there = library.shunter_part_place, library.shunter_part_is_there
        self._wait, self._are_over = library.shunter_parts_wait, library.shunter_parts_are_over
        self._are_late = library.shunter_parts_are_late
        at = c_void_p
        self._place.argtypes = [at, c_uint32, c_uint64]
        self._is_there.argtypes = [at, c_uint32, c_uint64, c_int]
        self._are_over.argtypes = self._are_late.argtypes = self._is_there.argtypes
        self._wait.argtypes = [at, c_uint32, at, at, at, c_uint32, c_uint64]
        self._words, self._since = end.queue.words, end.queue.front_end("front_end_since_ns")
        self.batch = Batch(end.queue.entries)
        """The places of parts that are made together, as if they were requests."""

    def look(self, parts: Parts) -> bool:
        """Whether there is a place for the next part, or nobody wants it.

        Raises FrontEndError for what the front end says that makes no sense.
        """
        if parts.wanted:  # also when there is one: it may be wanted no more
            found = self._place(self._end.view_at, parts.entry, parts.written)
            parts.wanted = found != -errno.ECANCELED
            if found != -errno.EAGAIN and parts.wanted:
                parts.place = check(found, "the place of a part", FrontEndError)
        return parts.place is not None or not parts.wanted

    def sleep(self, answers: Sequence[Parts], most_ns: int) -> None:
        """Until there may be a place for the next part of one of these, or nobody wants it.

        None of them has one. Raises FrontEndError when the front end is gone.
        """
        entries = (c_uint32 * len(answers))(*(each.entry for each in answers))
        written = (c_uint64 * len(answers))(*(each.written for each in answers))
        where = *self._end.waiting_at, entries, written, len(answers)
        most_ns = min(most_ns, LONGEST_SLEEP_NS)
        check(self._wait(*where, most_ns), "waiting for the place of a part", FrontEndError)

    def waiting_since_ns(self) -> int:
        """Since when a request waits that no worker has, 0: none does."""
        return self._words[self._since]

    def is_there(self, parts: Parts) -> None:
        """The next part is in its place."""
        parts.written += 1
        parts.place = None
        where = self._end.view_at, parts.entry, parts.written, self._end.front
        check(self._is_there(*where), "a part", FrontEndError)

    def over(self, parts: Parts) -> None:
        """None follows, though its batch goes on."""
        self._end_with(self._are_over, parts)

    def late(self, parts: Parts) -> None:
        """The same: its client is too far behind others of its batch, and gets no more of it."""
        parts.wanted = False
        self._end_with(self._are_late, parts)

    def _end_with(self, said: Callable[..., int], parts: Parts) -> None:
        parts.is_over = True
        where = self._end.view_at, parts.entry, parts.written, self._end.front
        check(said(*where), "the end", FrontEndError)
