"""What a session begins with, for the data path, and whose sessions are counted together."""

from __future__ import annotations

from ctypes import Structure, c_uint8, c_uint16, c_uint32, c_uint64
from dataclasses import dataclass

from shunter.batching.queue.native import PEER_BYTES
from shunter.nic_frontend.wire.keys import PayloadKeys

_INET = 2
_MAPPED = bytes(10) + b"\xff\xff"
"""IPv6 addresses that are IPv4 ones."""
_LINK = b"\xfe\x80" + bytes(5)
_INET_ORIGIN, _USER_ORIGIN = 0xFFFFFFFF << 32, 0xFFFFFFFE << 32
"""No host has such a prefix of IPv6: those addresses are of groups."""
_KEY = c_uint8 * 16


@dataclass
class Opening:
    """What a session begins with: a client's connection to one function."""

    id: int
    func_id: int
    peer: bytes
    """Socket address."""
    segment: int
    window: int
    """Most requests that are not acknowledged, at most WINDOW."""
    key: bytes | None = None
    stream: bool = False
    """Its peer is a stream, on which nothing is lost."""
    protect: int = 0
    """PAYLOAD_CRC or PAYLOAD_AEAD: what payloads carry, both ways."""
    keys: PayloadKeys | None = None
    """Those of PAYLOAD_AEAD."""
    origin: int = 0
    """The address whose sessions are counted together: see :func:`origin_of`."""
    pkt_no: int = 0
    """Of the last datagram to the client, all of its bits."""


class SessionStruct(Structure):
    """``struct shunter_opening``."""

    _fields_ = (
        ("pkt_no", c_uint64),
        ("session", c_uint32),
        ("func_id", c_uint16),
        ("segment", c_uint16),
        ("window", c_uint16),
        ("protect", c_uint16),
        ("stream", c_uint8),
        ("tagged", c_uint8),
        ("origin", c_uint64),
        ("key", _KEY),
        ("to_server", _KEY),
        ("to_client", _KEY),
        ("peer", c_uint8 * PEER_BYTES),
    )


def struct_of(session: Opening) -> SessionStruct:
    """A new session's."""
    opening = SessionStruct(
        pkt_no=session.pkt_no,
        session=session.id,
        func_id=session.func_id,
        segment=session.segment,
        window=session.window,
        protect=session.protect,
        stream=session.stream,
        tagged=session.key is not None,
        origin=session.origin,
        peer=(c_uint8 * PEER_BYTES)(*session.peer),
    )
    if session.key is not None:
        opening.key = _KEY(*session.key)
    if session.keys is not None:
        opening.to_server = _KEY(*session.keys.to_server)
        opening.to_client = _KEY(*session.keys.to_client)
    return opening


def origin_of(peer: bytes) -> int:
    """What stands for the address of a socket in the kernel's bytes: sessions of one are counted
    together. That is an IPv4 address, or the first 56 bits of one of IPv6, as sites are given them;
    a neighbour on the link has an address of its own."""
    family = int.from_bytes(peer[:2], "little")
    if family == _INET:
        return int.from_bytes(peer[4:8], "big") | _INET_ORIGIN
    prefix, mapped = peer[8:15], peer[8:20]
    if mapped == _MAPPED:
        return int.from_bytes(peer[20:24], "big") | _INET_ORIGIN
    if prefix == _LINK:
        return int.from_bytes(_LINK[:2] + peer[18:24], "big")
    return int.from_bytes(prefix, "big") << 8


def origin_of_user(uid: int) -> int:
    """The same for a user of this host."""
    return uid | _USER_ORIGIN
