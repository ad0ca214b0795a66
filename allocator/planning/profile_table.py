"""Latency of every ⟨threads, batch⟩, made of the cells of a profile.

Straight lines between measured batch sizes, and between measured numbers of threads the law of
Amdahl, a straight line in 1/threads. Beyond the largest measured batch nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from shunter.allocator.planning.latency_table import LatencyTable, Memory
from shunter.allocator.planning.profile import Cell, Profile

CAUTION = 0.02
"""Surcharge on a latency between measured numbers of threads, as a share."""


def latency_table(profile: Profile) -> LatencyTable:
    """Latency in ms of every ⟨threads 1..T, batch 1..B⟩; inf beyond what was measured."""
    measured = {key: cell.ms for key, cell in profile.cells.items()}
    return LatencyTable(cautious(measured, profile.threads, profile.batch))


def cautious(
    measured: Mapping[tuple[int, int], float], threads: int, batch: int
) -> NDArray[np.float64]:
    """Latencies in which a guess between numbers of threads counts a little more than it says.

    An adaptive profile ends when no guess promises more than the tolerance; without the surcharge
    the optimizer would then take guesses for gains that are smaller than their errors.
    """
    sure = measured_rows(measured, threads, batch)
    guessed = interpolate(measured, threads, batch) * (1 + CAUTION)
    return np.maximum.accumulate(np.where(np.isfinite(sure), sure, guessed), axis=1)


def measured_rows(
    measured: Mapping[tuple[int, int], float], threads: int, batch: int
) -> NDArray[np.float64]:
    """Rows of the numbers of threads that were measured, each up to its largest batch."""
    rows = np.full((threads, batch), np.inf)
    for t in {t for t, _ in measured}:
        rows[t - 1] = _row({b: ms for (of, b), ms in measured.items() if of == t}, batch)
    return rows


def interpolate(
    measured: Mapping[tuple[int, int], float], threads: int, batch: int
) -> NDArray[np.float64]:
    """Latencies of ``threads`` x ``batch`` from those of some ⟨t, b⟩; rows never fall with b."""
    sizes = sorted({b for _, b in measured})
    columns = [
        _column({t: ms for (t, of), ms in measured.items() if of == b}, threads) for b in sizes
    ]
    grid = np.reshape(columns, (len(sizes), threads)).T
    rows = [dict(zip(sizes, row, strict=True)) for row in grid]
    return np.array([_row(row, batch) for row in rows])


def _row(known: Mapping[int, float], batch: int) -> NDArray[np.float64]:
    """Latency by batch size of one number of threads; inf is not known."""
    sizes = [b for b in sorted(known) if math.isfinite(known[b])]
    if not sizes:
        return np.full(batch, np.inf)
    values = np.maximum.accumulate([known[b] for b in sizes])
    # Below the smallest measured batch: what that takes, at most.
    return np.interp(np.arange(1, batch + 1), sizes, values, right=np.inf)


def _column(measured: Mapping[int, float], threads: int) -> NDArray[np.float64]:
    """Latency of one batch size on 1..threads threads.

    Amdahl: a fixed part and work / threads, through both neighbours. More threads than were ever
    tried are at best as fast, since idle ones cost nothing; of fewer nothing is known.
    """
    known = np.array(sorted(measured, reverse=True))
    values = [measured[t] for t in known]
    return np.interp(1 / np.arange(1, threads + 1), 1 / known, values, right=np.inf)


def memory_of(cells: Iterable[Cell], budget: float = math.inf) -> Memory:
    """Memory of instances as a line through the highest resident sizes, with a budget in bytes."""
    points = [(cell.batch, cell.peak_bytes) for cell in cells if cell.peak_bytes]
    if not points:
        return Memory(budget=budget)
    sizes = np.array([b for b, _ in points], dtype=float)
    peaks = np.array([p for _, p in points], dtype=float)
    slope = max(0.0, float(np.polyfit(sizes, peaks, 1)[0])) if len(set(sizes)) > 1 else 0.0
    return Memory(max(0.0, float((peaks - slope * sizes).max())), slope, budget)
