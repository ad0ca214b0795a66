"""What Triton's statistics of a model say between two looks at them. Pure.

Triton counts since a model was loaded; a count that fell began anew. Requests are those of clients,
rows what batches are counted in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PHASES = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class Counters:
    """Totals of all versions of a model."""

    requests: int = 0
    """That were answered."""
    failed: int = 0
    rows: int = 0
    total_ns: int = 0
    """From the arrival of each answered request to its answer, added up."""
    queued: int = 0
    """Requests whose wait is known."""
    queue_ns: int = 0
    batches: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By rows: how many, and how long they ran together, in ns."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Counters:
        """From the answer to ``GET v2/models/NAME/stats``; what it lacks counts as nothing."""
        found = cls()
        for each in answer.get("model_stats", ()):
            found = found.plus(_of_version(each))
        return found

    def plus(self, other: Counters) -> Counters:
        """Both together."""
        return Counters(
            self.requests + other.requests,
            self.failed + other.failed,
            self.rows + other.rows,
            self.total_ns + other.total_ns,
            self.queued + other.queued,
            self.queue_ns + other.queue_ns,
            {
                size: _sum(self.batches.get(size, (0, 0)), other.batches.get(size, (0, 0)))
                for size in self.batches.keys() | other.batches.keys()
            },
        )


@dataclass(frozen=True)
class Load:
    """What happened between two looks."""

    depth: float
    """Rows in the system on average: waiting and running (Little's law)."""
    rate: float
    """Rows per second."""
    waited_ns: int
    """Of a request in the queue, on average."""
    batches: Mapping[int, tuple[int, float]]
    """By rows: how many ran, and how long each, in ns, on average."""


def began_anew(before: Counters, after: Counters) -> bool:
    """Whether the model was loaded again meanwhile."""
    return after.requests < before.requests or after.rows < before.rows


def between(before: Counters, after: Counters, seconds: float) -> Load:
    """What happened meanwhile; ``seconds`` is above 0."""
    if began_anew(before, after):
        before = Counters()
    requests, rows = after.requests - before.requests, after.rows - before.rows
    queued = after.queued - before.queued
    batches = {}
    for size, (count, ns) in after.batches.items():
        count_before, ns_before = before.batches.get(size, (0, 0))
        if count > count_before and ns > ns_before:
            batches[size] = (count - count_before, (ns - ns_before) / (count - count_before))
    each = rows / requests if requests else 0.0
    return Load(
        depth=max(0.0, (after.total_ns - before.total_ns) / 1e9 / seconds * each),
        rate=max(0.0, rows / seconds),
        waited_ns=max(0, (after.queue_ns - before.queue_ns) // queued) if queued > 0 else 0,
        batches=batches,
    )


def _of_version(found: Mapping[str, Any]) -> Counters:
    inferences = found.get("inference_stats", {})
    batches: dict[int, tuple[int, int]] = {}
    for each in found.get("batch_stats", ()):
        phases = [each.get(name, {}) for name in _PHASES]
        count = max(int(phase.get("count", 0)) for phase in phases)
        batches[int(each["batch_size"])] = (count, sum(int(p.get("ns", 0)) for p in phases))
    return Counters(
        requests=_number(inferences, "success", "count"),
        failed=_number(inferences, "fail", "count"),
        rows=int(found.get("inference_count", 0)),
        total_ns=_number(inferences, "success", "ns"),
        queued=_number(inferences, "queue", "count"),
        queue_ns=_number(inferences, "queue", "ns"),
        batches=batches,
    )


def _sum(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] + right[0], left[1] + right[1]


def _number(inferences: Mapping[str, Any], phase: str, what: str) -> int:
    return int(inferences.get(phase, {}).get(what, 0))
