"""The models of many seats in one process: one thread, one batch at a time.

Each seat has what a worker of its own would have: a socket where its server connects, a
connection, a model. Whose batch is next says :meth:`PooledModels.next_of`. A seat whose model
cannot be shared goes on as a worker of its own.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import time
from collections.abc import Callable, Sequence

from ts.service import Service

from shunter.allocator.memory.scheduling import Waiting
from shunter.handlers.placement import allocation
from shunter.handlers.pool.models import PooledModels
from shunter.handlers.pool.reception import Reception, Seat
from shunter.handlers.pool.report import Report
from shunter.handlers.pool.sharable import NotSharable
from shunter.handlers.pool.thread_state import set_aside
from shunter.handlers.torchserve.connection import DIED
from shunter.handlers.torchserve.inbox import Disconnected
from shunter.handlers.torchserve.pool.links import Links, OfLink
from shunter.handlers.torchserve.pool.passing import Passing
from shunter.handlers.torchserve.pool.pooled import Kind, PooledWorker
from shunter.handlers.torchserve.pool.speaking import Speaker
from shunter.handlers.torchserve.receive import LOAD
from shunter.handlers.weights.hot_memory import NoRoom

PATIENCE_S = 30.0
"""A process whose first seat has not come by then was started for one that is gone."""

logger = logging.getLogger("shunter.pool")


def worker_of(said: PooledWorker | OfLink | None) -> PooledWorker | None:
    """Of whom something has come; None: it is news."""
    return said.worker if isinstance(said, OfLink) else said


class PoolProcess:
    """For the thread that runs the batches."""

    def __init__(
        self, reception: Reception, models: PooledModels[Service], report: Report
    ) -> None:
        """``models``: none yet."""
        self._reception, self._models, self._report = reception, models, report
        self._selector = selectors.DefaultSelector()
        self._selector.register(reception.wake, selectors.EVENT_READ)
        self._workers: dict[Seat, PooledWorker] = {}
        self._loads: list[PooledWorker] = []
        self._batches: dict[str, PooledWorker] = {}
        """Workers with a batch that waits, by the name of their model."""
        self._leaving: list[PooledWorker] = []
        self._alone: dict[Kind, str] = {}
        """Models that cannot be shared, and why."""
        self._titles: dict[str, str] = {}
        """Of the models, by their names."""
        self._speaker = Speaker()
        self._links = Links(
            *(self._selector, self._has_batch, lambda each: self._leave(each, 0)),
            lambda each: self._speaker.be(each.seat),
            lambda each: self._leave(each, 1),
        )
        self._without_room: set[str] = set()
        """Models for which there is none beside the batch that is at work."""
        self._passing = Passing(self._listen, self._that_pass, self._run_inside)
        self._at_work: PooledWorker | None = None
        """Whose batch runs, or stands still: what comes for it waits."""
        self._count = 0

    def serve(self) -> None:
        """Until the last seat has gone."""
        patience = time.monotonic() + PATIENCE_S
        while True:
            is_over = not self._workers and (self._count or time.monotonic() > patience)
            if is_over and self._reception.is_over():
                return
            self._tidy()
            self._links.look()
            waits = [self._report.look(self._titles)]
            if self._loads or self._batches:
                waits = [0.0]
            else:
                patient_s = None if self._workers else max(0.0, patience - time.monotonic())
                waits += [self._links.wait_s, patient_s]
            wait_s = min((each for each in waits if each is not None), default=None)
            for key, _ in self._selector.select(wait_s):
                self._heed(key.data)
            if self._batches:
                self._run_batch()
            if self._loads:
                self._load(self._loads.pop(0))

    # ---- who is there

    def _heed(self, said: PooledWorker | OfLink | None) -> None:
        """Something has come; what is of somebody who has left meanwhile has not."""
        if said is None:
            self._hear_news()
        elif isinstance(said, OfLink):
            self._links.hear(said.worker)
        elif said.seat in self._workers:
            self._hear(said)

    def _hear_news(self) -> None:
        os.eventfd_read(self._reception.wake)
        while self._reception.news:
            news = self._reception.news.popleft()
            if news.is_new:
                self._welcome(news.seat)
            elif news.connection is not None or news.error:
                self._links.connected(self._workers.get(news.seat), news)
            else:
                if worker := self._workers.get(news.seat):
                    self._leave(worker)
                if news.seat is self._speaker.seat:
                    self._speaker.be(None)
                news.seat.close()

    def _welcome(self, seat: Seat) -> None:
        self._count += 1
        self._speaker.be(seat)
        worker = PooledWorker(seat, self._count, self._models.usual, self._passing)
        self._workers[seat] = worker
        try:
            self._selector.register(worker.listen(), selectors.EVENT_READ, worker)
        except (Exception, SystemExit):
            logger.error("The worker did not start.", exc_info=True)
            self._leave(worker, 1)

    def _hear(self, worker: PooledWorker) -> None:
        """It is connected to, or its server says something."""
        if worker.connection is None:
            self._selector.unregister(*worker.watched())
            self._selector.register(worker.accept(), selectors.EVENT_READ, worker)
            return
        said = None if worker.name in self._batches else worker.look()
        if said is None:
            return
        if said == LOAD and not worker.is_loaded:
            if worker not in self._loads:
                self._loads.append(worker)
        elif said and worker.is_loaded and worker.link is None:
            self._has_batch(worker)
        elif not said and self._links.server_has_gone(worker):
            self._selector.unregister(*worker.watched())
        else:
            self._speaker.be(worker.seat)
            logging.info("Frontend disconnected." if not said else DIED)
            self._leave(worker, 1 if said else 0)

    def _has_batch(self, worker: PooledWorker) -> None:
        if worker.name not in self._batches:
            worker.since = time.monotonic()
            self._batches[worker.name] = worker

    def _leave(self, worker: PooledWorker, status: int | None = None) -> None:
        """It is served no more. ``status``: of its process, unless that is gone already."""
        if self._workers.pop(worker.seat, None) is None:
            return
        self._links.remove(worker)
        for each in worker.watched():
            if each in self._selector.get_map():
                self._selector.unregister(each)
        self._batches.pop(worker.name, None)
        if worker in self._loads:
            self._loads.remove(worker)
        self._leaving.append(worker)
        if status is not None:
            self._speaker.flush()
            worker.seat.end(status)
        worker.close()

    def _tidy(self) -> None:
        """What they had is free again."""
        if not self._leaving:
            return
        for worker in self._leaving:
            self._titles.pop(worker.name, None)
            if worker.is_loaded:
                self._models.unregister(worker.name)
        self._leaving.clear()
        gc.collect()
        allocation.give_back()

    # ---- what is done for them

    def _run_batch(self) -> None:
        waiting = [
            Waiting(name, each.since, each.is_strict) for name, each in self._batches.items()
        ]
        worker = self._at_work = self._batches.pop(self._models.next_of(waiting))
        try:
            with self._passing.opened():
                was_begun = self._do(
                    worker, lambda: self._models.run(worker.name, lambda _: worker.step())
                )
        finally:
            self._at_work = None
            self._without_room.clear()
        if not was_begun:
            self._models.skip()
        self._ran(worker)

    def _ran(self, worker: PooledWorker) -> None:
        """Its batch has ended; another one may be there already."""
        if threads := self._models.threads.found.pop(worker.name, ""):
            worker.be_alone_next(self._alone, f"it has threads of its own: {threads}")
        self._links.ran(worker)
        if worker.has_more and worker.seat in self._workers:
            self._hear(worker)

    # ---- while a batch stands still

    def _listen(self) -> None:
        """What has come, without waiting; but for who is at work, whose messages lie in use."""
        assert self._at_work is not None
        busy = {self._at_work, *self._batches.values()}
        said = [key.data for key, _ in self._selector.select(0)]
        if new := [each for each in said if worker_of(each) not in busy]:
            with set_aside():  # what hears them is no part of that batch
                for each in new:
                    self._heed(each)
        if self._at_work.seat in self._workers:
            self._speaker.be(self._at_work.seat)

    def _that_pass(self) -> list[Waiting]:
        return [
            Waiting(name, each.since)
            for name, each in self._batches.items()
            if each.may_pass
            and name not in self._without_room
            and self._models.weights.may_come_beside(name)
        ]

    def _run_inside(self, waiting: Sequence[Waiting]) -> None:
        """The next of these, in the midst of the batch that stands still."""

        def run(name: str, _: Service) -> PooledWorker:
            worker = self._batches.pop(name)
            self._do(worker, worker.step)
            return worker

        try:
            ran = self._models.inside(waiting, run)
        except NoRoom as error:  # they run when this batch has ended
            logger.warning("Not beside %s: %s", self._at_work and self._at_work.name, error)
            self._without_room.update(each.name for each in waiting)
            return
        self._ran(ran)
        assert self._at_work is not None
        self._speaker.be(self._at_work.seat)

    def _load(self, worker: PooledWorker) -> None:
        self._do(worker, lambda: self._load_now(worker), loads=True)
        self._links.add(worker)
        if worker.is_loaded and worker.seat in self._workers:
            self._titles[worker.name] = worker.title

    def _load_now(self, worker: PooledWorker) -> None:
        try:
            worker.load(self._models, self._alone)
        except NotSharable as error:
            logger.warning("The model has a process of its own: %s", error)
            self._speaker.flush()
            worker.be_alone()
            self._leave(worker)

    def _do(
        self, worker: PooledWorker, work: Callable[[], object], *, loads: bool = False
    ) -> bool:
        """Work that may last, for a worker whose server may lose patience; whether it was begun."""
        if not self._reception.begin(worker.seat, loads=loads):
            return False  # that is news
        self._speaker.be(worker.seat)
        try:
            work()
        except (Disconnected, ConnectionError):
            logging.info("Frontend disconnected.")
            self._leave(worker, 0)
        except SystemExit as error:
            code = error.code
            self._leave(worker, code if isinstance(code, int) else 0 if code is None else 1)
        except Exception as error:
            if not worker.was_refused:
                logging.error(DIED, exc_info=error)
            self._leave(worker, 1)
        finally:
            self._reception.end()
        return True
