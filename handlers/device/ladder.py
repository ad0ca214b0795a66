"""Which way best-effort work on a device gets out of the way: the ladder, its choice, its limits.

Numbers in, numbers out. The rungs, the lowest first:

``priority``: strict work has a stream of the highest priority. Blocks of strict kernels go first
as running blocks retire; nothing stands still.
``segments``: the pass is a sequence of CUDA graphs, of which the host keeps at most a few on the
device, and it looks before each (the virtual host queue of REEF's version for NVIDIA devices,
section 4.3, with segments for kernels). Parking redoes nothing. The default.
``gates``: the whole pass is on the device, and a memory operation between segments waits until a
word of shared memory is 0. No host takes part when the word is stored.

Padding (``padded``) comes on top of the last two: while strict work runs, other best-effort work
goes on on a few multiprocessors of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

WANTED = "SHUNTER_DEVICE_RUNG"
"""Environment variable that forces a rung."""
WINDOW = 2
"""Segments of the ``segments`` rung that may be on the device at once."""
TARGET_US = 50.0
"""Time of a segment that is aimed at: what a strict request waits is half of it on average."""
SLOW_DOWN = 0.02
"""Strict work may take longer by this share."""
PREEMPT_P99_US = 100.0
CONNECTIONS = 32
"""Hardware queues. Two streams in one would wait for each other, and a gate would hold both."""


class Rung(StrEnum):
    """A way of standing still."""

    PRIORITY = "priority"
    SEGMENTS = "segments"
    GATES = "gates"


@dataclass(frozen=True)
class Capabilities:
    """What a device and its software can do."""

    priorities: bool = True
    """Streams have priorities."""
    graphs: bool = True
    """A captured graph can be made part of another one (torch from 2.8)."""
    wait_value: bool = False
    """A stream can wait until a word of memory has a value."""
    host_memory: bool = False
    """Memory of the host that others share can be registered."""
    green_contexts: bool = False

    def missing(self, rung: Rung) -> list[str]:
        """What the rung needs and is not there."""
        needs = {
            Rung.PRIORITY: ("priorities",),
            Rung.SEGMENTS: ("graphs",),
            Rung.GATES: ("graphs", "wait_value", "host_memory"),
        }
        return [name for name in needs[rung] if not getattr(self, name)]


@dataclass(frozen=True)
class Measured:
    """What a rung was found to do on a device."""

    preempt_p99_us: float
    strict_overhead: float
    """Share by which the mean of strict work grew."""
    best_effort_share: float
    """Best-effort throughput as a share of what it has alone."""


class RungError(ValueError):
    """The rung that was asked for is unknown or cannot be had; the message says why."""


def choose(
    capabilities: Capabilities,
    measured: Mapping[Rung, Measured] | None = None,
    wanted: str | None = None,
) -> Rung:
    """The rung to use on a device.

    What is ``wanted`` (the value of ``SHUNTER_DEVICE_RUNG``) is taken. Else, of those that were
    measured and keep the limits, the one with the most best-effort work; if none keeps them, the
    one that delays strict work least. Without measurements ``segments``, the portable one, or
    ``priority`` where there are no graphs.
    Raises RungError for a wanted rung that is none or cannot be had.
    """
    if wanted:
        return _forced(capabilities, wanted)
    known = [
        (rung, found) for rung, found in (measured or {}).items() if not capabilities.missing(rung)
    ]
    within = [
        (rung, found)
        for rung, found in known
        if found.preempt_p99_us <= PREEMPT_P99_US and found.strict_overhead <= SLOW_DOWN
    ]
    if within:
        return max(within, key=lambda pair: pair[1].best_effort_share)[0]
    if known:
        return min(known, key=lambda pair: pair[1].strict_overhead)[0]
    return Rung.PRIORITY if capabilities.missing(Rung.SEGMENTS) else Rung.SEGMENTS


def _forced(capabilities: Capabilities, wanted: str) -> Rung:
    try:
        rung = Rung(wanted)
    except ValueError:
        allowed = ", ".join(Rung)
        raise RungError(f"{WANTED}={wanted}; allowed: {allowed}") from None
    if missing := capabilities.missing(rung):
        raise RungError(f"{WANTED}={wanted} needs what is not there: {', '.join(missing)}")
    return rung


def group(costs_us: Sequence[float], target_us: float) -> list[range]:
    """Neighbours that make up segments of at most ``target_us``, where a part alone is not longer.

    A part without cost joins the segment before it.

    >>> group([10, 10, 10, 60, 0, 10], 25)
    [range(0, 2), range(2, 3), range(3, 5), range(5, 6)]
    """
    found: list[range] = []
    begin, total = 0, 0.0
    for i, cost in enumerate(costs_us):
        if i > begin and cost > 0 and total + cost > target_us:
            found.append(range(begin, i))
            begin, total = i, 0.0
        total += cost
    if costs_us:
        found.append(range(begin, len(costs_us)))
    return found


def worker_environment(
    strict: bool, *, mps_pipe: str | None = None, best_effort_percent: int | None = None
) -> dict[str, str]:
    """Environment of a worker on a device, to be set before it touches CUDA.

    With ``mps_pipe``, the pipe directory of a running MPS daemon, workers of both classes share
    the device at once: best effort has the lower client priority (a hint), and at most
    ``best_effort_percent`` of the multiprocessors (a cap, no reservation), 100 unless given.
    Raises ValueError for a share outside 1 to 100.
    """
    found = {
        "CUDA_DEVICE_MAX_CONNECTIONS": str(CONNECTIONS),
        # A module that is loaded late waits for every stream, those that stand still included.
        "CUDA_MODULE_LOADING": "EAGER",
    }
    percent = 100 if best_effort_percent is None else best_effort_percent
    if not 1 <= percent <= 100:
        raise ValueError(f"{percent} % of the multiprocessors; allowed: 1 to 100")
    if mps_pipe is not None:
        found["CUDA_MPS_PIPE_DIRECTORY"] = mps_pipe
        found["CUDA_MPS_CLIENT_PRIORITY"] = "0" if strict else "1"
        if not strict:
            found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
    return found
