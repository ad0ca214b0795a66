"""Streams until they have sessions: each begins with a hello."""

from __future__ import annotations

import logging
import secrets
import socket
import time

from shunter.nic_frontend.server.data_path import DataPath
from shunter.nic_frontend.server.listeners import origin_of_stream
from shunter.nic_frontend.server.readiness import Readiness
from shunter.nic_frontend.server.reception import Reception
from shunter.nic_frontend.wire.hello import NO_COOKIE, Hello, HelloError
from shunter.nic_frontend.wire.layout import HEADER_BYTES

LOGGER = logging.getLogger("shunter.nic")
_HELLO_BYTES = HEADER_BYTES + Hello.BYTES


class NewStreams:
    """Those that come in by one listening socket."""

    def __init__(
        self, listener: socket.socket, ready: Readiness, path: DataPath, reception: Reception
    ) -> None:
        """The listener stays the caller's, who calls :meth:`accept` when it can be read."""
        self._listener, self._ready = listener, ready
        self._path, self._reception = path, reception

    def accept(self) -> None:
        """Somebody connects."""
        connection = self._ready.accept(self._listener)
        if connection is not None:
            stream = _NewStream(connection)
            self._ready.ask(connection, lambda: self._readable(stream))

    def _readable(self, stream: _NewStream) -> None:
        if not stream.read():
            return
        connection, message = stream.connection, bytes(stream.have)
        question = None if stream.asked else self._reception.cookie_for(message, stream.cookie)
        if question is not None and _sent(connection, question):
            stream.asked = True
            stream.have.clear()
            return
        self._ready.known(connection)
        self._ready.unwatch(connection.fileno())
        self._open(connection, message, stream.cookie)

    def _open(self, connection: socket.socket, message: bytes, cookie: bytes) -> None:
        peer = self._path.stream_peer(connection.fileno())
        try:
            origin = origin_of_stream(connection)
            answer, session = self._reception.on_stream(peer, origin, message, cookie)
        except (HelloError, OSError):
            connection.close()
            return
        if _sent(connection, answer) and session:
            try:
                self._path.add_stream(connection.fileno(), session)
                connection.detach()
                return
            except OSError as error:
                LOGGER.info("a stream ended at its beginning: %s", error)
        connection.close()
        if session:
            self._path.remove_session(session, time.monotonic_ns())


class _NewStream:
    """One that has not said all of its hello."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.have = bytearray()
        self.cookie = secrets.token_bytes(len(NO_COOKIE))
        self.asked = False
        """It was asked for its cookie."""

    def read(self) -> bool:
        """Whether there is all of a hello, or no more comes."""
        try:
            data = self.connection.recv(_HELLO_BYTES - len(self.have))
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.have.extend(data)
        return not data or len(self.have) == _HELLO_BYTES


def _sent(connection: socket.socket, message: bytes) -> bool:
    """Whether all of it was taken: the first messages are small."""
    try:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.sendall(message)
    except OSError as error:
        LOGGER.info("a stream ended at its beginning: %s", error)
        return False
    return True
