"""The queue page as literal numbers: whoever changes it, changes these, and its version."""

from shunter.batching.queue import layout as queue_layout

QUEUE = {
    "queue_magic": 0,
    "queue_version": 8,
    "queue_bytes": 16,
    "queue_func": 24,
    "queue_entries": 32,
    "queue_inputs": 40,
    "queue_outputs": 48,
    "queue_input_bytes": 56,
    "queue_output_bytes": 568,
    "queue_pieces": 1080,
    "queue_packed": 1088,
    "front_end_pid": 1152,
    "front_end_asleep": 1160,
    "front_end_wants_done": 1168,
    "front_end_since_ns": 1176,
}
WORKER = {
    "batch_number": 0,
    "batch_first": 8,
    "batch_count": 24,
    "done_number": 128,
    "worker_asleep": 136,
    "done_ns": 144,
    "worker_gathered": 160,
    "worker_taken": 168,
    "worker_early": 176,
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
    "entry_next": 136,
    "entry_pieces": 144,
    "entry_bytes": 152,
    "entry_rows": 160,
    "entry_places": 168,
    "entry_given": 232,
    "entry_unwanted": 240,
    "entry_status": 256,
    "entry_result_bytes": 264,
    "entry_parts": 272,
    "entry_early_ns": 280,
}


def offsets(fields):
    return {name: placed.offset for name, placed in fields.items()}


def test_every_word_lies_where_it_was_declared():
    assert offsets(queue_layout.QUEUE_FIELDS) == QUEUE
    assert offsets(queue_layout.WORKER_FIELDS) == WORKER
    assert offsets(queue_layout.ENTRY_FIELDS) == ENTRY


def test_sizes():
    assert queue_layout.QUEUE_VERSION == 6
    assert (queue_layout.QUEUE_WORKERS_OFFSET, queue_layout.WORKER_SIZE) == (1280, 256)
    assert (queue_layout.QUEUE_ENTRIES_OFFSET, queue_layout.ENTRY_SIZE) == (1280 + 64 * 256, 384)
    assert [queue_layout.queue_bytes(n) for n in (0, 1, 4096)] == [17664, 18048, 1590528]
    assert (queue_layout.PIECE.size, queue_layout.BLOCK) == (16, 65_536)
    assert queue_layout.QUEUE_MAGIC.to_bytes(8, "little") == b"SHUNTERQ"
