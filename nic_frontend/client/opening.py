"""How a client opens a session: hello, cookie, hello again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.client.native_client import Keys
from shunter.nic_frontend.client.requests.errors import (
    AuthenticationError,
    BadRequestError,
    error_of,
    no_worker,
)
from shunter.nic_frontend.wire.header import Header, WrongHeader, check_tag, parse
from shunter.nic_frontend.wire.hello import (
    Hello,
    HelloError,
    Opened,
    parse_cookie,
    parse_refusal,
    payload_keys,
    session_key,
)
from shunter.nic_frontend.wire.layout import HEADER_BYTES, Flags, MessageType, WireStatus
from shunter.nic_frontend.wire.segments import SegmentPlan, TooLarge

FIRST_WAIT_NS = 50_000_000
MOST_WAIT_NS = 1_000_000_000
LONGEST_MODEL, LONGEST_VERSION = 128, 64
"""Bytes of the names in a hello."""
_NEVER = 1 << 63


@dataclass(frozen=True)
class OpenSession:
    """What HELLO_ACK said."""

    session: int
    func_id: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    segment: int
    grant: int
    keys: Keys | None
    protect: int
    """PAYLOAD_CRC or PAYLOAD_AEAD: what all payloads carry."""
    trip_ns: int
    """The shortest way to the server and back."""


def check_names(model: str, version: str) -> None:
    """Raises BadRequestError for names that are too long for a hello."""
    for name, most in ((model, LONGEST_MODEL), (version, LONGEST_VERSION)):
        if len(name.encode()) > most:
            raise BadRequestError(f"{name!r} has more than {most} bytes")


class Opening:
    """One try to open a session, which may take several hellos."""

    def __init__(self, hello: Hello, key: bytes | None, *, stream: bool) -> None:
        """``hello`` is the first; its nonce must be new. Raises BadRequestError for long names."""
        check_names(hello.model, hello.version)
        self._hello, self._key, self._stream = hello, key, stream
        self._due_ns, self._wait_ns = 0, FIRST_WAIT_NS
        self._said_ns = 0
        """When this hello was sent first."""

    def next(self, now_ns: int) -> bytes | None:
        """The hello, if it is time to send it."""
        if now_ns < self._due_ns:
            return None
        self._said_ns = self._said_ns or now_ns
        self._due_ns = _NEVER if self._stream else now_ns + self._wait_ns
        self._wait_ns = min(2 * self._wait_ns, MOST_WAIT_NS)
        payload = self._hello.pack()
        header = Header(type=MessageType.HELLO, flags=Flags.LAST, length=len(payload))
        return header.pack() + payload

    def receive(self, datagram: bytes, now_ns: int) -> OpenSession | None:
        """The session when this opens one; what is no answer to the hello means nothing.

        Raises an InferenceError when the server refuses, or has another key.
        """
        try:
            header = parse(datagram)
            if header.type != MessageType.HELLO_ACK:
                return None
            payload = datagram[HEADER_BYTES:]
            if header.session == 0:
                self._not_yet(header, payload, now_ns)
                return None
            return self._opened(header, datagram, Opened.parse(payload, self._hello.nonce), now_ns)
        except (WrongHeader, HelloError):
            return None

    def _not_yet(self, header: Header, payload: bytes, now_ns: int) -> None:
        if header.status == WireStatus.RETRY_LATER and payload != self._hello.nonce:
            cookie = parse_cookie(payload, self._hello.nonce)
            self._hello = replace(self._hello, cookie=cookie)
            self._due_ns, self._wait_ns, self._said_ns = now_ns, FIRST_WAIT_NS, 0
        elif header.status == WireStatus.NO_WORKER:
            raise no_worker(self._hello.model, parse_refusal(payload, self._hello.nonce))
        elif payload == self._hello.nonce and header.status != WireStatus.RETRY_LATER:
            raise error_of(header.status)

    def _opened(
        self, header: Header, datagram: bytes, found: Opened, now_ns: int
    ) -> OpenSession:
        nonces = found.client_nonce, found.server_nonce
        key = session_key(self._key, *nonces) if self._key else None
        try:
            check_tag(header, datagram, key)
        except WrongHeader as error:
            raise AuthenticationError(_whose_key(header, self._key)) from error
        try:
            for specs in (found.inputs, found.outputs):
                SegmentPlan(tuple(spec.bytes for spec in specs), found.segment)
        except TooLarge as error:
            raise BadRequestError(str(error)) from error
        return OpenSession(
            header.session,
            header.func_id,
            found.inputs,
            found.outputs,
            found.segment,
            header.credit,
            self._keys(key, found, datagram[HEADER_BYTES:]),
            found.protect,
            trip_ns=max(1, now_ns - self._said_ns),
        )

    def _keys(self, key: bytes | None, found: Opened, payload: bytes) -> Keys | None:
        if found.protect != self._hello.want:
            raise AuthenticationError("the server does not protect payloads as it was asked to")
        if key is None or self._key is None:
            return None
        if not found.protect & Flags.PAYLOAD_AEAD:
            return Keys(key, key)
        keys = payload_keys(self._key, self._hello, payload)
        return Keys(key, key, keys.to_server, keys.to_client)


def _whose_key(header: Header, key: bytes | None) -> str:
    if not key:
        return "the server wants a key, and there is none"
    if header.flags & Flags.HDR_TAG:
        return "the server has another key"
    return "the server has no key, and must have the one that was given"
