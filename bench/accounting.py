"""What the requests of a run amount to: raw samples, and sums per stream.

A request that was not answered, or with another status than 200, or late, is a miss. Latencies
count from the scheduled time of sending.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from common import percentile
from http_client import UNANSWERED

GRPC_BASE = 1000
"""Statuses of gRPC calls that failed are this plus gRPC's number; OK counts as 200."""
_GRPC_NAMES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


@dataclass(frozen=True)
class Samples:
    """One entry per request, in the order of their scheduled times."""

    due_s: np.ndarray
    """Scheduled time of sending, from the start of the run."""
    late_s: np.ndarray
    """How late the client came to it."""
    wait_s: np.ndarray
    """How long it then waited in the client for a connection; nan: until its end."""
    latency_s: np.ndarray
    """From the scheduled time to the end."""
    status: np.ndarray
    """HTTP's, 1000 + gRPC's, or negative for no answer (``http_client.UNANSWERED``)."""
    stream: np.ndarray
    """Index of the stream."""

    def __len__(self) -> int:
        return len(self.due_s)

    def where(self, chosen: np.ndarray) -> Samples:
        """Some of them: a mask or indices."""
        return Samples(**{name: values[chosen] for name, values in vars(self).items()})

    def of(self, stream: int) -> Samples:
        """Those of one stream."""
        return self.where(self.stream == stream)

    def between(self, start_s: float, end_s: float) -> Samples:
        """Those that were due in an interval."""
        return self.where((self.due_s >= start_s) & (self.due_s < end_s))

    def save(self, path: Path) -> None:
        """Write them as .npz."""
        np.savez_compressed(path, **vars(self))

    @classmethod
    def read(cls, path: Path) -> Samples:
        """Read what ``save`` wrote."""
        with np.load(path) as file:
            return cls(**{name: file[name] for name in file.files})


def status_name(status: int) -> str:
    """As it stands in results: ``200``, ``RESOURCE_EXHAUSTED``, ``timeout``.

    >>> status_name(503), status_name(1008), status_name(-1)
    ('503', 'RESOURCE_EXHAUSTED', 'timeout')
    """
    if status in UNANSWERED:
        return UNANSWERED[status]
    if status >= GRPC_BASE:
        return _GRPC_NAMES[status - GRPC_BASE]
    return str(status)


def summary(samples: Samples, seconds: float, slo_ms: float | None) -> dict[str, Any]:
    """Sums of one stream over ``seconds`` of schedule; rates are per second of the schedule.

    Without an SLO every answer with status 200 is good. Latencies are of answers with status 200;
    ``p99_of_all_ms`` is of all that was sent, None when more than 1 % have no such answer.
    """
    statuses = Counter(status_name(int(status)) for status in samples.status)
    latencies = samples.latency_s[samples.status == 200] * 1e3
    good = len(latencies) if slo_ms is None else int(np.count_nonzero(latencies <= slo_ms))
    ordered, sent = np.sort(latencies).tolist(), len(samples)
    return {
        "sent": sent,
        "seconds": round(seconds, 3),
        "statuses": dict(sorted(statuses.items())),
        "ok": len(ordered),
        "unanswered": int(np.count_nonzero(samples.status < 0)),
        "good": good,
        "offered_per_s": round(sent / seconds, 3),
        "ok_per_s": round(len(ordered) / seconds, 3),
        "goodput_per_s": round(good / seconds, 3),
        "attainment": round(good / sent, 6) if sent else None,
        "p50_ms": _rounded(percentile(ordered, 0.5)),
        "p99_ms": _rounded(percentile(ordered, 0.99)),
        "p99_of_all_ms": _rounded(percentile([*ordered, *[np.nan] * (sent - len(ordered))], 0.99)),
        "p999_ms": _rounded(percentile(ordered, 0.999)),
        "max_ms": _rounded(ordered[-1] if ordered else float("nan")),
    }


def client_summary(samples: Samples) -> dict[str, Any]:
    """How well the client kept its schedule."""
    late = np.sort(samples.late_s * 1e3).tolist()
    waits = np.sort(samples.wait_s[~np.isnan(samples.wait_s)] * 1e3).tolist()
    return {
        "late_p50_ms": _rounded(percentile(late, 0.5)),
        "late_p99_ms": _rounded(percentile(late, 0.99)),
        "connection_wait_p99_ms": _rounded(percentile(waits, 0.99)),
    }


def windows(
    samples: Samples,
    seconds: float,
    *,
    width_s: float = 0.25,
    slo_ms: float | None = None,
) -> dict[str, list[float | None]]:
    """A time series by scheduled time: one entry per window of ``width_s``.

    ``p50_ms`` and ``p99_ms`` are of answers with status 200, None in windows without one.
    """
    count = max(1, int(np.ceil(seconds / width_s - 1e-9)))
    edges = np.searchsorted(samples.due_s, np.arange(count + 1) * width_s)
    series: dict[str, list[float | None]] = {"start_s": [], "sent": [], "ok": [], "good": []}
    series |= {"unanswered": [], "p50_ms": [], "p99_ms": []}
    for number in range(count):
        part = slice(edges[number], edges[number + 1])
        status = samples.status[part]
        latencies = np.sort(samples.latency_s[part][status == 200] * 1e3).tolist()
        good = [value for value in latencies if slo_ms is None or value <= slo_ms]
        row = (number * width_s, len(status), len(latencies), len(good))
        row += (int(np.count_nonzero(status < 0)),)
        row += (_rounded(percentile(latencies, 0.5)), _rounded(percentile(latencies, 0.99)))
        for values, value in zip(series.values(), row, strict=True):
            values.append(value)
    return series


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    streams: dict[str, dict[str, Any]]
    """Sums by name, see ``summary``."""
    client: dict[str, Any]
    """How late the client was, its cores, its event loop."""
    cpu_cores: dict[str, float]
    """Of ``Spec.cpu_pids``, mean of the counted time."""
    started: float
    """``time.monotonic()`` of the run's start; the same in every process of the machine."""
    counted_s: tuple[float, float]
    """What was counted, in seconds from the start."""
    samples: Samples
    """All requests, trimmed ones too."""

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Sums of one stream."""
        return self.streams[name]

    def of(self, name: str) -> Samples:
        """The requests of one stream, trimmed ones too."""
        return self.samples.of(list(self.streams).index(name))

    def windows(self, name: str, width_s: float = 0.25) -> dict[str, list[float | None]]:
        """A time series of one stream, see ``windows``."""
        slo_ms = self.streams[name]["slo_ms"]
        seconds = self.streams[name]["schedule_s"]
        return windows(self.of(name), seconds, width_s=width_s, slo_ms=slo_ms)

    def save(self, path: Path) -> None:
        """Write JSON, and the samples beside it as .npz."""
        content = {name: value for name, value in vars(self).items() if name != "samples"}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self.samples.save(path.with_suffix(".npz"))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        content["counted_s"] = tuple(content["counted_s"])
        return cls(**content, samples=Samples.read(path.with_suffix(".npz")))


def _rounded(value: float) -> float | None:
    """To a microsecond; JSON knows no nan."""
    return None if np.isnan(value) else round(value, 3)
