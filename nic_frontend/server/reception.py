"""Hellos, and the sessions that they open."""

from __future__ import annotations

import errno
import logging
import secrets
import time
from collections import OrderedDict
from dataclasses import replace

from shunter.nic_frontend.server.data_path import DataPath
from shunter.nic_frontend.server.functions import Function, Functions
from shunter.nic_frontend.server.sessions import Opening, origin_of
from shunter.nic_frontend.wire.header import Header, WrongHeader, parse
from shunter.nic_frontend.wire.hello import (
    Hello,
    HelloError,
    Opened,
    agreed,
    cookie_is_good,
    cookie_of,
    pack_cookie,
    pack_refusal,
    payload_keys,
    room,
    session_key,
)
from shunter.nic_frontend.wire.layout import HEADER_BYTES, WINDOW, Flags, MessageType, WireStatus

LOGGER = logging.getLogger("shunter.nic")
MOST_OPENED = 512
MOST_BETWEEN = 256
"""Clients that may be between their hellos."""


class HelloTimes:
    """Sum and count of the round trips, in nanoseconds.

    The first hello gets a cookie, and the second one brings it back. The time between them is a way
    to the client, its turn, and the way back. In a session the front end cannot know this: who is
    slow to acknowledge may just have nothing to ask.
    """

    def __init__(self) -> None:
        """None was measured."""
        self.sum_ns = 0
        self.count = 0
        self._sent: OrderedDict[bytes, int | None] = OrderedDict()

    def cookie_sent(self, nonce: bytes, now_ns: int) -> None:
        """A first hello is being answered."""
        # Twice: it will not be known which of the two answers the second hello followed.
        self._sent[nonce] = None if nonce in self._sent else now_ns
        if len(self._sent) > MOST_BETWEEN:
            self._sent.popitem(last=False)

    def came_back(self, nonce: bytes, now_ns: int) -> None:
        """The second hello is here."""
        sent_ns = self._sent.pop(nonce, None)
        if sent_ns is not None:
            self.sum_ns += now_ns - sent_ns
            self.count += 1


class Reception:
    """Opens sessions for clients."""

    def __init__(
        self, path: DataPath, functions: Functions, key: bytes | None, *, encrypt: bool
    ) -> None:
        """``key`` and ``encrypt`` as in the settings. ValueError: it is to encrypt and cannot."""
        self._path = path
        self._functions = functions
        self._key = key
        self._encrypt = encrypt
        self._secret = secrets.token_bytes(16)
        self._opened: OrderedDict[tuple[bytes, Hello], tuple[bytes, int]] = OrderedDict()
        """Hellos that opened the last sessions by datagrams: the answer, and the session."""
        self._no_encryption = path.why_no_encryption() if key else "there is no key"
        if encrypt and self._no_encryption:
            raise ValueError(f"payloads cannot be encrypted: {self._no_encryption}")
        self.settled = 0.0
        """Until then, of the monotonic clock, a client whose model is not known gets no answer,
        and asks again."""
        self._told = ""
        self.is_closed = False
        """No session is opened any more: clients find the next front end."""
        self.hello_times = HelloTimes()

    def on_datagram(self, peer: bytes, datagram: bytes) -> None:
        """A hello, or what claims to be one, came by a datagram."""
        if self.is_closed:
            return  # it asks again, and may find the next front end
        try:
            header = parse(datagram)
            hello = Hello.parse(datagram[HEADER_BYTES:])
        except (WrongHeader, HelloError):
            return
        now = time.monotonic_ns()
        if not cookie_is_good(self._secret, peer, now, hello.cookie):
            payload = pack_cookie(hello.nonce, cookie_of(self._secret, peer, now))
            self._path.reply(peer, _hello_ack(header, WireStatus.RETRY_LATER, payload))
            self.hello_times.cookie_sent(hello.nonce, now)
            return
        self.hello_times.came_back(hello.nonce, now)
        asked = peer, replace(hello, cookie=0)
        answer, session = self._opened.get(asked, (b"", 0))
        if session and self._path.has_session(session):  # the answer was lost, or is late
            self._path.reply(peer, answer)
            return
        answer, session = self._answer(header, hello, peer, origin_of(peer), stream=False)
        if session:
            self._opened[asked] = answer, session
            if len(self._opened) > MOST_OPENED:
                self._opened.popitem(last=False)
        if session or time.monotonic() > self.settled:
            self._path.reply(peer, answer)

    def on_stream(self, peer: bytes, origin: int, message: bytes) -> tuple[bytes, int]:
        """The answer to a stream's first message, and its new session's id, 0 when it gets none.

        ``origin``: whose sessions are counted together.
        Raises HelloError when the message is no hello.
        """
        try:
            header = parse(message)
        except WrongHeader as error:
            raise HelloError(str(error)) from error
        hello = Hello.parse(message[HEADER_BYTES:])
        if header.type != MessageType.HELLO or self.is_closed:
            raise HelloError("a stream begins with a hello, while the front end serves")
        return self._answer(header, hello, peer, origin, stream=True)

    def _answer(
        self, header: Header, hello: Hello, peer: bytes, origin: int, *, stream: bool
    ) -> tuple[bytes, int]:
        """The answer to a hello that may open a session, and the session's id or 0."""
        function = self._functions.find(hello.model, hello.version)
        if function is None:
            return self._no_function(header, hello), 0
        protect = agreed(
            hello.want, can=not self._no_encryption, must=self._encrypt
        )
        if isinstance(protect, WireStatus):
            LOGGER.info("no session for %s: %s", hello.model, self._refusal(protect))
            return _hello_ack(header, protect, hello.nonce), 0
        attach = function.attach
        opened = Opened(
            client_nonce=hello.nonce,
            server_nonce=secrets.token_bytes(16),
            segment=room(hello.segment, protect),
            window=min(hello.window, WINDOW, function.queue.entries),
            inputs=attach.inputs,
            outputs=attach.outputs,
            protect=protect,
        )
        session = self._session(function, hello, opened, peer, stream=stream)
        session.origin = origin
        try:
            grant = self._add(session)
            self._told = ""
        except OSError as error:
            status = WireStatus.RETRY_LATER
            if error.errno == errno.E2BIG:
                status = WireStatus.BAD_REQUEST
            else:
                self._tell(f"no session for {hello.model}: {error}")
            return _hello_ack(header, status, hello.nonce), 0
        return _hello_ack(header, WireStatus.OK, opened.pack(), session, grant), session.id

    def _no_function(self, header: Header, hello: Hello) -> bytes:
        """The answer when a model is not served: there is none, or it has no worker now."""
        reason = self._functions.why_none(hello.model, hello.version)
        if reason is None:
            return _hello_ack(header, WireStatus.UNKNOWN_FUNCTION, hello.nonce)
        return _hello_ack(header, WireStatus.NO_WORKER, pack_refusal(hello.nonce, reason))

    def _tell(self, text: str) -> None:
        """Once, however often it is so."""
        if text != self._told:
            LOGGER.warning("%s", text)
            self._told = text

    def _session(
        self, function: Function, hello: Hello, opened: Opened, peer: bytes, *, stream: bool
    ) -> Opening:
        """Its id is not known yet."""
        key = self._key
        encrypts = key and opened.protect & Flags.PAYLOAD_AEAD
        return Opening(
            id=0,
            func_id=function.id,
            peer=peer,
            segment=opened.segment,
            window=opened.window,
            key=session_key(key, hello.nonce, opened.server_nonce) if key else None,
            stream=stream,
            protect=opened.protect,
            keys=payload_keys(key, hello, opened.pack()) if encrypts else None,
        )

    def _refusal(self, status: WireStatus) -> str:
        if status == WireStatus.MUST_ENCRYPT:
            return "the client does not encrypt"
        return f"the client wants encryption, and {self._no_encryption}"

    def _add(self, session: Opening) -> int:
        """Add a session under a new id; its first grant. Raises OSError when it cannot be."""
        while True:
            session.id = secrets.randbelow((1 << 32) - 1) + 1
            try:
                return self._path.add_session(session, time.monotonic_ns())
            except FileExistsError:  # its place is taken
                continue


def _hello_ack(
    header: Header,
    status: WireStatus,
    payload: bytes,
    session: Opening | None = None,
    grant: int = 0,
) -> bytes:
    answer = Header(
        type=MessageType.HELLO_ACK,
        flags=Flags.LAST,
        req_id=header.req_id,
        length=len(payload),
        status=status,
        credit=grant,
        func_id=session.func_id if session else 0,
        session=session.id if session else 0,
    )
    return answer.pack(session.key if session else None) + payload
