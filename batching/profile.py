"""A model's latency by threads and batch size, as measured (Packrat section 3.2).

A profile is JSON beside the model: where it was measured, of what, and one cell per ⟨threads,
batch⟩. :func:`latency_table` makes of it the latency of *every* integer batch size and number of
threads: straight lines between measured batch sizes, and between measured numbers of threads the
law of Amdahl, a straight line in 1/threads. Beyond the largest measured batch nothing is guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shunter.batching.optimizer import LatencyTable, Memory

VERSION = 1
MAX_THREADS = 1024
"""With the next one a bound of the table that is made of a file: 32 MiB."""
LARGEST_BATCH = 4096
MAX_CORES = 8192
FORMAT = "shunter-profile"
CAUTION = 0.02
"""Surcharge on a latency between measured numbers of threads, as a share."""
_NUMBERS = ("threads", "batch", "mode", "seconds", "complete", "error")


class ProfileError(ValueError):
    """The profile cannot be used; the message says why and what to do."""


def _is_whole(value: object, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0


@dataclass(frozen=True)
class Cell:
    """Measured latency of one instance on ``threads`` threads with batches of ``batch``."""

    threads: int
    batch: int
    ms: float
    """Median."""
    low_ms: float
    high_ms: float
    """95 % interval of the median."""
    runs: int
    outliers: int = 0
    """Runs left out because something else held the processor."""
    peak_bytes: int = 0
    """Highest resident memory of the process so far."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        times = (self.low_ms, self.ms, self.high_ms)
        if not all(_is_whole(n, 1) for n in (self.threads, self.batch, self.runs)):
            raise ProfileError(
                f"cell {self.threads}x{self.batch}: threads, batch and runs are at least 1"
            )
        if not all(_is_whole(n, 0) for n in (self.outliers, self.peak_bytes)):
            raise ProfileError(
                f"cell {self.threads}x{self.batch}: outliers and peak_bytes are at least 0"
            )
        if not all(math.isfinite(t) and t > 0 for t in times) or sorted(times) != list(times):
            raise ProfileError(f"cell {self.threads}x{self.batch}: latency {times} ms")


@dataclass(frozen=True)
class SliceKind:
    """What each instance ran on: cores of a CPU, a GPU, or a MIG instance."""

    kind: str = "cpu"
    """``cpu`` or ``gpu``."""
    profile: str = ""
    """Of the MIG instance, as ``3g.40gb``; empty: a whole GPU."""
    memory_gib: float = 0.0
    """Of the device."""

    def __post_init__(self) -> None:
        """Check that there is such a thing."""
        if self.kind not in ("cpu", "gpu"):
            raise ProfileError(f"slice kind {self.kind!r}; allowed: cpu, gpu")
        if not isinstance(self.profile, str):
            raise ProfileError(f"slice profile {self.profile!r}; allowed: a text")
        if not _is_amount(self.memory_gib) or (self.memory_gib > 0) != (self.kind == "gpu"):
            raise ProfileError(
                f"slice memory_gib {self.memory_gib!r}; allowed: above 0 for a gpu, else 0"
            )
        if self.profile and self.kind == "cpu":
            raise ProfileError(f"slice profile {self.profile!r}; allowed: none for a cpu")

    def __str__(self) -> str:
        """For people."""
        if self.kind == "cpu":
            return "CPU cores"
        return f"{self.profile or 'a whole GPU'} with {self.memory_gib:g} GiB"


@dataclass(frozen=True)
class Provenance:
    """What was measured, and where; :meth:`differences` says when that is elsewhere."""

    model: str
    model_hash: str
    """SHA-256 of the archive's list of files."""
    cpu: str
    cores: int
    """Physical cores this process may use."""
    torch: str
    sample_hash: str
    """SHA-256 of the request that was sent."""
    date: str = ""
    shunter: str = ""
    python: str = ""
    slice: SliceKind = SliceKind()

    def __post_init__(self) -> None:
        """Check the types."""
        for name, value in vars(self).items():
            if name not in ("cores", "slice") and not isinstance(value, str):
                raise ProfileError(f"{name} {value!r}; allowed: a text")
        if not (_is_whole(self.cores, 1) and self.cores <= MAX_CORES):
            raise ProfileError(f"cores {self.cores!r}; allowed: 1 to {MAX_CORES}")

    def differences(self, other: Provenance) -> list[str]:
        """What makes a profile of ``self`` unusable for ``other``, in words."""
        names = {"model_hash": "model", "cpu": "processor", "cores": "cores", "torch": "torch"}
        slices = [f"{self.slice}, here {other.slice}"] if self.slice != other.slice else []
        return slices + [
            f"{word} {getattr(self, name)[:40]!r}, here {getattr(other, name)[:40]!r}"
            if isinstance(getattr(self, name), str)
            else f"{getattr(self, name)} {word}, here {getattr(other, name)}"
            for name, word in names.items()
            if getattr(self, name) != getattr(other, name)
        ]


@dataclass(frozen=True)
class Profile:
    """Cells by ⟨threads, batch⟩, and where they come from."""

    provenance: Provenance
    threads: int
    """Most threads of an instance."""
    batch: int
    """Largest batch."""
    mode: str
    """``adaptive`` or ``exhaustive``."""
    cells: Mapping[tuple[int, int], Cell] = field(default_factory=dict)
    seconds: float = 0.0
    """Time spent measuring."""
    complete: bool = False
    failed: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Cells that could not be measured, and why; not kept on disk, so the next run tries again."""
    error: float | None = None
    """How much slower than the best of an exhaustive profile a choice may be, as a share."""
    alone: bool = False
    """Whether one instance ran at a time, and not as many side by side as when they serve."""

    def __post_init__(self) -> None:
        """Check the range and the types."""
        for name, most in (("threads", MAX_THREADS), ("batch", LARGEST_BATCH)):
            value = getattr(self, name)
            if not (_is_whole(value, 1) and value <= most):
                raise ProfileError(f"{name} {value}; allowed: 1 to {most}")
        if not _is_amount(self.seconds):
            raise ProfileError(f"seconds {self.seconds!r}; allowed: a number from 0")
        if self.error is not None and not _is_amount(self.error):
            raise ProfileError(f"error {self.error!r}; allowed: a number from 0, or null")
        for name in ("complete", "alone"):
            if not isinstance(getattr(self, name), bool):
                raise ProfileError(f"{name} {getattr(self, name)!r}; allowed: true or false")

    @property
    def way(self) -> str:
        """How it was measured, in words."""
        return f"{self.mode}, one instance at a time" if self.alone else self.mode

    @property
    def possible(self) -> int:
        """Cells of an exhaustive profile, and those measured up to an earlier largest batch."""
        sizes = batch_sizes(self.batch)
        return self.threads * len(sizes) + sum(b not in sizes for _, b in self.cells)

    def with_cell(self, cell: Cell, seconds: float) -> Profile:
        """The profile with one more cell, ``seconds`` later."""
        cells = {**self.cells, (cell.threads, cell.batch): cell}
        return replace(self, cells=cells, seconds=self.seconds + seconds)

    def finished(self, error: float | None) -> Profile:
        """The profile when nothing more is to be measured."""
        return replace(self, complete=True, error=error)

    def check_usable(self, here: Provenance) -> None:
        """Raises ProfileError when it was measured of another model or on another machine."""
        if found := self.provenance.differences(here):
            raise ProfileError(
                f"the profile of {self.provenance.model} was measured with {'; '.join(found)}: "
                "run `shunter profile` again"
            )

    def to_json(self) -> str:
        """The file's text."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "provenance": asdict(self.provenance),
            **{name: getattr(self, name) for name in _NUMBERS},
            "alone": self.alone,
            "cells": [asdict(self.cells[key]) for key in sorted(self.cells)],
        }
        return json.dumps(content, indent=1)


def read_profile(text: str | bytes) -> Profile:
    """Return the profile of a file's text. Raises ProfileError when it is not one."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ProfileError("not a profile of Shunter")
    if content.get("version") != VERSION:
        raise ProfileError(
            f"version {content.get('version')}, this program knows {VERSION}: "
            "run `shunter profile` again"
        )
    try:
        cells = [Cell(**each) for each in content["cells"]]
        provenance = {**content["provenance"]}
        provenance["slice"] = SliceKind(**provenance.get("slice", {}))
        profile = Profile(
            provenance=Provenance(**provenance),
            cells={(cell.threads, cell.batch): cell for cell in cells},
            **{name: content[name] for name in _NUMBERS},
            alone=content.get("alone", False),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ProfileError(f"incomplete or damaged: {error}") from None
    if any(t > profile.threads or b > profile.batch for t, b in profile.cells):
        raise ProfileError("damaged: cells beyond the profile's own threads and batch")
    return profile


def batch_sizes(largest: int) -> list[int]:
    """Batch sizes that are measured: powers of two, and the largest."""
    sizes = [1 << k for k in range(largest.bit_length()) if 1 << k <= largest]
    return sizes if sizes[-1] == largest else [*sizes, largest]


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


def summary(profile: Profile) -> dict[str, Any]:
    """The profile in a few words, for people."""
    return {
        "cells": len(profile.cells),
        "of": profile.possible,
        "seconds": round(profile.seconds, 1),
        "complete": profile.complete,
        "error": profile.error,
    }
