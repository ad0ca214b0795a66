"""Every byte that crosses a process or a language, declared once.

Rules of this file:

1. Little-endian, fixed width. Every field that another process polls is 8 bytes on an 8-byte
   boundary and has exactly one writer. Fields of different writers never share a 128-byte line.
2. The word that publishes data is written last: ``ready`` for the page, the even ``sequence`` for
   a seqlock-protected section.
3. Magic, layout version and size are compared on attach, and both sides are named in the error.
4. Fields are never reordered. New ones are added at the end of a section, and ``LAYOUT_VERSION``
   is raised.
5. Offsets are computed here, stated again as literals in ``tests/batching/page/test_layout.py``,
   and emitted to Java and C by ``python -m shunter.batching.emit``; the emitted files are
   committed and ``--check`` fails when they are stale.

The control page::

    +------------------+  0
     | header           |  identity | server | controller | ready | front end | devices
    +------------------+  HEADER_SIZE
    | holder 0         |  one 128-byte line per holder of the hold words
    | ...              |
    +------------------+  RUNNERS_OFFSET
    | runner 0         |  one per worker that says how its inference gets on
    | ...              |
    +------------------+  SLOTS_OFFSET
    | slot 0           |  one per model version
    |   identity       |    server writes (seqlock slot_sequence)
    |   telemetry      |    server writes, plain words
    |   change         |    server writes, what became of the wanted configuration
    |   group telemetry|    server writes, one line per worker group
    |   commands       |    controller writes (seqlock command_sequence)
    |   group commands |    controller writes, one line per worker group
    |   network        |    network front end writes, plain words
    |   padding        |    controller writes, plain words, and who may claim to be strict
    |   network telemetry|  network front end writes, plain words
    | slot 1 ...       |
    +------------------+  PAGE_SIZE

A slot's fields are in :mod:`shunter.batching.page.slot_fields`, counts and what numbers stand for
in :mod:`shunter.batching.page.values`; all are to be had from here. The bytes of a tensor queue are
in :mod:`shunter.batching.queue.layout`.

Times are ``CLOCK_MONOTONIC`` nanoseconds (Java ``System.nanoTime``, Python
``time.monotonic_ns``) unless the name says otherwise.
"""

from __future__ import annotations

from shunter.batching.page.fields import Field, Section, place
from shunter.batching.page.slot_fields import SLOT
from shunter.batching.page.values import (
    CLASSES,
    COUNTER_COUNT,
    COUNTER_NAME_BYTES,
    CPU_SLICES,
    DEVICE_BYTES,
    DEVICE_COUNT,
    DEVICE_SLICES,
    GROUP_COUNT,
    HOLDER_COUNT,
    LAYOUT_VERSION,
    MAGIC,
    RUNNER_COUNT,
    SIZE_BUCKETS,
    SLICE_WORDS,
    SLOT_COUNT,
    SLOT_WORDS,
    TIME_BUCKET_SHIFT,
    TIME_BUCKETS,
    ChangeState,
    Claims,
    Order,
    RunnerState,
)

HEADER = (
    Section(
        "identity",
        (
            Field("magic", "MAGIC"),
            Field("layout_version", "LAYOUT_VERSION"),
            Field("page_size", "bytes of the whole page"),
            Field("header_size", "bytes before holder 0"),
            Field("slot_size", "bytes of one slot"),
            Field("slot_count", "number of slots"),
            Field("owner_pid", "pid of the process that created the page"),
            Field("created_unix_ns", "wall clock at creation"),
            Field("server", "what the server is called, UTF-8; empty: as usual", width=64),
        ),
    ),
    Section(
        "server",
        (Field("server_heartbeat_ns", "written by the server or its host at least every second"),),
    ),
    Section(
        "controller",
        (
            Field("controller_pid", "pid of the controller that wrote last, 0 before the first"),
            Field("controller_heartbeat_ns", "when it last wrote, at least every second"),
            Field("controller_cycles", "duty cycles of this controller"),
            Field(
                "front_end_wanted",
                "0: start no network front end; else a number that other settings change",
            ),
            Field("strict_order", "turns of strict models on a slice, one of ORDER_..."),
            Field("best_effort_order", "turns of best-effort models, one of ORDER_..."),
            Field("exclusive", "1: strict and best effort take turns too, nothing is preempted"),
            Field("max_hold_us", "a hold without progress for longer is ignored, 0: the default"),
            Field("longest_park_us", "a batch that was parked for longer goes on, 0: the default"),
            Field("memory_wanted", "1: parked work shall drop what it holds and begin anew"),
            Field("strict_key", "SHA-256 of the secret that claims of strict need", count=4),
            Field("settings_invalid", "1: the settings file cannot be used, the last good holds"),
        ),
    ),
    Section("ready", (Field("ready", "1 when the page is complete; written last"),)),
    Section(
        "front_end",
        (
            Field("front_end_pid", "pid of the network front end, 0 before the first"),
            Field("front_end_beat_ns", "when it last wrote"),
            Field("front_end_port", "UDP port that it serves"),
            Field("front_end_sessions", "open sessions"),
            Field("front_end_rtt_ns", "sum of the round trips of hellos"),
            Field("front_end_rtt_count", "round trips that were measured"),
            Field("front_end_counter_count", "counters below; written after their names"),
            Field(
                "front_end_counter_names",
                "UTF-8, zero padded",
                count=COUNTER_COUNT,
                width=COUNTER_NAME_BYTES,
            ),
            Field("front_end_counters", "since the front end started", count=COUNTER_COUNT),
            Field("landing_blocks", "blocks of the pool in which payloads land"),
            Field("landing_free", "of these, used by nobody"),
            Field("landing_wanted", "blocks that all queues, full, and what is received would use"),
        ),
    ),
    Section(
        "devices",
        (
            Field("mig_changing", "GPUs whose instances are being changed now"),
            Field("mig_done", "number of the layouts wanted last that are there or were given up"),
            Field("mig_changes", "changes that led to the wanted layout"),
            Field("mig_undone", "changes that were undone, or not begun"),
            Field("mig_layouts", "of each GPU by its index, for people", width=512),
            Field("mig_problem", "why the last change was not possible, for people", width=256),
        ),
    ),
)

HOLDER = (
    Section(
        "hold",
        (
            Field("holder_pid", "process that owns this word, 0 when free"),
            Field("holder_heartbeat_ns", "a reader ignores a holder whose heartbeat is old"),
            Field("hold_number", "0: nothing is held; else another after each change of slices"),
            Field("hold_since_ns", "when slices were last added to what is held"),
            Field("hold_progress_ns", "when strict work that holds last began or ended a batch"),
            Field("hold_models", "mask of slots: whose strict work holds", count=SLOT_WORDS),
            Field(
                "hold_slices",
                "best-effort work on these must stand still, if the number is not 0",
                count=SLICE_WORDS,
            ),
        ),
    ),
)

RUNNER = (
    Section(
        "runner",
        (
            Field("runner_pid", "process that owns this line, 0 when free"),
            Field("runner_heartbeat_ns", "when it last wrote"),
            Field("runner_slot", "slot of its model, -1 for none"),
            Field("runner_class", "class of its work, by index"),
            Field("runner_slices", "the slices that it runs on", count=SLICE_WORDS),
            Field("runner_state", "one of RUNNER_..."),
            Field("runner_since_ns", "since when it is in this state"),
            Field("preemptions", "times that it was parked"),
            Field("parked_ns", "sum of the times parked"),
            Field("yield_ns", "sum of the times from raised word to parked"),
            Field("yield_worst_ns", "the longest of these"),
            Field("restore_ns", "sum of the times from lowered word to running"),
            Field("drops", "times that it gave its memory back and began a batch anew"),
            Field("batches", "batches that it ran"),
            Field("segments", "parts of one pass between which it can stand still, 0: unknown"),
            Field("segment_ns", "time of the longest part"),
            Field("solo_ns", "time of one pass alone"),
            Field("solo_cpu_ns", "processor time of one pass alone, 0: unknown"),
            Field("solo_batch", "size of the batch that these were measured with"),
        ),
    ),
)

HEADER_FIELDS, HEADER_SIZE = place(HEADER)
HOLDER_FIELDS, HOLDER_SIZE = place(HOLDER)
RUNNER_FIELDS, RUNNER_SIZE = place(RUNNER)
SLOT_FIELDS, SLOT_SIZE = place(SLOT)
RUNNERS_OFFSET = HEADER_SIZE + HOLDER_COUNT * HOLDER_SIZE
SLOTS_OFFSET = RUNNERS_OFFSET + RUNNER_COUNT * RUNNER_SIZE
PAGE_SIZE = SLOTS_OFFSET + SLOT_COUNT * SLOT_SIZE
GROUP_STRIDE = SLOT_FIELDS["group_ready"].section.stride


def size_bucket(size: int) -> int:
    """Bucket of a batch of ``size`` >= 1 requests.

    >>> [size_bucket(n) for n in (1, 2, 3, 4, 5, 64, 10**9)]
    [0, 1, 2, 2, 3, 6, 15]
    """
    return min((size - 1).bit_length(), SIZE_BUCKETS - 1)


def time_bucket(ns: int) -> int:
    """Bucket of a time of ``ns`` >= 0 nanoseconds.

    >>> [time_bucket(ns) for ns in (0, 1 << 18, (1 << 18) + 1, 1 << 19, 10**9, 10**12)]
    [0, 0, 1, 1, 12, 15]
    """
    return min((max(ns - 1, 0) >> TIME_BUCKET_SHIFT).bit_length(), TIME_BUCKETS - 1)


def constants() -> list[tuple[str, int, str]]:
    """Every emitted constant: name, value, meaning."""
    rows = [
        ("LAYOUT_VERSION", LAYOUT_VERSION, "raised when a field is added"),
        ("MAGIC", MAGIC, "'SHUNTER' and a zero, little-endian"),
        ("PAGE_SIZE", PAGE_SIZE, "bytes of the control page"),
        ("HEADER_SIZE", HEADER_SIZE, "bytes before holder 0"),
        ("HOLDER_SIZE", HOLDER_SIZE, "bytes of one holder"),
        ("HOLDER_COUNT", HOLDER_COUNT, "holders"),
        ("RUNNERS_OFFSET", RUNNERS_OFFSET, "offset of runner 0"),
        ("RUNNER_SIZE", RUNNER_SIZE, "bytes of one runner"),
        ("RUNNER_COUNT", RUNNER_COUNT, "runners"),
        ("SLOTS_OFFSET", SLOTS_OFFSET, "offset of slot 0"),
        ("SLOT_SIZE", SLOT_SIZE, "bytes of one slot"),
        ("SLOT_COUNT", SLOT_COUNT, "slots"),
        ("SLOT_WORDS", SLOT_WORDS, "words of a mask of slots"),
        ("CPU_SLICES", CPU_SLICES, "slices that are CPUs; those of device 0 follow"),
        ("DEVICE_COUNT", DEVICE_COUNT, "devices that have slices of their own"),
        ("DEVICE_SLICES", DEVICE_SLICES, "slices of each device"),
        ("DEVICE_BYTES", DEVICE_BYTES, "bytes of the name of a device, or a part of one"),
        ("SLICE_WORDS", SLICE_WORDS, "words of a set of slices"),
        ("COUNTER_COUNT", COUNTER_COUNT, "counters of the network front end"),
        ("COUNTER_NAME_BYTES", COUNTER_NAME_BYTES, "bytes of the name of each"),
        ("GROUP_COUNT", GROUP_COUNT, "worker groups per slot"),
        ("GROUP_STRIDE", GROUP_STRIDE, "bytes between groups"),
        ("SIZE_BUCKETS", SIZE_BUCKETS, "batch size buckets, by power of two"),
        ("TIME_BUCKETS", TIME_BUCKETS, "time buckets, by power of two"),
        ("TIME_BUCKET_SHIFT", TIME_BUCKET_SHIFT, "the first bucket ends at 2 to this, in ns"),
    ]
    rows += [(name.upper(), i, "class index") for i, name in enumerate(CLASSES)]
    rows += [(f"CHANGE_{s.name}", s.value, "state of a change") for s in ChangeState]
    rows += [(f"RUNNER_{s.name}", s.value, "state of a runner") for s in RunnerState]
    rows += [(f"ORDER_{s.name}", s.value, "turns of models on a slice") for s in Order]
    rows += [(f"CLAIMS_{s.name}", s.value, "who may say that he is strict") for s in Claims]
    texts = {n: p.field.width for n, p in SLOT_FIELDS.items() if p.field.width != Field.width}
    rows += [(f"{n.upper()}_BYTES", width, f"bytes of {n} in a slot") for n, width in texts.items()]
    header = [p for p in HEADER_FIELDS.values() if p.section.name == "devices"]
    texts = {p.field.name: p.field.width for p in header if p.field.width != Field.width}
    rows += [(f"{n.upper()}_BYTES", w, f"bytes of {n} in the header") for n, w in texts.items()]
    parts = ("H", HEADER_FIELDS), ("K", HOLDER_FIELDS), ("R", RUNNER_FIELDS), ("S", SLOT_FIELDS)
    for prefix, fields in parts:
        for name, placed in fields.items():
            extent = f" [{placed.field.count}]" if placed.field.count > 1 else ""
            rows.append((f"{prefix}_{name.upper()}", placed.offset, placed.field.meaning + extent))
    return rows
