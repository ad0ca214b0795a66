"""What ``shunter plot`` draws, as numbers: profiles, speed-ups and timelines."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shunter.allocator.planning.profile import Profile, batch_sizes
from shunter.allocator.planning.profile_table import latency_table
from shunter.plugins.errors import UserError
from shunter.plugins.profiling.planning import FAT, ONE_PER_CORE, plan_each

FULL_ROWS = 24
"""Above so many threads a heat map has only the rows with a measurement."""
MOST_WINDOWS = 100_000
"""Of a timeline: more than a picture has room for, few enough for the memory."""
BASELINES = {FAT: "fat", ONE_PER_CORE: "one_per_core"}
"""What a choice is compared with: its name in a plan and in a benchmark's rows."""


@dataclass(frozen=True)
class HeatMap:
    """Latency in ms by threads (rows) and batch size (columns); inf where nothing is known."""

    threads: tuple[int, ...]
    batches: tuple[int, ...]
    ms: NDArray[np.float64]
    measured: NDArray[np.bool_]


def heat_map(profile: Profile) -> HeatMap:
    """The cells of a profile and what is interpolated between them."""
    if not profile.cells:
        raise UserError(f"the profile of {profile.provenance.model} has no cells yet")
    known = {threads for threads, _ in profile.cells}
    rows = [t for t in range(1, profile.threads + 1) if profile.threads <= FULL_ROWS or t in known]
    sizes = sorted({*batch_sizes(profile.batch), *(batch for _, batch in profile.cells)})
    table = latency_table(profile)
    of_rows = [[table.of(t, b) for b in sizes] for t in rows]
    # A table never falls with the batch size; what was measured is shown as it was.
    for i, t in enumerate(rows):
        for j, b in enumerate(sizes):
            if (t, b) in profile.cells:
                of_rows[i][j] = profile.cells[t, b].ms
    measured = np.array([[(t, b) in profile.cells for b in sizes] for t in rows])
    return HeatMap(tuple(rows), tuple(sizes), np.array(of_rows), measured)


@dataclass(frozen=True)
class Bar:
    """A measured speed-up: of which model, for which batch, over what."""

    model: str
    batch: int
    over: str
    speedup: float
    low: float
    high: float
    """Its 95 % interval; both are the speed-up itself where there is none."""


@dataclass(frozen=True)
class Speedups:
    """How many times as fast the choice is, by batch size, over each baseline."""

    model: str
    threads: int
    expected: dict[str, dict[int, float]]
    measured: dict[str, list[Bar]] = field(default_factory=dict)

    @property
    def batches(self) -> list[int]:
        """All batch sizes, ascending."""
        expected = {batch for values in self.expected.values() for batch in values}
        return sorted(expected | {bar.batch for bars in self.measured.values() for bar in bars})


def speedup_series(
    profiles: Sequence[Profile], threads: int | None, bars: Sequence[Bar] = ()
) -> list[Speedups]:
    """Expected speed-ups of each profile on one node of ``threads`` cores, with measured ones."""
    found = []
    for profile in profiles:
        model, cores = profile.provenance.model, threads or profile.threads
        plans = plan_each(profile, [cores], largest=profile.batch)
        expected: dict[str, dict[int, float]] = {name: {} for name in BASELINES}
        for each in plans:
            for name in BASELINES:
                if row := each.row(name):
                    expected[name][each.batch] = row.latency_ms / each.chosen.latency_ms
        mine = [bar for bar in bars if bar.model == model]
        measured = {name: [bar for bar in mine if bar.over == name] for name in BASELINES}
        found.append(Speedups(model, cores, expected, measured))
    if bars and not any(values for each in found for values in each.measured.values()):
        models = ", ".join(sorted({bar.model for bar in bars}))
        raise UserError(f"--measured holds no row of these profiles, only of {models}")
    return found


def mean_speedup(speedups: Collection[float]) -> float:
    """Geometric mean, nan without a value."""
    return math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else math.nan


def measured_bars(path: Path) -> list[Bar]:
    """Speed-ups in the rows of a benchmark's JSON. Raises UserError when there are none."""
    content = _read_json(path)
    rows = content.get("rows") if isinstance(content, dict) else content
    try:
        # A benchmark's last rows are means over its other ones.
        bars = [bar for row in rows if "chosen" in row for bar in _bars_of(row)]
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"{path} is no result of bench/packrat_micro.py: {error!r}") from error
    if not bars:
        raise UserError(f"{path} has no rows with model, batch, chosen and fat")
    return bars


def _bars_of(row: dict[str, Any]) -> list[Bar]:
    """Speed-ups of a row: medians of paired ratios where it has them."""
    found = []
    for name, key in BASELINES.items():
        if not row.get(key):
            continue
        ratio = float(row[key]["ms"]) / float(row["chosen"]["ms"])
        pairs = row.get(f"vs_{key}", {"median": ratio, "low": ratio, "high": ratio})
        interval = (float(pairs[end]) for end in ("median", "low", "high"))
        found.append(Bar(str(row["model"]), int(row["batch"]), name, *interval))
    return found


@dataclass(frozen=True)
class Series:
    """Latency of requests over time."""

    name: str
    t_s: NDArray[np.float64]
    latency_ms: NDArray[np.float64]


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    t_s: float
    label: str


@dataclass(frozen=True)
class Timeline:
    """Latencies and what happened meanwhile."""

    series: tuple[Series, ...]
    events: tuple[Event, ...]


def read_timeline(path: Path) -> Timeline:
    """A timeline in JSON. Raises UserError when it is none."""
    content = _read_json(path)
    try:
        series = tuple(_series(each) for each in content["series"])
        events = tuple(Event(float(e["t_s"]), str(e["label"])) for e in content.get("events", []))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a timeline: {error!r}") from error
    if not series:
        raise UserError(f"{path} has no series")
    return Timeline(series, events)


def _series(content: dict[str, Any]) -> Series:
    name = str(content["name"])
    t_s = np.array(content["t_s"], dtype=float)
    latency_ms = np.array(content["latency_ms"], dtype=float)
    if t_s.ndim != 1 or t_s.shape != latency_ms.shape or not t_s.size:
        raise ValueError(f"{name}: t_s and latency_ms are lists of the same length, not empty")
    if not np.isfinite(t_s).all() or not (latency_ms > 0).all():
        raise ValueError(f"{name}: times are numbers, latencies above 0")
    order = np.argsort(t_s, kind="stable")
    return Series(name, t_s[order], latency_ms[order])


def windows(
    series: Series, window_s: float, percents: Sequence[float] = (50, 99)
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Middles of the windows, and per percentile its values; nan where no request began.

    Each value is one that was measured. Raises UserError for too many windows.
    """
    begin, end = float(series.t_s[0]), float(series.t_s[-1])
    count = (end - begin) / window_s
    if count > MOST_WINDOWS:
        raise UserError(
            f"{series.name}: from {begin:g} to {end:g} s are {count:.3g} windows, allowed: "
            f"{MOST_WINDOWS}; take a larger --window-ms, or give all times by one clock"
        )
    number = np.floor(series.t_s / window_s).astype(int)
    every = np.arange(number[0], number[-1] + 1)
    starts = np.searchsorted(number, every)
    ends = np.searchsorted(number, every, side="right")
    parts = [series.latency_ms[a:b] for a, b in zip(starts, ends, strict=True)]
    values = [
        np.array(
            [np.percentile(p, percent, method="inverted_cdf") if p.size else np.nan for p in parts]
        )
        for percent in percents
    ]
    return (every + 0.5) * window_s, values


def label_rows(events: Sequence[Event], character_s: float) -> list[tuple[Event, int]]:
    """For each event the lowest row in which its label covers no other one's."""
    ends: list[float] = []
    placed = []
    for event in sorted(events, key=lambda event: event.t_s):
        half = (len(event.label) + 1) * character_s / 2
        row = next((i for i, end in enumerate(ends) if end <= event.t_s - half), len(ends))
        ends[row : row + 1] = [event.t_s + half]
        placed.append((event, row))
    return placed


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
