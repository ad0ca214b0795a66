"""What the front end waits for besides requests: connections, and who has not said who it is."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable

MOST_UNKNOWN = 256
"""Connections that have not said who they are; of more, the oldest is closed."""
HELLO_S = 2.0
"""So long they may take."""


class Readiness:
    """Descriptors with what to do when they can be read."""

    def __init__(self) -> None:
        """Nothing is watched."""
        self._epoll = select.epoll()
        self._then: dict[int, Callable[[], None]] = {}
        self._resting: dict[int, Callable[[], None]] = {}
        """Listeners that are not looked at for a while: there are no descriptors."""
        self._unknown: dict[socket.socket, float] = {}
        """Connections that have not said who they are, and until when they may."""

    def fileno(self) -> int:
        """Readable when something that is watched is."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Watch nothing, and close who has not said who it is."""
        for connection in self._unknown:
            connection.close()
        self._unknown.clear()
        self._epoll.close()

    def watch(self, descriptor: int, then: Callable[[], None]) -> None:
        """Call ``then`` whenever it can be read."""
        self._then[descriptor] = then
        self._epoll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Before it is closed."""
        if self._resting.pop(descriptor, None):
            return
        del self._then[descriptor]
        self._epoll.unregister(descriptor)

    def handle(self) -> bool:
        """Do what is to be done now; whether there was anything."""
        ready = self._epoll.poll(0)
        for descriptor, _ in ready:
            if then := self._then.get(descriptor):
                then()
        return bool(ready)

    def cycle(self) -> None:
        """From time to time: listeners have rested, and connections may have been silent."""
        while self._resting:
            self.watch(*self._resting.popitem())
        now = time.monotonic()
        for connection in [each for each, until in self._unknown.items() if now > until]:
            self._drop(connection)

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """A connection, None when there is none, or no descriptor for it."""
        try:
            connection = listener.accept()[0]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                descriptor = listener.fileno()
                then = self._then[descriptor]
                self.unwatch(descriptor)
                self._resting[descriptor] = then
            return None
        connection.setblocking(False)
        return connection

    def ask(self, connection: socket.socket, then: Callable[[], None]) -> None:
        """Watch a connection that must soon say who it is, and be :meth:`known`."""
        if len(self._unknown) >= MOST_UNKNOWN:
            self._drop(next(iter(self._unknown)))
        self._unknown[connection] = time.monotonic() + HELLO_S
        self.watch(connection.fileno(), then)

    def known(self, connection: socket.socket) -> None:
        """It has said who it is, or nonsense; it is watched as before."""
        self._unknown.pop(connection, None)

    def _drop(self, connection: socket.socket) -> None:
        self.known(connection)
        self.unwatch(connection.fileno())
        connection.close()
