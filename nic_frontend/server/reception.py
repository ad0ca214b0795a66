"""Hellos, and the sessions that they open."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from shunter.nic_frontend.server.access import KeyRing
from shunter.nic_frontend.server.data_path import DataPath
from shunter.nic_frontend.server.functions import Functions
from shunter.nic_frontend.server.openings import Answer, Openings
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
        path: DataPath,
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
