"""What the C core is told: structures of ``c/core.h``, and a line of the control page."""

from __future__ import annotations

from ctypes import Array, Structure, c_uint8, c_uint16, c_uint32, c_uint64

from shunter.batching.layout import HOLDER_SIZE, SLICE_WORDS
from shunter.batching.native import PEER_BYTES
from shunter.batching.slices import SliceSet, words_of
from shunter.nic_frontend.defaults import Defaults
from shunter.nic_frontend.sessions import Session

_KEY = c_uint8 * 16


HoldLine = c_uint64 * (HOLDER_SIZE // 8)
"""Words of a holder."""
_SliceWords = c_uint64 * SLICE_WORDS


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


def struct_of(session: Session) -> SessionStruct:
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


class DefaultsStruct(Structure):
    """``struct shunter_defaults``."""

    _fields_ = (("slo_ns", c_uint64), ("timeout_ns", c_uint64), ("priority", c_uint8))


def defaults_struct(defaults: Defaults) -> DefaultsStruct:
    """What requests take from their model."""
    return DefaultsStruct(defaults.slo_ns, defaults.timeout_ns, defaults.priority)


def slice_words(slices: SliceSet) -> Array[c_uint64]:
    """A set of slices as C takes it."""
    return _SliceWords(*words_of(slices))
