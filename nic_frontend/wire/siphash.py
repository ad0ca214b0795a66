"""SipHash-2-4 (Aumasson and Bernstein, 2012): the keyed tag of a header.

The C part has its own; this one is the reference that both are compared with, and what the
pure-Python path uses.
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_CONSTANTS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash24(key: bytes, data: bytes | memoryview) -> int:
    """64-bit tag of ``data`` under a key of 16 bytes."""
    k0, k1 = struct.unpack("<QQ", key)
    v0, v1, v2, v3 = (c ^ k for c, k in zip(_CONSTANTS, (k0, k1, k0, k1), strict=True))
    length = len(data)
    padded = bytes(data) + bytes(7 - length % 8) + bytes([length & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v3 ^= word
        v0, v1, v2, v3 = _rounds(2, v0, v1, v2, v3)
        v0 ^= word
    v0, v1, v2, v3 = _rounds(4, v0, v1, v2 ^ 0xFF, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _rounds(count: int, v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = ((v1 << 13) | (v1 >> 51)) & _MASK ^ v0
        v0 = ((v0 << 32) | (v0 >> 32)) & _MASK
        v2 = (v2 + v3) & _MASK
        v3 = ((v3 << 16) | (v3 >> 48)) & _MASK ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = ((v3 << 21) | (v3 >> 43)) & _MASK ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = ((v1 << 17) | (v1 >> 47)) & _MASK ^ v2
        v2 = ((v2 << 32) | (v2 >> 32)) & _MASK
    return v0, v1, v2, v3
