"""What comes to the cluster: requests of each second, by class, and the best-effort model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import arrivals
import numpy as np

from protean.workloads import Workload, World, batches_of


@dataclass(frozen=True)
class Second:
    """Requests of one second."""

    at: int
    strict: int
    best_effort: int
    model: str
    """Of best effort; empty when there is none."""


def seconds(workload: Workload, world: World) -> Iterator[Second]:
    """Every second of a run: as many as the trace's rate says, the classes in the same ratio."""
    choose = np.random.default_rng(workload.seed)
    rates = arrivals.preset(
        workload.trace, workload.seconds, workload.seed, mean=workload.mean_rate()
    )
    rates = rates * (world.gpus / 8)
    share = workload.share if workload.strict is not None else 0.0
    if world.poisson:
        counts = choose.poisson(rates)
        strict = choose.binomial(counts, share)
    else:
        counts = np.rint(rates).astype(int)
        strict = np.rint(counts * share).astype(int)
    pool = workload.best_effort()
    models = choose.integers(0, len(pool), int(workload.seconds / world.model_s) + 1)
    for at in range(workload.seconds):
        model = pool[models[int(at / world.model_s)]] if workload.share < 1 else ""
        yield Second(at, int(strict[at]), int(counts[at] - strict[at]), model)


def sizes(requests: int, batch: int) -> list[int]:
    """Of the batches that so many requests make: full ones, then what is left.

    >>> sizes(300, 128)
    [128, 128, 44]
    """
    count = batches_of(requests, batch)
    return [min(batch, requests - batch * at) for at in range(count)]
