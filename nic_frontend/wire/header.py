"""The X64 header: bytes to numbers and back, and what makes a header wrong. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

from shunter.nic_frontend.wire.layout import (
    HEADER_BYTES,
    TAG_OFFSET,
    WIRE_MAGIC,
    WIRE_VERSION,
    X64,
    X64_STRUCT,
    Flags,
    MessageType,
)
from shunter.nic_frontend.wire.siphash import siphash24

_STRUCT = struct.Struct(X64_STRUCT)
_U64 = struct.Struct("<Q")
_KNOWN_FLAGS = sum(Flags)
_TYPES = frozenset(map(int, MessageType))
_TAGGED, _ENCRYPTED = int(Flags.HDR_TAG), int(Flags.PAYLOAD_AEAD)
_WORDS = HEADER_BYTES // 8
_LOW = 1 << 32
AEAD_TAG = 16
"""Bytes behind an encrypted payload."""
PROTECTIONS = Flags.PAYLOAD_AEAD | Flags.PAYLOAD_CRC
"""What the payloads of a session carry, REQ and RESP alike, is at most one of these."""


class WrongHeader(ValueError):
    """A datagram that is dropped; ``reason`` is the counter it goes to."""

    def __init__(self, reason: str) -> None:
        """``reason``: one of :data:`REASONS`."""
        super().__init__(reason)
        self.reason = reason


REASONS = ("short", "magic", "version", "type", "flags", "words", "reserved", "length", "tag")
"""What :func:`parse` and :func:`check_tag` find wrong."""


class Header(NamedTuple):
    """The fields of X64 in their order; see :data:`shunter.nic_frontend.wire.layout.X64`."""

    magic: int = WIRE_MAGIC
    version: int = WIRE_VERSION
    type: int = 0
    flags: int = 0
    words: int = _WORDS
    priority: int = 0
    req_id: int = 0
    func_id: int = 0
    seq: int = 0
    count: int = 1
    length: int = 0
    total: int = 0
    offset: int = 0
    session: int = 0
    deadline_us: int = 0
    credit: int = 0
    status: int = 0
    tensor: int = 0
    reserved: int = 0
    crc: int = 0
    pkt_no: int = 0
    tag: int = 0

    def pack(self, key: bytes | None = None) -> bytes:
        """The bytes; with a key the tag is computed and its flag set."""
        if key is None:
            return _STRUCT.pack(*self)
        data = _STRUCT.pack(*self._replace(flags=self.flags | _TAGGED))[:TAG_OFFSET]
        return data + _U64.pack(siphash24(key, data))


assert list(Header._fields) == [field.name for field in X64]


def parse(datagram: bytes | bytearray, length: int | None = None) -> Header:
    """Header of a datagram whose payload has the length that it says. Raises WrongHeader.

    ``length``: of the whole datagram, if only its beginning is given.
    """
    length = len(datagram) if length is None else length
    if min(length, len(datagram)) < HEADER_BYTES:
        raise WrongHeader("short")
    header = unpack(datagram)
    if (
        header[:2] == (WIRE_MAGIC, WIRE_VERSION)
        and header.type in _TYPES
        and not header.flags & ~_KNOWN_FLAGS
        and header.words == _WORDS
        and header.reserved == 0
        and length == HEADER_BYTES + header.length + behind(header.flags)
    ):
        return header
    raise WrongHeader(_reason(header))


def _reason(header: Header) -> str:
    """What is wrong with the fields of a header; if nothing else, its length."""
    checks = (
        ("magic", header.magic != WIRE_MAGIC),
        ("version", header.version != WIRE_VERSION),
        ("type", header.type not in _TYPES),
        ("flags", header.flags & ~_KNOWN_FLAGS != 0),
        ("words", header.words != _WORDS),
        ("reserved", header.reserved != 0),
    )
    return next((reason for reason, is_wrong in checks if is_wrong), "length")


def unpack(data: bytes | bytearray) -> Header:
    """The fields, whatever they say; ``data`` begins with a header."""
    return Header._make(_STRUCT.unpack_from(data))


def behind(flags: int) -> int:
    """Bytes behind the payload of a datagram with these flags."""
    return AEAD_TAG if flags & _ENCRYPTED else 0


def check_tag(header: Header, datagram: bytes | bytearray, key: bytes | None) -> None:
    """The tag must be right where there is a key, and absent where there is none.

    Raises WrongHeader.
    """
    tagged = bool(header.flags & _TAGGED)
    if key is None:
        if tagged or header.tag != 0:
            raise WrongHeader("tag")
    elif not tagged or siphash24(key, bytes(datagram[:TAG_OFFSET])) != header.tag:
        raise WrongHeader("tag")


def nearest(low: int, about: int) -> int:
    """The number with these low 32 bits that is nearest to ``about`` >= 0.

    >>> nearest(5, 2**32 + 1) - 2**32, nearest(2**32 - 1, 2**32 + 1)
    (5, 4294967295)
    """
    number = about - about % _LOW + low
    if number > about + _LOW // 2:
        number -= _LOW
    elif number <= about - _LOW // 2:
        number += _LOW
    return max(0, number)
