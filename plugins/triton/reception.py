"""Where workers attach: they are checked here and handed over to the backend in the server.

From then on a worker is the backend's, with its connection. This process may end: the server goes
on with the workers that it has, and workers that come meanwhile wait for the next reception.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from shunter.batching.queue.attach import (
    Attach,
    AttachError,
    listen,
    peer_process,
    receive,
    send,
)
from shunter.plugins.errors import UserError
from shunter.plugins.triton.backend import Backend, BackendGone
from shunter.plugins.triton.published import Told

LOGGER = logging.getLogger("shunter.triton")
LOOK_S = 0.2
"""How often a backend is looked for, while there is none."""
GREET_S = 10.0
"""So long a worker may take to say who it is."""
EXPECT_S = 0.5
"""So long a backend may take to hear of workers that are coming."""
_LONGEST_VERSION = 18
"""Digits; Triton counts in 64 bits."""


class Reception:
    """A thread that takes workers in."""

    def __init__(self, attach_at: Path, backend_at: Path, free_bytes: Callable[[], float]) -> None:
        """Listen; ``backend_at`` is where the backend does. Raises OSError."""
        self._listener, self.path = listen(attach_at), attach_at
        self._backend_at, self._free_bytes = backend_at, free_bytes
        self._greeting: dict[socket.socket, float] = {}
        """Have not said yet who they are, and until when they may."""
        self._pending: list[tuple[socket.socket, Attach]] = []
        """Wait for a backend."""
        self._told = ""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="reception", daemon=True)
        self.refusals: dict[int, tuple[str, str]] = {}
        """Of each process that was refused last time: its model and why."""
        self.policies: dict[tuple[str, int], Told] = {}
        """Numbers to decide by, of model versions: the backend gets them with each worker."""
        self.capacities: dict[tuple[str, int], int] = {}
        """How many requests of a model version may wait, where that is said."""

    def start(self) -> None:
        """From now on workers are taken in."""
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Workers that were handed over stay with the backend."""
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for connection in (*self._greeting, *(each for each, _ in self._pending)):
            connection.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)
        os.close(self._wake)

    def _run(self) -> None:
        while True:
            waiting = [self._wake, self._listener, *self._greeting]
            waiting += [each for each, _ in self._pending]
            look_s = LOOK_S if self._pending or self._greeting else None
            ready = select.select(waiting, [], [], look_s)[0]
            if self._wake in ready:
                return
            if self._listener in ready:
                self._accept()
            for each in [each for each in self._pending if each[0] in ready]:
                self._pending.remove(each)  # it said more, or is gone: it may come again
                each[0].close()
            now = time.monotonic()
            for connection, end in list(self._greeting.items()):
                if connection in ready:
                    del self._greeting[connection]
                    self._hear(connection)
                elif now > end:
                    del self._greeting[connection]
                    connection.close()
            self._hand_over()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if peer_process(connection)[1] != os.getuid():
            LOGGER.warning("a process of another user wanted to attach")
            connection.close()
            return
        connection.setblocking(False)
        self._greeting[connection] = time.monotonic() + GREET_S

    def _hear(self, connection: socket.socket) -> None:
        try:
            content, descriptors = receive(connection)
            for each in descriptors:
                os.close(each)
            attach = Attach.from_json(content)
            version = attach.version
            if version and not (version.isdecimal() and len(version) <= _LONGEST_VERSION):
                raise AttachError(f"version {version!r}; allowed: a number")
            self._pending.append((connection, attach))
        except Exception as error:  # what one says must not end the others' reception
            self._refuse(connection, "", error)

    def _hand_over(self) -> None:
        if not self._pending:
            return
        try:
            with Backend(self._backend_at) as backend:
                while self._pending:
                    self._attach(backend, *self._pending.pop(0))
        except BackendGone:
            return  # there will be another
        except UserError as error:
            if str(error) != self._told:
                LOGGER.error("%s", error)
            self._told = str(error)

    def _attach(self, backend: Backend, connection: socket.socket, attach: Attach) -> None:
        try:
            which = attach.model, int(attach.version or 1)
            if policy := self.policies.get(which):
                backend.set_policy(*which, policy, self.capacities.get(which, 0))
            backend.attach(attach, connection, self._free_bytes())
        except BackendGone:
            # It may have been attached: the backend has its connection then. Else it comes again.
            connection.close()
            raise
        except Exception as error:  # its numbers, or no memory
            self._refuse(connection, attach.model, error)
        else:
            self.refusals.pop(peer_process(connection)[0], None)
            connection.close()

    def _refuse(self, connection: socket.socket, model: str, error: Exception) -> None:
        if not isinstance(error, EOFError):
            pid, refusal = peer_process(connection)[0], (model, str(error) or repr(error))
            if refusal not in self.refusals.values():  # it tries again and again
                LOGGER.warning("a worker of %s was refused: %s", model or "a model", refusal[1])
            for gone in [each for each in self.refusals if not Path(f"/proc/{each}").exists()]:
                del self.refusals[gone]
            self.refusals[pid] = refusal
            with contextlib.suppress(OSError):  # it is gone
                send(connection, {"refused": str(error)})
        connection.close()


def expect(backend_at: Path, coming: Collection[tuple[str, int]]) -> None:
    """Requests of these model versions shall wait for workers that are being started.

    It is said again and again, so one that hangs is not waited for.
    """
    with contextlib.suppress(BackendGone, UserError):
        if coming:
            with Backend(backend_at, EXPECT_S) as backend:
                for name, version in coming:
                    backend.expect(name, version)
