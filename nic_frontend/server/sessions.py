"""What a session begins with, for the data path, and whose sessions are counted together."""

from __future__ import annotations

from ctypes import Structure, c_char_p, c_uint8, c_uint16, c_uint32, c_uint64
from dataclasses import dataclass

from shunter.batching.queue.native import PEER_BYTES
from shunter.nic_frontend.library import require
from shunter.nic_frontend.wire.keys import Keys

_USER_ORIGIN = 0xFFFFFFFE << 32
"""No host has such a prefix of IPv6, and none of IPv4 is told so."""
_KEY = c_uint8 * 16
_KEYS = ("tag_to_server", "tag_to_client", "payload_to_server", "payload_to_client")


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
    keys: Keys | None = None
    """Those of its tags, and of PAYLOAD_AEAD."""
    stream: bool = False
    """Its peer is a stream, on which nothing is lost."""
    protect: int = 0
    """PAYLOAD_CRC or PAYLOAD_AEAD: what payloads carry, both ways."""
    origin: int = 0
    """The address whose sessions are counted together: see :func:`origin_of`."""
    pkt_no: int = 0
    """Of the last datagram to the client, all of its bits."""
    may_be_strict: bool = True
    """Otherwise all of its requests are best effort."""
    key: int = 0
    """Number of the key that it was opened with, 0: none."""
    region: int = 0
    """Of memory that its client shares, in which its requests lie; 0: none."""
    region_bytes: int = 0


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
        ("may_be_strict", c_uint8),
        ("region", c_uint8),
        ("region_bytes", c_uint64),
        ("key", c_uint32),
        ("origin", c_uint64),
        *((name, _KEY) for name in _KEYS),
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
        tagged=session.keys is not None,
        may_be_strict=session.may_be_strict,
        key=session.key,
        region=session.region,
        region_bytes=session.region_bytes,
        origin=session.origin,
        peer=(c_uint8 * PEER_BYTES)(*session.peer),
    )
    if session.keys is not None:
        for name in _KEYS:
            setattr(opening, name, _KEY(*getattr(session.keys, name)))
    return opening


def origin_of(peer: bytes) -> int:
    """What stands for the address of a socket in the kernel's bytes: sessions of one are counted
    together. Raises LibraryError."""
    function = require().shunter_origin_of
    function.restype, function.argtypes = c_uint64, [c_char_p]
    return int(function(peer))


def origin_of_user(uid: int) -> int:
    """The same for a user of this host."""
    return uid | _USER_ORIGIN
