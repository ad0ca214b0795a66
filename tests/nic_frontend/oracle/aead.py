"""What protects payloads: AES-128-GCM and CRC32C. Twin of ``c/crypto/aead.c``.

A session protects the payloads of REQ and RESP, which are tensors, in one of these ways or in
none. A bitmap says nothing of them: who changes one on its way costs a repetition.

Nonce: four bytes 0, then the datagram's number, of which the header has the low 32 bits; each
direction has its own key, and nothing is sent twice under one number. Associated data: the header
before its tag. Only encryption needs the package ``cryptography``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from shunter.nic_frontend.wire.keys import Keys
from shunter.nic_frontend.wire.layout import TAG_OFFSET, X64_FIELDS, Flags
from shunter.nic_frontend.wire.siphash import siphash24

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE, _CRC, _TAG = struct.Struct("<4xQ"), struct.Struct("<I"), struct.Struct("<Q")
_CRC_AT = X64_FIELDS["crc"][0]
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, its bits reversed."""


def with_crc(header: bytes, crc: int, key: bytes | None) -> bytes:
    """A packed header that tells the payload's CRC, with a tag if there is a key."""
    data = header[:_CRC_AT] + _CRC.pack(crc) + header[_CRC_AT + _CRC.size : TAG_OFFSET]
    return data + (_TAG.pack(siphash24(key, data)) if key else header[TAG_OFFSET:])


@lru_cache(maxsize=256)
def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


@dataclass(frozen=True)
class Guard:
    """Protects the payloads of one session, seen from one end."""

    protect: int
    """PAYLOAD_CRC or PAYLOAD_AEAD."""
    tag_key: bytes | None
    """Of the headers that are sent."""
    seal_key: bytes = b""
    open_key: bytes = b""

    def seal(
        self, header: bytes, number: int, payload: bytes | memoryview
    ) -> tuple[bytes, bytes | memoryview]:
        """Header and payload as they are sent; ``number``: all bits of the datagram's number."""
        if self.protect == Flags.PAYLOAD_CRC:
            return with_crc(header, crc32c(payload), self.tag_key), payload
        nonce = _NONCE.pack(number)
        return header, _cipher(self.seal_key).encrypt(nonce, payload, header[:TAG_OFFSET])

    def open(
        self, header: bytes | bytearray, number: int, payload: bytes
    ) -> bytes | None:
        """The bytes of a payload (with what is behind it) that came, None when they are wrong."""
        if self.protect == Flags.PAYLOAD_CRC:
            said = int.from_bytes(header[_CRC_AT : _CRC_AT + 4], "little")
            return payload if crc32c(payload) == said else None
        from cryptography.exceptions import InvalidTag

        data = bytes(header[:TAG_OFFSET])
        try:
            return _cipher(self.open_key).decrypt(_NONCE.pack(number), payload, data)
        except InvalidTag:
            return None


def client_guard(protect: int, keys: Keys | None) -> Guard | None:
    """The client's end of a session, None when its payloads are as they are."""
    if not protect:
        return None
    if keys is None:
        return Guard(protect, None)
    return Guard(protect, keys.tag_to_server, keys.payload_to_server, keys.payload_to_client)


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC32C, which takes about 0.1 ms for each KB."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    values = list(range(256))
    for _ in range(8):
        values = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in values]
    return tuple(values)
