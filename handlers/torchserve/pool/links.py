"""Tensor queues of the seats: their front ends, doorbells and batches, as events of one loop."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shunter.handlers.pool.reception import News
from shunter.handlers.torchserve.connection import DIED

if TYPE_CHECKING:
    from shunter.handlers.torchserve.pool.pooled import PooledWorker

LOOK_S = 0.1
"""Between two looks at who is due."""


@dataclass(frozen=True)
class OfLink:
    """What is registered with a descriptor of a link."""

    worker: PooledWorker


def _be_late(worker: PooledWorker) -> None:
    assert worker.link is not None
    if worker.link.late():
        worker.seat.connect(worker.link.path)


class Links:
    """Of all workers that have one."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        ready: Callable[[PooledWorker], None],
        over: Callable[[PooledWorker], None],
        speaks: Callable[[PooledWorker], None],
        broken: Callable[[PooledWorker], None],
    ) -> None:
        """``ready``: a worker has a batch; ``over``: none will come any more; ``speaks``: what is
        printed from now on is this one's; ``broken``: its link has failed, why is in the log."""
        self._selector, self._ready, self._over, self._speaks = selector, ready, over, speaks
        self._broken = broken
        self._watched: dict[PooledWorker, set[int]] = {}
        self._next = 0.0

    @property
    def wait_s(self) -> float | None:
        """Longest time until :meth:`look`; None: there is nothing to look at."""
        links = (each.link for each in self._watched)
        return LOOK_S if any(each and each.due is not None for each in links) else None

    def add(self, worker: PooledWorker) -> None:
        """It has loaded."""
        if worker.link is not None:
            self._watched[worker] = set()
            self._next = 0.0

    def remove(self, worker: PooledWorker) -> None:
        """It leaves; its link is closed by then or later."""
        for each in self._watched.pop(worker, ()):
            self._selector.unregister(each)

    def look(self) -> None:
        """Ask for connections that are due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_S
        for worker in list(self._watched):
            link = worker.link
            assert link is not None
            if link.due is not None and now >= link.due:
                self._speaks(worker)
                self._settled(worker, partial(_be_late, worker))

    def connected(self, worker: PooledWorker | None, news: News) -> None:
        """A seat has connected, or could not."""
        if worker is None or worker not in self._watched:
            if news.connection is not None:
                news.connection.close()
            return
        assert worker.link is not None
        self._speaks(worker)
        self._settled(worker, partial(worker.link.connected, news.connection, news.error))

    def hear(self, worker: PooledWorker) -> None:
        """One of its descriptors is ready."""
        if worker in self._watched and worker.link is not None:
            self._speaks(worker)
            self._settled(worker, worker.link.hear)

    def server_has_gone(self, worker: PooledWorker) -> bool:
        """Whether its link goes on without it, or for a while."""
        if worker not in self._watched or worker.link is None:
            return False
        left = self._tried(worker, worker.link.leave)
        return left and not worker.link.is_over

    def ran(self, worker: PooledWorker) -> None:
        """A batch has ended."""
        if worker in self._watched:
            self._settled(worker, lambda: None)

    def _settled(self, worker: PooledWorker, work: Callable[[], object]) -> None:
        """Something was done for its link."""

        def do() -> None:
            work()
            self._watch(worker)

        if self._tried(worker, do):
            self._say(worker)

    def _tried(self, worker: PooledWorker, work: Callable[[], object]) -> bool:
        """Whether that could be done: what one link cannot do must not end the others."""
        try:
            work()
        except Exception:
            logging.error(DIED, exc_info=True)
            self._broken(worker)
            return False
        return True

    def _watch(self, worker: PooledWorker) -> None:
        """Wait for what its link waits for now."""
        link = worker.link
        assert link is not None
        wanted, watched = set(link.descriptors), set(self._watched[worker])
        for each in watched - wanted:
            self._selector.unregister(each)
            self._watched[worker].discard(each)
        for each in wanted - watched:
            self._selector.register(each, selectors.EVENT_READ, OfLink(worker))
            self._watched[worker].add(each)

    def _say(self, worker: PooledWorker) -> None:
        link = worker.link
        assert link is not None
        if link.has_batch:
            self._ready(worker)
        elif link.is_over:
            self._over(worker)
