"""How a session begins. Pure.

HELLO names a model and what the client can take. An address that is not known to be the sender's
own gets a cookie back, and nothing that is longer than what it sent; with the cookie the HELLO
opens a session. Where the server has keys, HELLO names one and proves by a MAC that the client has
it, and HELLO_ACK proves the same of the server: see :mod:`shunter.nic_frontend.wire.keys`.

HELLO also says how payloads are to be protected, and the answer how they are: by nothing, by a
CRC, or encrypted, which needs a key. A client that wants encryption must not go on without it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.batching.queue.packed_form import PackedForm, must_be_packed
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.wire.header import PROTECTIONS, Header, behind
from shunter.nic_frontend.wire.keys import hello_mac
from shunter.nic_frontend.wire.layout import (
    COOKIE,
    HELLO,
    HELLO_FIELDS,
    LARGEST_SEGMENT,
    MAC_BYTES,
    OPENED,
    SMALLEST_SEGMENT,
    WANT_SHARED_MEMORY,
    Flags,
    MessageType,
    Rights,
    WireStatus,
    format_of,
)

_HELLO, _OPENED, _COOKIE = map(struct.Struct, map(format_of, (HELLO, OPENED, COOKIE)))
NONCE, NO_COOKIE, NO_PUBLIC, NO_MAC = 16, bytes(16), bytes(32), bytes(MAC_BYTES)
LONGEST = {name: HELLO_FIELDS[name][1].count for name in ("model", "version", "key_id")}
"""Bytes of the names in a hello."""
DEFAULT_KEY = "default"
"""Id of a key that has no other."""


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
    cookie: bytes = NO_COOKIE
    want: int = 0
    """PAYLOAD_CRC and PAYLOAD_AEAD: how payloads are to be protected; WANT_SHARED_MEMORY."""
    key_id: str = ""
    public: bytes = NO_PUBLIC
    """Of X25519, where payloads are to be encrypted."""

    @property
    def protect(self) -> int:
        """How payloads are to be protected."""
        return self.want & ~WANT_SHARED_MEMORY

    def pack(self, mac: bytes = NO_MAC) -> bytes:
        """The payload of HELLO."""
        return _HELLO.pack(
            self.nonce,
            self.cookie,
            self.segment,
            self.window,
            self.want,
            self.key_id.encode(),
            self.public,
            self.model.encode(),
            self.version.encode(),
            mac,
        )

    def message(self, secret: bytes | None) -> bytes:
        """The whole of HELLO; with the secret of its key its MAC is computed."""
        header = Header(type=MessageType.HELLO, flags=Flags.LAST, length=self.BYTES)
        message = (header.pack() + self.pack())[:-MAC_BYTES]
        return message + (hello_mac(secret, message) if secret else NO_MAC)

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """The inverse of :meth:`pack`, whatever its MAC. Raises HelloError."""
        if len(payload) != _HELLO.size:
            raise HelloError(f"{len(payload)} bytes; a hello has {_HELLO.size}")
        nonce, cookie, segment, window, want, *names, _ = _HELLO.unpack(payload)
        if not SMALLEST_SEGMENT <= segment <= LARGEST_SEGMENT or window < 1:
            raise HelloError(f"segments of {segment} bytes, window {window}")
        if want & ~(PROTECTIONS | WANT_SHARED_MEMORY):
            raise HelloError(f"it wants {want:#x}")
        public = names.pop(1)
        try:
            key_id, model, version = (name.rstrip(b"\0").decode() for name in names)
        except UnicodeDecodeError as error:
            raise HelloError("a name is not UTF-8") from error
        return cls(nonce, model, version, segment, window, cookie, want, key_id, public)


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


def hello_ack(
    status: WireStatus,
    length: int,
    req_id: int = 0,
    session: int = 0,
    func_id: int = 0,
    grant: int = 0,
) -> bytes:
    """The header of a HELLO_ACK; session, function and grant are of the one that it opens."""
    return Header(
        type=MessageType.HELLO_ACK,
        flags=Flags.LAST,
        req_id=req_id,
        func_id=func_id,
        length=length,
        session=session,
        credit=grant & 0xFFFFFFFF,
        status=status,
    ).pack()


def pack_cookie(nonce: bytes, cookie: bytes) -> bytes:
    """The payload of a HELLO_ACK that wants another HELLO, with this cookie."""
    return _COOKIE.pack(nonce, cookie)


def parse_cookie(payload: bytes, nonce: bytes) -> bytes:
    """The inverse of :func:`pack_cookie`. Raises HelloError for the answer to another hello."""
    if len(payload) != _COOKIE.size or payload[:NONCE] != nonce:
        raise HelloError("not the answer to this hello")
    return payload[NONCE:]


def pack_refusal(nonce: bytes, reason: str = "") -> bytes:
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
    rights: int = Rights.STRICT
    public: bytes = NO_PUBLIC
    """Of X25519, where payloads are encrypted."""
    packing: PackedForm | None = None
    """Where requests and answers are runs of bytes."""
    rows: int = 1
    """Most of a request there."""

    def pack(self) -> bytes:
        """The payload of a HELLO_ACK that opens a session, before its MAC."""
        content: dict[str, object] = {
            kind: [asdict(spec) for spec in getattr(self, kind)] for kind in ("inputs", "outputs")
        }
        head = _OPENED.pack(
            self.client_nonce,
            self.server_nonce,
            self.segment,
            self.window,
            self.protect,
            self.rights,
            *(0, 0, 0),
            self.public,
        )
        if self.packing is not None:
            content["packed"] = {**asdict(self.packing), "rows": self.rows}
        return head + json.dumps(content).encode()

    @classmethod
    def parse(cls, payload: bytes, nonce: bytes) -> Opened:
        """The inverse of :meth:`pack`. Raises HelloError."""
        try:
            client, server, segment, window, protect, rights, *_, public = _OPENED.unpack_from(
                payload
            )
            content = json.loads(payload[_OPENED.size :])
            specs = [_specs(content[kind]) for kind in ("inputs", "outputs")]
            packing, rows = _packing(content.get("packed"), *specs)
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise HelloError(f"not the description of a function: {error!r}") from error
        if client != nonce:
            raise HelloError("not the answer to this hello")
        return cls(client, server, segment, window, *specs, protect, rights, public, packing, rows)


def _packing(
    content: dict[str, Any] | None, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> tuple[PackedForm | None, int]:
    """What a server may add later is not needed to understand it."""
    if content is None:
        if must_be_packed(inputs, outputs):
            raise ValueError("tensors of any size, and no packing")
        return None, 1
    form = PackedForm(**{each.name: content[each.name] for each in fields(PackedForm)})
    form.check(inputs, outputs)
    rows = content["rows"]
    if type(rows) is not int or not 1 <= rows < 1 << 16:
        raise ValueError(f"{rows!r} rows")
    return form, rows


def _specs(content: Sequence[dict[str, object]]) -> tuple[TensorSpec, ...]:
    if not 1 <= len(content) <= MAX_TENSORS:
        raise ValueError(f"{len(content)} tensors")
    return tuple(
        TensorSpec(str(spec["name"]), str(spec["dtype"]), tuple(int(n) for n in spec["shape"]))  # type: ignore[attr-defined]
        for spec in content
    )
