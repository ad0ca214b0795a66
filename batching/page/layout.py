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
   and emitted to Java and C by ``python -m shunter.batching.page.emit``; the emitted files are
   committed and ``--check`` fails when they are stale.

The control page::

    +------------------+  0
    | header           |  whole lines: identity | JVM | controller | ready | front end
    +------------------+  HEADER_SIZE
    | holder 0         |  one 128-byte line per holder of the hold words
    | ...              |
    +------------------+  RUNNERS_OFFSET
    | runner 0         |  one per worker that says how its inference gets on
    | ...              |
    +------------------+  SLOTS_OFFSET
    | slot 0           |  one per model version
    |   identity       |    JVM writes (seqlock slot_sequence)
    |   telemetry      |    JVM writes, plain words
    |   change         |    JVM writes, what became of the wanted configuration
    |   group telemetry|    JVM writes, one line per worker group
    |   commands       |    controller writes (seqlock command_sequence)
    |   group commands |    controller writes, one line per worker group
    |   network        |    network front end writes, plain words
    |   padding        |    controller writes, plain words, and who may claim to be strict
    | slot 1 ...       |
    +------------------+  PAGE_SIZE

The bytes of a tensor queue are in :mod:`shunter.batching.queue.layout`.

Times are ``CLOCK_MONOTONIC`` nanoseconds (Java ``System.nanoTime``, Python
``time.monotonic_ns``) unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

LAYOUT_VERSION = 7
MAGIC = int.from_bytes(b"SHUNTER\0", "little")
LINE = 128
"""Bytes between fields of different writers: two cache lines, because x86 prefetches pairs."""


class ChangeState(IntEnum):
    """What became of a wanted configuration."""

    NONE = 0
    UNDER_WAY = 1
    SERVES = 2
    UNDONE = 3
    """Refused, or begun and undone."""


class RunnerState(IntEnum):
    """What a worker's inference does; moves are in :mod:`shunter.batching.preemption.states`."""

    RUNNING = 0
    YIELDING = 1
    """It is to stand still, and runs on to the end of its segment."""
    PARKED = 2
    RESTORING = 3
    """It may go on, and has not done so yet."""


class Order(IntEnum):
    """In which order models take turns on a slice."""

    CONCURRENT = 0
    """They do not: whatever is ready runs."""
    FIFO = 1
    """One batch at a time, the earliest arrival first."""
    EDF = 2
    """One batch at a time, the earliest deadline first."""
    ROUND_ROBIN = 3
    """One batch at a time, models in turn, those that have waited too long first."""


class Claims(IntEnum):
    """Which requests for a model may say that they are strict."""

    UNKNOWN = 0
    """No controller has read the settings yet."""
    ALL = 1
    NONE = 2
    WITH_KEY = 3
    """Those that bring the secret."""


CLASSES = ("strict", "best_effort")
"""Index of a request class in every per-class field."""

SIZE_BUCKETS = 16
"""Batch sizes are counted by power of two: bucket k holds sizes in (2**(k-1), 2**k]."""

TIME_BUCKETS = 16
TIME_BUCKET_SHIFT = 18
"""Times are counted by power of two: bucket k holds those up to 2**(18 + k) ns (0.26 ms to 4.3 s),
the last one also all that are longer."""

GROUP_COUNT = 8
HOLDER_COUNT = 16
"""The first is the server's own."""
RUNNER_COUNT = 64
SLOT_COUNT = 128
SLOT_WORDS = SLOT_COUNT // 64
"""Words of a mask of slots: slot s is bit s % 64 of word s // 64."""
CPU_SLICES = 512
DEVICE_COUNT = 8
DEVICE_SLICES = 8
"""Of one device: a GPU that is parted has seven compute and eight memory slices, and an instance's
place is told in memory slices."""
DEVICE_BYTES = 64
"""Of a device's name, UTF-8: that of an NVIDIA GPU or a MIG instance has 40."""
SLICE_WORDS = (CPU_SLICES + DEVICE_COUNT * DEVICE_SLICES) // 64
"""Words of a set of slices, see :mod:`shunter.batching.page.slices`: first the CPUs'."""
COUNTER_COUNT = 64
"""Counters of the network front end; each has a name of at most COUNTER_NAME_BYTES."""
COUNTER_NAME_BYTES = 24


@dataclass(frozen=True)
class Field:
    """``count`` words of ``width`` bytes. ``width`` is 8, or the length of a byte string."""

    name: str
    meaning: str
    count: int = 1
    width: int = 8


@dataclass(frozen=True)
class Section:
    """Fields with one writer, starting on a line of their own."""

    name: str
    fields: tuple[Field, ...]
    repeat: int = 1

    @property
    def stride(self) -> int:
        """Bytes of one repetition, rounded up to whole lines."""
        used = sum(f.count * f.width for f in self.fields)
        return -(-used // LINE) * LINE


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
            Field("owner_pid", "pid of the JVM that created the page"),
            Field("created_unix_ns", "wall clock at creation"),
        ),
    ),
    Section("jvm", (Field("jvm_heartbeat_ns", "written by the JVM at least every second"),)),
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
            Field("hold_since_ns", "when the number last became non-zero"),
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

SLOT = (
    Section(
        "identity",
        (
            Field("slot_sequence", "seqlock: odd while identity changes"),
            Field("slot_state", "0 free, 1 live"),
            Field("generation", "current generation id of the model version"),
            Field("registered_batch_size", "ceiling of every batch"),
            Field("registered_max_wait_us", "ceiling of every deliberate wait"),
            Field("queue_capacity", "requests that may wait"),
            Field("group_count", "worker groups in use"),
            Field("slo_us", "default deadline of strict requests, 0 for none"),
            Field("model_name", "UTF-8, zero padded", width=256),
            Field("model_version", "UTF-8, zero padded", width=128),
            Field("auto", "1: the controller may change the configuration"),
            Field("archive", "path of the model archive, UTF-8, zero padded", width=512),
            Field("last_change", "what became of the last change, for people", width=256),
            Field("default_version", "the model's version for requests that name none", width=128),
            Field("problem", "why a worker ended or did not load last, for people", width=256),
        ),
    ),
    Section(
        "telemetry",
        (
            Field("updated_ns", "time of the last change below"),
            Field("arrivals", "requests offered, by class", count=2),
            Field("queued", "requests waiting now, by class", count=2),
            Field("oldest_arrival_ns", "arrival of the oldest waiting, 0 for none", count=2),
            Field("answered", "answered by a worker with the reply's own status", count=2),
            Field("answered_late", "of these, after their deadline", count=2),
            Field("expired", "answered 504 before they ran", count=2),
            Field("rejected", "refused at the door: queue full, draining, bad header", count=2),
            Field("failed", "answered 5xx by us: worker death, drain time-out", count=2),
            Field("abandoned", "client hung up while waiting", count=2),
            Field("retried", "requests run again after a worker died", count=1),
            Field("poisoned", "requests that killed two workers", count=1),
            Field("in_flight_requests", "sent, not answered", count=1),
            Field("in_flight_batches", "sent, not answered", count=1),
            Field("ready_workers", "loaded workers of the current generation", count=1),
            Field("busy_workers", "of these, with a batch", count=1),
            Field("threshold_milli", "adaptive threshold now, in 1/1000 requests", count=1),
            Field("batches_by_size", "batches answered, by size bucket", count=SIZE_BUCKETS),
            Field("service_ns_by_size", "sum of their service times", count=SIZE_BUCKETS),
            Field("batch_requests", "requests in the batches answered"),
            Field("good", "answered in time or without a deadline, not 5xx, by class", count=2),
            Field("slo_met", "of these, with a deadline", count=2),
            Field("slo_late", "with a deadline, answered after it, not 5xx", count=2),
            Field("slo_rejected", "with a deadline, refused at the door", count=2),
            Field("slo_failed", "with a deadline, answered 5xx by a worker or by us", count=2),
            Field("slo_abandoned", "with a deadline, client hung up while waiting", count=2),
            Field("queue_ns", "sum of the waits of what was answered, by class", count=2),
            Field("service_ns", "sum of the service times of what was answered", count=2),
            Field("latency_ns", "sum of the times from arrival to answer", count=2),
            Field("queue_times", "histogram by class, then bucket", count=2 * TIME_BUCKETS),
            Field("service_times", "histogram by class, then bucket", count=2 * TIME_BUCKETS),
            Field("latency_times", "histogram by class, then bucket", count=2 * TIME_BUCKETS),
            Field("strict_batches", "strict batches answered, by size bucket", count=SIZE_BUCKETS),
            Field("strict_batch_ns", "sum of their service times", count=SIZE_BUCKETS),
        ),
    ),
    Section(
        "change",
        (
            Field("change_request", "the wanted_request taken up last, 0 for none"),
            Field("change_state", "what became of it, one of CHANGE_..."),
        ),
    ),
    Section(
        "group_telemetry",
        (
            Field("group_ready", "loaded workers"),
            Field("group_busy", "of these, with a batch"),
            Field("group_batches", "batches answered"),
            Field("group_requests", "requests answered"),
            Field("group_cap", "batch cap of the group's own configuration"),
            Field("group_threads", "threads per worker, 0 when not set"),
            Field("group_fixed_ns", "fitted latency of a batch = fixed + n * per_request"),
            Field("group_per_request_ns", "see group_fixed_ns"),
            Field("group_error_ns", "mean absolute error of the predictions"),
            Field("group_fitted", "batches that the fit has seen, 0: nothing is known"),
            Field("group_instances", "workers that the configuration asks for"),
            Field("group_slices", "slices that its workers may run on", count=SLICE_WORDS),
            Field("group_yields", "1: its workers stand still for strict work"),
            Field("group_classes", "mask of the classes that it takes, 0: all"),
        ),
        repeat=GROUP_COUNT,
    ),
    Section(
        "commands",
        (
            Field("command_sequence", "seqlock: odd while commands change, 0 never written"),
            Field("alpha_millionths", "weight of the old threshold when it rises, 0..999999"),
            Field("threshold_cap_milli", "upper bound of the threshold, in 1/1000 requests"),
            Field("threshold_fixed_milli", "0: adapt; else the threshold itself"),
            Field("max_wait_us", "deliberate wait, at most registered_max_wait_us"),
            Field("mix_classes", "1: one batch may hold both classes"),
            Field(
                "ageing_us",
                "one best-effort batch goes first in this time if one waits as long, 0 never",
            ),
            Field("ahead_batches", "batches sent to a busy worker, 0 or 1"),
            Field("latency_fixed_ns", "latency of a batch until the fit knows it, 0: unknown"),
            Field("latency_per_request_ns", "see latency_fixed_ns"),
            Field("quantum_us", "0: threshold by what follows answers; else Rafiqi's quantum"),
            Field("admission", "1: refuse what would be answered too late"),
            Field("margin_us", "how long before a deadline an answer shall be ready"),
            Field("wanted_request", "raised when another configuration is wanted, 0 for none"),
            Field("wanted_groups", "worker groups of that configuration"),
            Field("wanted_pin", "1: its workers choose and keep cores of their own"),
        ),
    ),
    Section(
        "group_commands",
        (
            Field("command_cap", "batch cap, 0: the group's own"),
            Field("weight_milli", "factor of the cap for the class, in 1/1000; 0: never", count=2),
            Field("preference", "groups with a lower number are filled first", count=2),
            Field("wanted_instances", "of the wanted configuration, as the next two"),
            Field("wanted_threads", "threads of each instance"),
            Field("wanted_batch", "largest batch of each instance"),
            Field(
                "wanted_cpus",
                "slices of CPUs for its workers, 0: as wanted_pin says",
                count=CPU_SLICES // 64,
            ),
            Field("wanted_device", "name of their device or a part of one", width=DEVICE_BYTES),
        ),
        repeat=GROUP_COUNT,
    ),
    Section(
        "network",
        (
            Field("network_workers", "workers that are attached to the network front end"),
            Field("network_entries", "entries of the tensor queue"),
            Field("network_free", "of these, used by nobody"),
            Field("network_queued", "requests that wait for a worker"),
            Field("network_sessions", "open sessions"),
            Field("network_credit", "requests that clients may have on their way"),
            Field("network_needs_mb", "memory of its queue, more than queue_mb allows; 0: it fits"),
        ),
    ),
    Section(
        "padding",
        (
            Field("padding_known", "1: the words below are the controller's"),
            Field(
                "beside",
                "mask of slots: this model's best effort may run beside their strict work",
                count=SLOT_WORDS,
            ),
            Field("strict_claims", "which requests may say that they are strict, CLAIMS_..."),
        ),
    ),
)


@dataclass(frozen=True)
class Placed:
    """A field with its offset from the start of its structure."""

    field: Field
    offset: int
    section: Section


def place(sections: tuple[Section, ...]) -> tuple[dict[str, Placed], int]:
    """Lay sections out; return the fields by name and the size in bytes.

    The offset of a field in a repeated section is that of repetition 0.
    """
    fields: dict[str, Placed] = {}
    at = 0
    for section in sections:
        inner = at
        for field in section.fields:
            assert field.name not in fields, field.name
            fields[field.name] = Placed(field, inner, section)
            inner += field.count * field.width
        at += section.stride * section.repeat
    return fields, at


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
    parts = ("H", HEADER_FIELDS), ("K", HOLDER_FIELDS), ("R", RUNNER_FIELDS), ("S", SLOT_FIELDS)
    for prefix, fields in parts:
        for name, placed in fields.items():
            extent = f" [{placed.field.count}]" if placed.field.count > 1 else ""
            rows.append((f"{prefix}_{name.upper()}", placed.offset, placed.field.meaning + extent))
    return rows
