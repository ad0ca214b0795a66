"""What a run comes to: compliance, tails, and of what a tail consists."""

from __future__ import annotations

from typing import Any

import numpy as np

from protean.cluster import Run

Row = dict[str, Any]
TOLERANCE = 1e-9
WARM_UP_S = 20.0
"""What comes before does not count: the first layouts, the first instances."""


def outcome(run: Run) -> Row:
    """Of one run; shares and percentiles are of requests, times in milliseconds."""
    world = run.world
    jobs = [job for job in run.jobs if job.arrived >= WARM_UP_S]
    strict = np.array([job.is_strict for job in jobs], dtype=bool)
    size = np.array([job.requests for job in jobs], dtype=float)
    alone = np.array([world.alone_s(job.model) for job in jobs]) * 1e3
    took = np.array([job.done - job.arrived for job in jobs]) * 1e3
    queued = np.array([job.started - job.arrived for job in jobs]) * 1e3
    slice_alone = np.array([job.alone for job in jobs]) * 1e3
    limit = np.array([world.limit_s(job.model) for job in jobs]) * 1e3
    in_time = took <= limit * (1 + TOLERANCE)
    row: Row = {
        "answered": sum(job.requests for job in run.jobs),
        "came": run.came,
        "changes": run.changes,
        "starts": run.starts,
        "mean_running": _mean_running(run),
    }
    if strict.any():
        row["compliance"] = float((size * in_time)[strict].sum() / size[strict].sum())
        row["strict_p50_ms"] = weighted(took[strict], size[strict], 0.50)
        row["strict_p99_ms"] = weighted(took[strict], size[strict], 0.99)
        row["p99_parts_ms"] = _parts(
            took[strict], queued[strict], slice_alone[strict], alone[strict]
        )
    if (~strict).any():
        row["be_p50_ms"] = weighted(took[~strict], size[~strict], 0.50)
        row["be_p99_ms"] = weighted(took[~strict], size[~strict], 0.99)
    return row


def weighted(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The smallest value that so large a share of the weight does not exceed.

    >>> weighted(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, share * total[-1] * (1 - 1e-12))])


def _parts(took: np.ndarray, queued: np.ndarray, slice_alone: np.ndarray, alone: np.ndarray) -> Row:
    """Means over the batches about the 99th percentile: those from the 98.5th on to the 99.5th."""
    low, high = np.quantile(took, (0.985, 0.995), method="nearest")
    near = (took >= low) & (took <= high)
    mean = {
        "alone on 7g": alone[near],
        "deficiency": slice_alone[near] - alone[near],
        "interference": took[near] - queued[near] - slice_alone[near],
        "queue": queued[near],
    }
    return {name: round(float(values.mean()), 2) for name, values in mean.items()}


def _mean_running(run: Run) -> float:
    """Batches that run on a GPU, on average."""
    busy = sum(job.done - job.started for job in run.jobs)
    end = max((job.done for job in run.jobs), default=1.0)
    return round(busy / end / run.world.gpus, 4)
