"""The functions that a front end serves, and the workers that run them.

A function is one version of a model. It exists while a worker has it loaded, or a client a session
with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Set

from shunter.batching.queue.attach import Attach, AttachError, peer_process, receive, send
from shunter.batching.queue.layout import WORKER_COUNT
from shunter.batching.queue.size import QueueError, QueueTooLargeError
from shunter.nic_frontend.library import path as library_path
from shunter.nic_frontend.server.absences import GONE, NEVER_CAME, Absences
from shunter.nic_frontend.server.loops import Loops
from shunter.nic_frontend.server.model_policy import Policy
from shunter.nic_frontend.server.readiness import Readiness
from shunter.nic_frontend.server.workers import (
    Function,
    Worker,
    burst_of,
    check_together,
    defaults_of,
    end_stuck,
    queue_of,
    tell,
    try_send,
)
from shunter.nic_frontend.wire.layout import WireStatus

LOGGER = logging.getLogger("shunter.nic")
WORKERLESS_S = 10.0
"""A request waits so long for a function's next worker, when its last one is gone."""


class Functions:
    """All functions of a front end, with their workers."""

    def __init__(
        self,
        path: Loops,
        ready: Readiness,
        *,
        queue_bytes: int,
        free_bytes: Callable[[], float],
        receive_bytes: int,
    ) -> None:
        """None yet.

        ``receive_bytes``: buffer of the socket of each loop.
        """
        self._path = path
        self._ready = ready
        self._queue_bytes, self.free_bytes = queue_bytes, free_bytes
        self._receive_bytes = receive_bytes
        self._functions: dict[int, Function] = {}
        self._workers: dict[int, Worker] = {}
        """By the descriptors of their connections."""
        self._refused = ""
        self.absences = Absences()
        self.default_versions: Mapping[str, str] = {}
        """Of the models of a server: the version of sessions that name none."""
        self.registered: Set[tuple[str, str]] | None = None
        """All models of the server and their versions; None where no server tells of them."""

    def close(self) -> None:
        """Let go of everything; workers see that the front end is gone."""
        for worker in self._workers.values():
            worker.connection.close()
            os.close(worker.doorbell)
        self._workers.clear()

    def close_queues(self) -> None:
        """When the data path does not use them any more."""
        for function in self._functions.values():
            function.close()
        self._functions.clear()

    def all(self) -> list[Function]:
        """Those that have a worker, or had one."""
        return list(self._functions.values())

    def find(self, model: str, version: str) -> Function | None:
        """A function with a worker.

        Without a version that of the model's default version; where no server tells of one, that
        which was attached last.
        """
        version = version or self.default_versions.get(model, "")
        for function in reversed(self._functions.values()):
            wanted = function.model == model and version in ("", function.version)
            if wanted and function.workers:
                return function
        return None

    def why_none(self, model: str, version: str) -> str | None:
        """Why a model has no worker now; None: nobody knows of such a model."""
        if self.registered is not None:
            named = (model, version) in self.registered
            if not (named if version else model in self.default_versions):
                return None
        wanted = version or self.default_versions.get(model, "")
        if reason := self.absences.why(model, wanted, time.monotonic()):
            return reason
        if any((each.model, each.version) == (model, wanted) for each in self.all()):
            return GONE
        return NEVER_CAME if not version and model in self.default_versions else None

    # ---- workers come

    def on_worker(self, listener: socket.socket) -> None:
        """A process wants to attach."""
        connection = self._ready.accept(listener)
        if connection is None:
            return
        if peer_process(connection)[1] != os.getuid():
            LOGGER.warning("a process of another user wanted to attach")
            connection.close()
            return
        self._ready.ask(connection, lambda: self._on_message(connection))

    def _on_message(self, connection: socket.socket) -> None:
        descriptor = connection.fileno()
        worker = self._workers.get(descriptor)
        attach = None
        try:
            content, descriptors = receive(connection)
            for each in descriptors:
                os.close(each)
            if worker is None:
                attach = Attach.from_json(content)
                self._attach(connection, attach)
            elif content == {"leave": True}:
                worker.leaving = True
                self._path.drain_worker(worker.func_id, worker.index)
                tell(self._path, self._functions[worker.func_id])
            elif "unmapped" in content:
                self._functions[worker.func_id].unmapped(worker, content["unmapped"])
        except BlockingIOError:
            return
        except (EOFError, OSError, AttachError, QueueError) as error:
            if worker is not None:
                self._gone(worker)
            else:
                self._refuse(connection, attach, error)

    def _refuse(
        self, connection: socket.socket, attach: Attach | None, error: Exception
    ) -> None:
        """The worker hears why, and so do clients of its model, if it has said which."""
        if attach is not None:
            needs_mb = error.needs_mb if isinstance(error, QueueTooLargeError) else 0
            reason, now = f"its worker was refused: {error}", time.monotonic()
            self.absences.note(attach.model, attach.version, reason, now, needs_mb)
        self._ready.known(connection)
        self._ready.unwatch(connection.fileno())
        if not isinstance(error, EOFError):
            if str(error) != self._refused:  # it tries again and again
                LOGGER.warning("a worker was refused: %s", error)
                self._refused = str(error)
            try_send(connection, {"refused": str(error)})
        connection.close()

    def _attach(self, connection: socket.socket, attach: Attach) -> None:
        for side in (attach.carried_inputs, attach.carried_outputs):
            check_together(side)
        function = self._function(attach)
        free = [i for i in range(WORKER_COUNT) if i not in function.workers]
        if not free:
            raise AttachError(f"{attach.model} has {WORKER_COUNT} workers already")
        doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        worker = Worker.of(connection, function.id, free[0], doorbell, attach)
        library = str(library_path().resolve())
        answer = {"func_id": function.id, "worker": worker.index, "library": library}
        shared = self._path.of_function(function.id).shared
        answer["landing"] = shared.landing.mapping.size
        descriptors = [shared.udp, doorbell, shared.doorbell, shared.landing.reader]
        descriptors += function.queue.descriptors
        try:
            which = function.id, worker.index
            self._path.add_worker(*which, attach.batch, doorbell, attach.pool, attach.yields)
            send(connection, answer, descriptors)
        except OSError:
            with contextlib.suppress(OSError):
                self._path.remove_worker(function.id, worker.index)
            os.close(doorbell)
            raise
        self._path.set_defaults(function.id, defaults_of(attach))
        self._ready.known(connection)
        function.add_worker(worker)
        self.absences.clear(attach.model, attach.version)
        self._workers[connection.fileno()] = worker
        function.slot = attach.slot
        tell(self._path, function)
        LOGGER.info("worker %d (pid %d) serves %s", worker.index, worker.pid, attach.model)

    def _function(self, attach: Attach) -> Function:
        """The function of a model's version, which is made when it is new."""
        for function in filter(lambda each: each.is_version_of(attach), self.all()):
            if function.has_tensors_of(attach):
                return function
            if function.workers:
                raise AttachError(f"{attach.model}: its tensors are not those of its peers")
        func_id = next(i for i in range(1, 1 << 16) if i not in self._functions)
        queue = queue_of(attach, func_id, self._queue_bytes, self.free_bytes)
        burst = burst_of(attach, queue, self._receive_bytes)
        try:
            self._path.add_function(func_id, queue, Policy(), burst)
        except BaseException:
            queue.close()
            raise
        return self._functions.setdefault(func_id, Function(func_id, attach, queue))

    # ---- workers go

    def _gone(self, worker: Worker) -> None:
        """What it had not answered runs elsewhere, or is answered."""
        descriptor = worker.connection.fileno()
        self._ready.unwatch(descriptor)
        del self._workers[descriptor]
        self._path.remove_worker(worker.func_id, worker.index)
        function = self._functions[worker.func_id]
        function.remove_worker(worker)
        if not function.workers:
            self.absences.note(function.model, function.version, GONE, time.monotonic())
        tell(self._path, function)
        os.close(worker.doorbell)
        worker.connection.close()

    def let_go(self) -> None:
        """Workers that want to leave and have answered everything."""
        for worker in self._workers.values():
            wants = worker.leaving and not worker.left
            if wants and self._path.is_idle(worker.func_id, worker.index):
                worker.left = True
                try_send(worker.connection, {"left": True})

    def cycle(self, now_ns: int, *, more_may_come: bool) -> None:
        """From time to time: remove what nobody uses, end who is stuck, answer for who is gone."""
        self._remove_unused()
        for function in self.all():
            function.regions.let_go(self._path.keeps_session, function.workers)
        for worker in end_stuck(self._path, self._workers.values(), now_ns):
            self._gone(worker)
        self._answer_for_nobody(WORKERLESS_S if more_may_come else 0.0)

    def _remove_unused(self) -> None:
        """Functions that have neither workers nor sessions."""
        for function in [each for each in self._functions.values() if not each.workers]:
            with contextlib.suppress(OSError):  # it is in use
                self._path.remove_function(function.id)
                del self._functions[function.id]
                function.close()

    def _answer_for_nobody(self, longest_s: float) -> None:
        """Requests whose function has no worker any more wait for a next one, but not for long."""
        now = time.monotonic()
        for function in self._functions.values():
            if function.alone_for(now) >= longest_s:
                self._path.give_up(function.id, WireStatus.NO_WORKER)

    # ---- the end

    def go_on(self) -> bool:
        """Whether a worker has something to do that it will do."""
        served = [each for each in self._functions.values() if each.has_staying_worker]
        waits = any(self._path.waiting(each.id) > 0 for each in served)
        return waits or (bool(served) and self.is_running())

    def is_running(self) -> bool:
        """Whether a batch runs."""
        return not all(self._path.is_idle(w.func_id, w.index) for w in self._workers.values())

    def drain(self) -> None:
        """No worker gets another batch."""
        for worker in self._workers.values():
            self._path.drain_worker(worker.func_id, worker.index)

    def give_up(self) -> int:
        """Answer what waits that it has not run; how many requests."""
        no_worker = WireStatus.NO_WORKER
        return sum(self._path.give_up(func_id, no_worker) for func_id in self._functions)

    def dismiss(self) -> None:
        """Take leave of all workers."""
        for worker in list(self._workers.values()):
            self._gone(worker)
