"""What goes between a client and its session in C: structures of ``c/client/client.h``."""

from __future__ import annotations

from ctypes import Structure, c_bool, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

from shunter.batching.queue.layout import MAX_TENSORS

Key = c_uint8 * 16


KEYS = ("tag_to_server", "tag_to_client", "payload_to_server", "payload_to_client")


class Settings(Structure):
    """``struct shunter_client_settings``."""

    _fields_ = (
        ("socket", c_int),
        ("stream", c_bool),
        ("gso", c_bool),
        ("tagged", c_bool),
        ("protect", c_uint16),
        *((name, Key) for name in KEYS),
        ("session", c_uint32),
        ("func_id", c_uint16),
        ("segment", c_uint16),
        ("input_count", c_uint32),
        ("output_count", c_uint32),
        ("input_bytes", c_uint32 * MAX_TENSORS),
        ("output_bytes", c_uint32 * MAX_TENSORS),
        ("grant", c_uint64),
        ("pkt_no", c_uint64),
        ("trip_ns", c_uint64),
        ("shared", c_void_p),
        ("shared_requests", c_uint32),
        ("least_answer", c_uint32),
    )


class Ended(Structure):
    _fields_ = (("req_id", c_uint64), ("status", c_uint32), ("bytes", c_uint32))


class Run(Structure):
    _fields_ = (
        *(("request", c_void_p), ("answer", c_void_p)),
        *(("bytes", c_uint32), ("rows", c_uint32), ("part", c_uint32), ("of", c_uint64)),
    )


class Exchange(Structure):
    """``struct shunter_exchange``: one request from its beginning to its end."""

    _fields_ = (
        ("inputs", c_void_p),
        ("outputs", c_void_p),
        ("deadline_us", c_uint64),
        ("until_ns", c_uint64),
        ("priority", c_uint32),
        ("idempotent", c_uint32),
        ("spin", c_uint32),
        ("status", c_uint32),
        ("req_id", c_uint64),
        ("bytes", c_uint32),
        ("rows", c_uint32),
    )


NUMBERS = (
    *("next_id", "grant", "below", "pending"),
    *("lost", "rtt_ns", "trip_ns", "copied", "heard_ns", "unknown_ns", "kept", "packets"),
)


class Numbers(Structure):
    _fields_ = tuple((name, c_uint64) for name in NUMBERS)
