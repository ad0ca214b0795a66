"""Memory that a function's clients on this host share with its workers.

The front end makes it, so that nobody has to believe a client: it is sealed, all of it is taken,
and its size is what the session needs. The client may write there, workers read. A region's number
is given to another only when every worker has said that it does not have the last one any more:
what they look at is never another client's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shunter.batching.queue.native import REGIONS
from shunter.batching.queue.shared_memory import read_only, sealed_memory

LOGGER = logging.getLogger("shunter.nic")
BYTES, FEW_BYTES = 8 << 20, 2 << 20
"""A session's window is so short that its requests take no more, if one takes less; the second
holds from the ``MANY``-th session of a function on: all of its memory is taken when it is made."""
MANY = 16
MOST_BYTES = 64 << 20
"""One request may take so many."""
MOST_REGIONS = 256
"""Of all functions: each is a descriptor."""


class Attached(Protocol):
    """A worker, as the front end sees it."""

    def tell(self, content: dict[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send it a message, if it is there."""


@dataclass
class Region:
    """One of them."""

    number: int
    bytes: int
    window: int
    """Requests for which there is room."""
    descriptor: int
    """To read it; -1: it is let go of."""
    session: int = 0
    owner: int = 0
    """Whose sessions are counted together."""
    holders: frozenset[int] = frozenset()
    """When it is let go of: workers that may still have it."""


def may_have_more(theirs: int, taken: int, most: int) -> bool:
    """Whether somebody who has ``theirs`` of those that are ``taken`` may have one more.

    Nobody has more than are left after him, so that others always find some.

    >>> [may_have_more(n, n, 15) for n in (0, 7, 8)], may_have_more(0, 14, 15)
    ([True, True, False], True)
    """
    return theirs < most - taken


def window_of(each: int, window: int, others: int = 0) -> int:
    """For how many requests of ``each`` bytes a region of a session has room; 0: it gets none.

    ``others``: regions that there are.
    """
    room = BYTES if others < MANY - 1 else FEW_BYTES
    return min(window, max(1, room // each)) if 0 < each <= MOST_BYTES else 0


class Regions:
    """Those of one function."""

    def __init__(self) -> None:
        """None yet."""
        self._all: dict[int, Region] = {}

    def __len__(self) -> int:
        """How many there are, also of those that workers may still have."""
        return len(self._all)

    def owned(self, owner: int) -> int:
        """How many are his."""
        return sum(each.owner == owner for each in self._all.values())

    def make(self, each: int, window: int, free_bytes: float) -> tuple[Region, int] | None:
        """A new one, and the descriptor for its client; None: there can be none now.

        ``each``: bytes of a request. ``free_bytes``: of the host.
        """
        count = window_of(each, window, len(self._all))
        number = next((n for n in range(1, REGIONS) if n not in self._all), 0)
        if not count or not number:
            return None
        try:
            memory = sealed_memory("shunter-client", count * each, free_bytes)
        except OSError as error:
            LOGGER.info("a client shares no memory: %s", error)
            return None
        try:
            region = Region(number, count * each, count, read_only(memory))
        except OSError as error:
            LOGGER.info("a client shares no memory: %s", error)
            os.close(memory)
            return None
        self._all[number] = region
        return region, memory

    def discard(self, region: Region) -> None:
        """No worker has heard of it."""
        os.close(region.descriptor)
        del self._all[region.number]

    def share(self, region: Region, session: int, workers: Iterable[Attached]) -> None:
        """It is that session's: its requests may come from now on."""
        region.session = session
        for worker in workers:
            _tell(worker, region)

    def tell(self, worker: Attached) -> None:
        """A new worker gets them all."""
        for region in self._all.values():
            if region.descriptor >= 0:
                _tell(worker, region)

    def let_go(self, is_used: Callable[[int], bool], workers: Mapping[int, Attached]) -> None:
        """Of those whose sessions are over, with all that ran for them."""
        for region in list(self._all.values()):
            if region.descriptor < 0 or is_used(region.session):
                continue
            os.close(region.descriptor)
            region.descriptor, region.holders = -1, frozenset(workers)
            for worker in workers.values():
                worker.tell({"unmap": region.number})
            self._free(region)

    def unmapped(self, number: object, index: int) -> None:
        """A worker does not have it any more."""
        region = self._all.get(number) if isinstance(number, int) else None
        if region is not None and region.descriptor < 0:
            region.holders -= {index}
            self._free(region)

    def left(self, index: int) -> None:
        """A worker is gone."""
        for number in list(self._all):
            self.unmapped(number, index)

    def _free(self, region: Region) -> None:
        if not region.holders:
            del self._all[region.number]

    def close(self) -> None:
        """Nobody is served any more."""
        for region in self._all.values():
            if region.descriptor >= 0:
                os.close(region.descriptor)
        self._all.clear()


def _tell(worker: Attached, region: Region) -> None:
    worker.tell({"region": region.number, "bytes": region.bytes}, (region.descriptor,))
