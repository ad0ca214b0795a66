"""What the data path in C is told and tells: the structures of ``server.h``, ``policy.h``
and ``core.h``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Array,
    Structure,
    c_bool,
    c_double,
    c_int,
    c_int32,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import fields

from shunter.batching.page.layout import HOLDER_SIZE, SLICE_WORDS
from shunter.batching.page.records import NetworkTelemetry
from shunter.batching.page.slices import SliceSet, words_of
from shunter.batching.queue.native import PEER_BYTES, QueueView
from shunter.nic_frontend.server.model_policy import Defaults, Policy, Runs
from shunter.nic_frontend.server.sessions import SessionStruct
from shunter.nic_frontend.wire import layout as wire
from shunter.nic_frontend.wire.header import REASONS
from shunter.nic_frontend.wire.hello import Hello

DROPS = (
    *REASONS,
    *("session", "peer", "replay", "direction", "func_id", "old", "credit", "full"),
    *("sizes", "duplicate", "sack", "cancel"),
    *("aead", "crc", "pool"),
)
"""Why datagrams are dropped; the order is that of ``enum shunter_drop``. The last line is of
payloads, which the shell looks at."""
HELLO_BYTES = wire.HEADER_BYTES + Hello.BYTES


HoldLine = c_uint64 * (HOLDER_SIZE // 8)
"""Words of a holder."""
_SliceWords = c_uint64 * SLICE_WORDS


class DefaultsStruct(Structure):
    """``struct shunter_defaults``."""

    _fields_ = (("slo_ns", c_uint64), ("timeout_ns", c_uint64), ("priority", c_uint8))


class RunsStruct(Structure):
    """``struct shunter_runs``."""

    _fields_ = (*((name, c_uint32) for name in Runs._fields[:-1]), (Runs._fields[-1], c_uint64))


def defaults_struct(defaults: Defaults) -> DefaultsStruct:
    """What requests take from their model."""
    return DefaultsStruct(defaults.slo_ns, defaults.timeout_ns, defaults.priority)


def slice_words(slices: SliceSet) -> Array[c_uint64]:
    """A set of slices as C takes it."""
    return _SliceWords(*words_of(slices))


class SettingsStruct(Structure):
    _fields_ = (
        ("udp", c_int),
        ("strangers", c_int),
        ("doorbell", c_int),
        ("wake", c_int),
        ("spin_ns", c_uint64),
        ("landing", c_void_p),
        ("landing_blocks", c_uint32),
        ("cookie_secret", c_uint8 * 16),
        ("sets", c_void_p),
    )


class PolicyStruct(Structure):
    """``struct shunter_policy``."""

    _fields_ = (
        *(("threshold", c_double), ("alpha", c_double), ("threshold_cap", c_double)),
        *(("max_wait_ns", c_uint64), ("margin_ns", c_uint64), ("ageing_ns", c_uint64)),
        *(("fixed_ns", c_uint64), ("per_request_ns", c_uint64), ("slo_ns", c_uint64)),
        *(("ahead", c_uint32), ("mixes", c_uint32), ("admission", c_uint32)),
    )


class TelemetryStruct(Structure):
    """``struct shunter_telemetry``: names and sizes are those of the control page."""

    _fields_ = tuple(
        (each.name, c_uint64 * len(each.default) if each.default else c_uint64)
        for each in fields(NetworkTelemetry)
        if each.name != "network_attainment_ppm"
    )


def telemetry_of(counted: TelemetryStruct) -> NetworkTelemetry:
    """As the control page has it; nothing is said of the last minute."""
    found = ((name, getattr(counted, name)) for name, *_ in counted._fields_)
    return NetworkTelemetry(
        **{name: each if isinstance(each, int) else tuple(each) for name, each in found}
    )


class HelloStruct(Structure):
    _fields_ = (
        ("origin", c_uint64),
        ("trip_ns", c_uint64),
        ("peer", c_uint8 * PEER_BYTES),
        ("message", c_uint8 * HELLO_BYTES),
    )


COUNTED = (
    *("requests", "batches", "answered", "failed", "expired", "rejected", "rings"),
    *("datagrams_in", "datagrams_out", "bytes_in", "bytes_out", "send_failures"),
    *("streams_in", "placed_segments", "copied_bytes", "gathered_bytes", "overflows", "sleeps"),
    *("split_datagrams", "split_no_room", "hellos", "hello_overflows", "hellos_unanswered"),
)
COUNTERS = (*COUNTED, *(f"drop_{reason}" for reason in DROPS))
"""Names of all counters of a front end."""


GAUGES = ("landing_blocks", "landing_free")
"""Beside them: how it is now."""


class StatsStruct(Structure):
    _fields_ = (
        *((name, c_uint64) for name in COUNTED),
        ("drops", c_uint64 * len(DROPS)),
        *((name, c_uint64) for name in GAUGES),
    )


def policy_struct(policy: Policy) -> PolicyStruct:
    return PolicyStruct(**{name: getattr(policy, name) for name, _ in PolicyStruct._fields_})


_HANDLE = c_void_p
_ARGUMENTS: dict[str, Sequence[object]] = {
    "server_new": (POINTER(SettingsStruct), POINTER(c_void_p)),
    "server_free": (_HANDLE,),
    "server_core": (_HANDLE,),
    "server_grow_landing": (_HANDLE, c_uint32),
    "server_shrink_landing": (_HANDLE, c_uint32),
    "server_split": (_HANDLE, ctypes.c_char_p, c_uint32, ctypes.c_char_p, ctypes.c_size_t),
    "server_verbs": (_HANDLE, ctypes.c_char_p, c_uint32, ctypes.c_char_p, ctypes.c_size_t),
    "server_mtu": (_HANDLE,),
    "server_payloads_are_far": (_HANDLE,),
    "server_interrupt": (_HANDLE, c_bool),
    "server_run": (_HANDLE, c_uint64, POINTER(HelloStruct), c_uint32),
    "server_add_function": (_HANDLE, POINTER(QueueView), POINTER(PolicyStruct), c_uint32),
    "server_set_policy": (_HANDLE, c_uint16, POINTER(PolicyStruct)),
    "server_set_runs": (_HANDLE, c_uint16, POINTER(RunsStruct)),
    "server_remove_function": (_HANDLE, c_uint16),
    "server_add_worker": (_HANDLE, c_uint16, c_uint32, c_uint32, c_int, c_uint32, c_bool),
    "sets_new": (),
    "sets_free": (c_void_p,),
    "server_drain_worker": (_HANDLE, c_uint16, c_uint32),
    "server_idle": (_HANDLE, c_uint16, c_uint32),
    "server_busy_ns": (_HANDLE, c_uint16, c_uint32, c_uint64),
    "server_remove_worker": (_HANDLE, c_uint16, c_uint32),
    "server_give_up": (_HANDLE, c_uint16, c_uint16),
    "server_reply": (_HANDLE, ctypes.c_char_p, ctypes.c_char_p, c_uint32),
    "server_add_stream": (_HANDLE, c_int, c_uint32),
    "server_closed_streams": (_HANDLE, POINTER(c_uint32), c_uint32),
    "server_stats": (_HANDLE, POINTER(StatsStruct)),
    "server_waiting": (_HANDLE, c_uint16),
    "server_telemetry": (_HANDLE, c_uint16, POINTER(TelemetryStruct)),
    "stream_peer": (c_int, POINTER(c_uint8)),
    "core_set_defaults": (_HANDLE, c_uint16, POINTER(DefaultsStruct)),
    "core_set_hold": (_HANDLE, c_uint16, c_int32, POINTER(c_uint64), c_uint64),
    "core_hold_at": (_HANDLE, c_void_p, c_uint64),
    "core_limit": (_HANDLE, c_uint32, c_uint32),
    "core_add_session": (_HANDLE, POINTER(SessionStruct), c_uint64),
    "core_remove_session": (_HANDLE, c_uint32, c_uint64),
    "core_remove_key": (_HANDLE, c_uint32, c_uint64),
    "core_grant": (_HANDLE, c_uint32),
    "core_is_open": (_HANDLE, c_uint32),
    "core_has": (_HANDLE, c_uint32),
    "core_load": (_HANDLE, c_uint16, POINTER(c_uint32), POINTER(c_uint64)),
    "core_free_entries": (_HANDLE, c_uint16),
    "core_sessions": (_HANDLE,),
}
"""Of every function that is called."""


def declare(found: ctypes.CDLL) -> None:
    """Argument types of every function that is called."""
    for name, types in _ARGUMENTS.items():
        getattr(found, f"shunter_{name}").argtypes = list(types)
    found.shunter_server_core.restype = found.shunter_sets_new.restype = c_void_p
    found.shunter_server_grow_landing.restype = None
    found.shunter_server_shrink_landing.restype = c_uint32
    found.shunter_server_mtu.restype = c_uint32
    found.shunter_server_payloads_are_far.restype = c_bool
    found.shunter_server_idle.restype = c_bool
    found.shunter_server_give_up.restype = c_uint32
    found.shunter_server_busy_ns.restype = c_uint64
    found.shunter_core_load.restype = None
    found.shunter_aead_is_there.restype = c_bool
    found.shunter_x25519_is_there.restype = c_bool
    found.shunter_core_remove_key.restype = c_uint32
    found.shunter_core_grant.restype = c_uint64
    found.shunter_core_is_open.restype = c_bool
    found.shunter_core_has.restype = c_bool
    found.shunter_core_free_entries.restype = c_uint32
    found.shunter_core_sessions.restype = c_uint32
    found.shunter_server_waiting.restype = c_uint32
