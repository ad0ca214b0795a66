"""How a session begins. Pure.

HELLO names a model and what the client can take. An address that is not known to be the sender's
own gets a cookie back, and nothing that is longer than what it sent; with the cookie the HELLO
opens a session. With a pre-shared key both sides derive the session's key from it and both nonces
(HKDF, RFC 5869), so it is never on the wire and never the same twice.

HELLO also says how payloads are to be protected, and the answer how they are: by nothing, by a
CRC, or encrypted, which needs a pre-shared key. The keys of encryption come from all of what both
have said, so a client and a server whose words were changed on the way do not understand each
other. A client that wants encryption must not go on without it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.wire.header import PROTECTIONS, behind
from shunter.nic_frontend.wire.keys import PayloadKeys
from shunter.nic_frontend.wire.layout import LARGEST_SEGMENT, Flags, WireStatus
from shunter.nic_frontend.wire.siphash import siphash24

NONCE = 16
KEY = 16
COOKIE_NS = 30_000_000_000
"""A cookie is good for this time, and for as long again."""
_HELLO = struct.Struct("<16sQIHH128s64s")
_OPENED = struct.Struct("<16s16sIHH")
_COOKIE = struct.Struct("<16sQ")
_U64 = struct.Struct("<Q")
SMALLEST_SEGMENT = 256


class HelloError(ValueError):
    """The bytes are no hello, or no answer to ours; the message says why."""


@dataclass(frozen=True)
class Hello:
    """What a client says first."""

    BYTES: ClassVar[int] = _HELLO.size
    """Of the payload."""

    nonce: bytes
    model: str
    version: str = ""
    """Empty: the default one."""
    segment: int = 1408
    """Largest payload of a datagram, with what is behind it, that its path takes."""
    window: int = 64
    """Requests that it would like to have on their way."""
    cookie: int = 0
    want: int = 0
    """PAYLOAD_CRC and PAYLOAD_AEAD: how payloads are to be protected."""

    def pack(self) -> bytes:
        """The payload of HELLO."""
        return _HELLO.pack(
            self.nonce,
            self.cookie,
            self.segment,
            self.window,
            self.want,
            self.model.encode(),
            self.version.encode(),
        )

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """The inverse of :meth:`pack`. Raises HelloError."""
        if len(payload) != _HELLO.size:
            raise HelloError(f"{len(payload)} bytes; a hello has {_HELLO.size}")
        nonce, cookie, segment, window, want, model, version = _HELLO.unpack(payload)
        if not SMALLEST_SEGMENT <= segment <= LARGEST_SEGMENT or window < 1:
            raise HelloError(f"segments of {segment} bytes, window {window}")
        if want & ~PROTECTIONS:
            raise HelloError(f"payloads protected by {want:#x}")
        try:
            names = [name.rstrip(b"\0").decode() for name in (model, version)]
        except UnicodeDecodeError as error:
            raise HelloError("a name is not UTF-8") from error
        return cls(nonce, *names, segment, window, cookie, want)


def agreed(want: int, *, can: bool, must: bool) -> int | WireStatus:
    """How payloads of a new session are protected, or why there is none.

    ``can``: the server has a key and a cipher. ``must``: it serves encrypted sessions only.
    """
    if want & Flags.PAYLOAD_AEAD:
        return Flags.PAYLOAD_AEAD if can else WireStatus.CANNOT_ENCRYPT
    return WireStatus.MUST_ENCRYPT if must else want


def room(segment: int, protect: int) -> int:
    """Largest payload where a datagram takes ``segment`` bytes behind its header."""
    return min(segment, LARGEST_SEGMENT) - behind(protect)


def cookie_of(secret: bytes, peer: bytes, now_ns: int) -> int:
    """Proof, never 0, that this address got an answer of ours lately."""
    return siphash24(secret, peer + _U64.pack(now_ns // COOKIE_NS)) or 1


def cookie_is_good(secret: bytes, peer: bytes, now_ns: int, cookie: int) -> bool:
    """Whether the cookie is of this period or of the one before."""
    return cookie in (
        cookie_of(secret, peer, now_ns),
        cookie_of(secret, peer, now_ns - COOKIE_NS),
    )


def pack_cookie(nonce: bytes, cookie: int) -> bytes:
    """The payload of a HELLO_ACK that opens no session."""
    return _COOKIE.pack(nonce, cookie)


def parse_cookie(payload: bytes, nonce: bytes) -> int:
    """The inverse of :func:`pack_cookie`. Raises HelloError for the answer to another hello."""
    if len(payload) != _COOKIE.size or payload[:NONCE] != nonce:
        raise HelloError("not the answer to this hello")
    return int(_COOKIE.unpack(payload)[1])


def pack_refusal(nonce: bytes, reason: str) -> bytes:
    """The payload of a HELLO_ACK that says why there is no session; no longer than a hello."""
    return nonce + reason.encode()[: _HELLO.size - NONCE]


def parse_refusal(payload: bytes, nonce: bytes) -> str:
    """The inverse of :func:`pack_refusal`. Raises HelloError for the answer to another hello."""
    if payload[:NONCE] != nonce:
        raise HelloError("not the answer to this hello")
    return payload[NONCE:].decode(errors="ignore")


@dataclass(frozen=True)
class Opened:
    """What the server says of a session."""

    client_nonce: bytes
    server_nonce: bytes
    segment: int
    window: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    protect: int = 0
    """PAYLOAD_CRC or PAYLOAD_AEAD: what all payloads carry."""

    def pack(self) -> bytes:
        """The payload of a HELLO_ACK that opens a session."""
        specs = {
            kind: [asdict(spec) for spec in getattr(self, kind)] for kind in ("inputs", "outputs")
        }
        numbers = self.segment, self.window, self.protect
        head = _OPENED.pack(self.client_nonce, self.server_nonce, *numbers)
        return head + json.dumps(specs).encode()

    @classmethod
    def parse(cls, payload: bytes, nonce: bytes) -> Opened:
        """The inverse of :meth:`pack`. Raises HelloError."""
        try:
            client, server, segment, window, protect = _OPENED.unpack_from(payload)
            content = json.loads(payload[_OPENED.size :])
            specs = [_specs(content[kind]) for kind in ("inputs", "outputs")]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise HelloError(f"not the description of a function: {error!r}") from error
        if client != nonce:
            raise HelloError("not the answer to this hello")
        return cls(client, server, segment, window, *specs, protect)


def _specs(content: Sequence[dict[str, object]]) -> tuple[TensorSpec, ...]:
    if not 1 <= len(content) <= MAX_TENSORS:
        raise ValueError(f"{len(content)} tensors")
    return tuple(
        TensorSpec(str(spec["name"]), str(spec["dtype"]), tuple(int(n) for n in spec["shape"]))  # type: ignore[attr-defined]
        for spec in content
    )


def session_key(shared: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Key of a session's tags: HKDF-SHA256 over the pre-shared key, salted with both nonces."""
    return _expanded(_extracted(shared, client_nonce + server_nonce), b"shunter x64 tag")


def payload_keys(shared: bytes, hello: Hello, opened: bytes) -> PayloadKeys:
    """Keys of a session's payloads; they come from all that HELLO (but for the cookie, of which
    there may be several) and its answer's payload ``opened`` say."""
    said = hashlib.sha256(replace(hello, cookie=0).pack() + opened).digest()
    extracted = _extracted(shared, opened[: 2 * NONCE])
    return PayloadKeys(
        _expanded(extracted, b"shunter x64 payload to server" + said),
        _expanded(extracted, b"shunter x64 payload to client" + said),
    )


def _extracted(shared: bytes, salt: bytes) -> bytes:
    return hmac.digest(salt, shared, hashlib.sha256)


def _expanded(extracted: bytes, info: bytes) -> bytes:
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)[:KEY]
