"""Streams until they have sessions: each begins with a hello."""

from __future__ import annotations

import logging
import os
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
            here = connection.family == socket.AF_UNIX
            answer = self._reception.on_stream(peer, origin, message, cookie, here=here)
        except (HelloError, OSError):
            connection.close()
            return
        is_sent = _sent(connection, answer.message, answer.memory)
        if answer.memory >= 0:
            os.close(answer.memory)
        if is_sent and answer.session:
            try:
                self._path.add_stream(connection.fileno(), answer.session)
                connection.detach()
                return
            except OSError as error:
                LOGGER.info("a stream ended at its beginning: %s", error)
        connection.close()
        if answer.session:
            self._path.remove_session(answer.session, time.monotonic_ns())


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


def _sent(connection: socket.socket, message: bytes, descriptor: int = -1) -> bool:
    """Whether all of it was taken, with the descriptor: the first messages are small."""
    try:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if descriptor >= 0:
            return socket.send_fds(connection, [message], [descriptor]) == len(message)
        connection.sendall(message)
    except OSError as error:
        LOGGER.info("a stream ended at its beginning: %s", error)
        return False
    return True
