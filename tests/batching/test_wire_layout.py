"""The queue page as literal numbers: whoever changes it, changes these, and its version."""

from shunter.batching import wire_layout
from shunter.batching.wire_layout import Flags, MessageType, WireStatus

QUEUE = {
    "queue_magic": 0,
    "queue_version": 8,
    "queue_bytes": 16,
    "queue_func": 24,
    "queue_entries": 32,
    "queue_inputs": 40,
    "queue_outputs": 48,
    "queue_input_bytes": 56,
    "queue_output_bytes": 120,
    "front_end_pid": 256,
    "front_end_asleep": 264,
    "front_end_wants_done": 272,
    "front_end_arrivals": 280,
}
WORKER = {
    "batch_number": 0,
    "batch_first": 8,
    "batch_count": 24,
    "done_number": 128,
    "worker_asleep": 136,
}
ENTRY = {
    "entry_req_id": 0,
    "entry_session": 8,
    "entry_flags": 16,
    "entry_segment": 24,
    "entry_pkt_no": 32,
    "entry_credit": 40,
    "entry_direct": 48,
    "entry_key": 56,
    "entry_peer": 72,
    "entry_arrival": 104,
    "entry_status": 128,
}


def offsets(fields):
    return {name: placed.offset for name, placed in fields.items()}


def test_every_word_lies_where_it_was_declared():
    assert offsets(wire_layout.QUEUE_FIELDS) == QUEUE
    assert offsets(wire_layout.WORKER_FIELDS) == WORKER
    assert offsets(wire_layout.ENTRY_FIELDS) == ENTRY


def test_sizes():
    assert wire_layout.QUEUE_VERSION == 1
    assert (wire_layout.QUEUE_WORKERS_OFFSET, wire_layout.WORKER_SIZE) == (384, 256)
    assert (wire_layout.QUEUE_ENTRIES_OFFSET, wire_layout.ENTRY_SIZE) == (384 + 64 * 256, 256)
    assert [wire_layout.queue_bytes(n) for n in (0, 1, 4096)] == [16768, 17024, 1065344]
    assert wire_layout.QUEUE_MAGIC.to_bytes(8, "little") == b"SHUNTERQ"


def test_the_numbers_of_the_wire():
    types = "REQ RESP SACK CREDIT HELLO HELLO_ACK CANCEL ERROR ACK"
    assert [(kind.name, kind.value) for kind in MessageType] == [
        (name, number) for number, name in enumerate(types.split(), 1)
    ]
    flags = "LAST RETRANS HDR_TAG PAYLOAD_AEAD PAYLOAD_CRC ACK_REQ unused IDEMPOTENT"
    assert [(flag.name, flag.value) for flag in Flags] == [
        (name, 1 << bit) for bit, name in enumerate(flags.split()) if name != "unused"
    ]
    assert sorted(WireStatus) == [
        *(200, 400, 404, 409, 410, 426, 499, 500, 501, 502, 503, 504, 521),
    ]
