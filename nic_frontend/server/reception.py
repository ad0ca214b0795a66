"""Hellos, by datagrams and by streams, and the sessions that they open."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from shunter.nic_frontend.server.access import KeyRing
from shunter.nic_frontend.server.functions import Functions
from shunter.nic_frontend.server.listeners import origin_of_stream
from shunter.nic_frontend.server.loops import Loops
from shunter.nic_frontend.server.openings import Answer, Openings
from shunter.nic_frontend.server.readiness import Readiness
from shunter.nic_frontend.wire.header import WrongHeader, parse
from shunter.nic_frontend.wire.hello import (
    NO_COOKIE,
    Hello,
    HelloError,
    hello_ack,
    pack_cookie,
)
from shunter.nic_frontend.wire.layout import HEADER_BYTES, MessageType, WireStatus

LOGGER = logging.getLogger("shunter.nic")
MOST_OPENED = 512
_HELLO_BYTES = HEADER_BYTES + Hello.BYTES


@dataclass
class HelloTimes:
    """Sum and count of the round trips, in nanoseconds.

    The first hello gets a cookie, and the second one brings it back. The time between them is a way
    to the client, its turn, and the way back. In a session the front end cannot know this: who is
    slow to acknowledge may just have nothing to ask.
    """

    sum_ns: int = 0
    count: int = 0

    def add(self, trip_ns: int) -> None:
        """A second hello is here."""
        self.sum_ns += trip_ns
        self.count += 1


class Reception:
    """Opens sessions for clients."""

    def __init__(
        self,
        path: Loops,
        functions: Functions,
        keys: KeyRing,
        *,
        encrypt: bool,
        strict: str = "all",
    ) -> None:
        """``encrypt`` and ``strict`` as in the settings.

        Raises ValueError: it is to encrypt and cannot.
        """
        self._path, self.keys = path, keys
        self._openings = Openings(path, functions, keys, encrypt=encrypt, strict=strict)
        self._opened: OrderedDict[tuple[bytes, Hello], tuple[bytes, int]] = OrderedDict()
        """Hellos that opened the last sessions by datagrams: the answer, and the session."""
        self.settled = 0.0
        """Until then, of the monotonic clock, a client whose model is not known gets no answer,
        and asks again."""
        self.is_closed = False
        """No session is opened any more: clients find the next front end."""
        self.hello_times = HelloTimes()

    def on_datagram(self, peer: bytes, origin: int, trip_ns: int, message: bytes) -> None:
        """A hello with a good cookie came by a datagram."""
        if self.is_closed:
            return  # it asks again, and may find the next front end
        try:
            header = parse(message)
            hello = Hello.parse(message[HEADER_BYTES:])
        except (WrongHeader, HelloError):
            return
        asked = peer, replace(hello, cookie=NO_COOKIE)
        answer, session = self._opened.get(asked, (b"", 0))
        if session and self._path.has_session(session):  # the answer was lost, or is late
            self._path.reply(peer, answer)
            return
        self.hello_times.add(trip_ns)
        answer, session, _ = self._openings.answer(
            *(header, hello, message, peer, origin), stream=False
        )
        if session:
            self._opened[asked] = answer, session
            if len(self._opened) > MOST_OPENED:
                self._opened.popitem(last=False)
        if session or time.monotonic() > self.settled:
            self._path.reply(peer, answer)

    def cookie_for(self, message: bytes, cookie: bytes) -> bytes | None:
        """What a stream is asked whose first message does not bring this cookie, if it must.

        Where there are keys: who has heard a hello shall not open sessions with it later.
        """
        if not self.keys or len(message) != HEADER_BYTES + Hello.BYTES:
            return None
        payload = message[HEADER_BYTES:]
        try:
            hello = Hello.parse(payload)
        except HelloError:
            return None
        if hello.cookie == cookie:
            return None
        payload = pack_cookie(hello.nonce, cookie)
        return hello_ack(WireStatus.COOKIE, len(payload)) + payload

    def on_stream(
        self, peer: bytes, origin: int, message: bytes, cookie: bytes, *, here: bool
    ) -> Answer:
        """The answer to a stream's hello.

        ``origin``: whose sessions are counted together. ``cookie``: of :meth:`cookie_for`.
        ``here``: it is a Unix socket. Raises HelloError when the message is no hello.
        """
        try:
            header = parse(message)
        except WrongHeader as error:
            raise HelloError(str(error)) from error
        hello = Hello.parse(message[HEADER_BYTES:])
        if header.type != MessageType.HELLO or self.is_closed:
            raise HelloError("a stream begins with a hello, while the front end serves")
        if self.keys and hello.cookie != cookie:
            raise HelloError("not the cookie that it was asked for")
        return self._openings.answer(
            *(header, hello, message, peer, origin), stream=True, here=here
        )

    def end_sessions(self, *, force: bool = False) -> None:
        """End those of keys that are good no more; read the keys if they have changed."""
        for number in self.keys.refresh(time.time(), force=force):
            if count := self._path.remove_key(number, time.monotonic_ns()):
                LOGGER.info("%d sessions ended with their key", count)


class NewStreams:
    """Those that come in by one listening socket."""

    def __init__(
        self, listener: socket.socket, ready: Readiness, path: Loops, reception: Reception
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
