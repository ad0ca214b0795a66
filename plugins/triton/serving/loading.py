"""Models that a server starts with: the workers of several load at a time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from shunter.plugins.host import HostError
from shunter.plugins.triton.served import Served

LOGGER = logging.getLogger("shunter.triton")
Wanted = tuple[str, str | None]
"""An archive, and the name that it gets."""


def missing(models: Sequence[str], served: Iterable[Served]) -> list[Wanted]:
    """``models``: NAME=FILE or FILE; of those, what is not served yet."""
    loaded = {(each.name, each.archive.name) for each in served}
    files = {file for _, file in loaded}
    named = [each.partition("=") for each in models]
    return [
        (file, name) if equals else (name, None)
        for name, equals, file in named
        if (name, file) not in loaded and name not in files
    ]


class Loading:
    """All of them are begun, and told of one after the other as they have ended."""

    def __init__(
        self,
        take: Callable[[str, str | None, int | None, Iterable[Served]], Served],
        served: Sequence[Served],
        start: Callable[[Served], None],
        offer: Callable[[Served], None],
    ) -> None:
        """``take`` an archive that is none of those that are ``served`` and of those before it;
        ``start`` its workers, in a thread; ``offer`` it to the server. They raise HostError, and
        have left nothing of it then."""
        self._take, self._served, self._start, self._offer = take, served, start, offer

    def run(self, models: Iterable[Wanted]) -> Iterator[tuple[str, HostError | None]]:
        """The archive of each when it is there, or why it is not."""
        coming: dict[Future[None], Served] = {}
        # What loading takes is processor time: more of them at once would only take more memory.
        threads = ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0))), "loading")
        try:
            for archive, name in models:
                try:
                    served = self._take(archive, name, None, (*self._served, *coming.values()))
                except HostError as error:
                    yield archive, error
                else:
                    coming[threads.submit(self._start, served)] = served
            for done in as_completed(coming):
                served, error = coming[done], None
                try:
                    done.result()
                    self._offer(served)
                except HostError as found:
                    error = found
                yield served.archive.name, error
        finally:  # of a host that ends meanwhile they end at once
            threads.shutdown(wait=False, cancel_futures=True)


class Tally:
    """What became of the models of a start, for the log and for who waits."""

    def __init__(self, count: int, told: Callable[[str], None]) -> None:
        """``told``: how far it is, each time."""
        self._count, self._told, self._loaded = count, told, 0
        self._faults: list[HostError] = []

    def note(self, archive: str, error: HostError | None) -> None:
        """One has ended."""
        if error is None:
            self._loaded += 1
        else:
            self._faults.append(error)
            LOGGER.error("%s is not loaded: %s", archive, error)
        failed = f", {len(self._faults)} failed" if self._faults else ""
        self._told(f"{self._loaded} of {self._count} models are loaded{failed}")

    def check(self) -> None:
        """Raises HostError: there were some, and none of them is there."""
        if self._faults and not self._loaded:
            raise self._faults[0]
