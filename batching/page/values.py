"""What numbers on the control page stand for, and how many there are of each thing. Pure."""

from __future__ import annotations

from enum import IntEnum

LAYOUT_VERSION = 11
MAGIC = int.from_bytes(b"SHUNTER\0", "little")


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
