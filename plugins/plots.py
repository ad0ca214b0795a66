"""``shunter plot``: what is drawn, as numbers, and the drawing of it with matplotlib.

matplotlib is imported only where something is drawn, and without a display (Agg).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shunter.batching.profile import Profile, batch_sizes, latency_table
from shunter.plugins.errors import UserError
from shunter.plugins.planning import FAT, ONE_PER_CORE, plan_each, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
FULL_ROWS = 24
"""Above so many threads a heat map has only the rows with a measurement."""
LABEL_WIDTH = 0.0068
"""Of one character of an event's label, as a share of the axes."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by those who see few colours too."""
BASELINES = {FAT: "fat", ONE_PER_CORE: "one_per_core"}
"""What a choice is compared with: its name in a plan and in a benchmark's rows."""


# ---- numbers


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
    sizes = batch_sizes(profile.batch)
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
        plans = plan_each(profile, [cores])
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

    Each value is one that was measured.
    """
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


# ---- drawing


def _figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_profile(profile: Profile) -> Figure:
    """Threads x batch sizes, coloured by latency; what was not measured is pale and hatched."""
    found = heat_map(profile)
    rows, columns = found.ms.shape
    row_height = 0.42 if rows <= FULL_ROWS else 0.24
    figure = _figure(max(6.5, 0.8 * columns + 2.5), max(3.2, row_height * rows + 2.2))
    axes = figure.add_subplot()
    mappable = _colours(found)
    rgba = mappable.to_rgba(np.where(np.isfinite(found.ms), found.ms, np.nan))
    rgba[~found.measured, :3] = 0.3 * rgba[~found.measured, :3] + 0.7
    rgba[~np.isfinite(found.ms)] = (1, 1, 1, 1)
    axes.imshow(rgba, aspect="auto", origin="lower")
    for row, column in np.ndindex(rows, columns):
        _draw_cell(axes, found, row, column, rgba[row, column])
    axes.set_xticks(range(columns), [str(batch) for batch in found.batches])
    axes.set_yticks(range(rows), [str(threads) for threads in found.threads])
    axes.set_xlabel("batch size")
    axes.set_ylabel("threads of the instance")
    what = profile.provenance
    axes.set_title(f"{what.model}: latency of one batch\n{what.cpu}, torch {what.torch}", size=10)
    bar = figure.colorbar(mappable, ax=axes, label="latency (ms)")
    _plain_ticks(bar.ax.yaxis)
    _legend_of_cells(figure, found)
    return figure


def _colours(found: HeatMap) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    known = found.ms[np.isfinite(found.ms)]
    low, high = float(known.min()), float(known.max())
    # Equal ends would leave the colour bar without a length.
    return ScalarMappable(LogNorm(low, max(high, 1.01 * low)), "viridis_r")


def _draw_cell(
    axes: Axes, found: HeatMap, row: int, column: int, colour: NDArray[np.float64]
) -> None:
    from matplotlib.patches import Rectangle

    if found.measured[row, column]:
        dark = colour[:3] @ (0.299, 0.587, 0.114) < 0.5
        text = three_digits(found.ms[row, column])
        axes.text(
            column, row, text, ha="center", va="center", size=8, color="white" if dark else "black"
        )
    elif np.isfinite(found.ms[row, column]):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(
            Rectangle(corner, 1, 1, fill=False, hatch="///", edgecolor="#bbbbbb", linewidth=0)
        )


def _legend_of_cells(figure: Figure, found: HeatMap) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor="#21918c", label="measured")]
    unknown = ~np.isfinite(found.ms)
    if (~found.measured & ~unknown).any():
        pale = {"facecolor": "#d5ebe9", "edgecolor": "#bbbbbb", "hatch": "///"}
        handles.append(Patch(**pale, label="interpolated"))
    if unknown.any():
        handles.append(Patch(facecolor="white", edgecolor="#888888", label="not needed, unknown"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)


def draw_speedup(series: Sequence[Speedups]) -> Figure:
    """Speed-up of the choice by batch size: expected as lines, measured as bars (Figure 4)."""
    columns = min(2, len(series))
    rows = -(-len(series) // columns)
    figure = _figure(6.6 * columns, 3.4 * rows + 1)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, each in zip(grid, series, strict=False):
        _draw_speedups(axes, each)
    for axes in grid[len(series) :]:
        axes.set_visible(False)
    labels: dict[str, Any] = {}
    for axes in grid[: len(series)]:
        handles, names = axes.get_legend_handles_labels()
        labels |= dict(zip(names, handles, strict=True))
    figure.legend(
        labels.values(), labels.keys(), loc="outside lower center", ncols=2, frameon=False
    )
    return figure


def _draw_speedups(axes: Axes, each: Speedups) -> None:
    place = {batch: index for index, batch in enumerate(each.batches)}
    shown = [name for name in BASELINES if each.measured.get(name)]
    width = 0.7 / max(1, len(shown))
    for colour, name in zip(COLOURS, BASELINES, strict=False):
        values = each.expected[name]
        axes.plot(
            [place[b] for b in values],
            list(values.values()),
            marker="o",
            color=colour,
            label=f"expected over {name}",
        )
        if name in shown:
            shift = (shown.index(name) - (len(shown) - 1) / 2) * width
            _draw_bars(axes, each.measured[name], place, shift, width, colour)
    axes.axhline(1, color="#444444", linewidth=1)
    axes.set_xticks(range(len(place)), [str(batch) for batch in place])
    axes.set_xlabel("batch size")
    axes.set_ylabel("speed-up of the chosen configuration")
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    over = f"mean over fat: expected {mean_speedup(each.expected[FAT].values()):.2f}"
    if FAT in shown:
        over += f", measured {mean_speedup([bar.speedup for bar in each.measured[FAT]]):.2f}"
    axes.set_title(f"{each.model} on {each.threads} cores\n{over}", size=10)


def _draw_bars(
    axes: Axes,
    bars: Sequence[Bar],
    place: dict[int, int],
    shift: float,
    width: float,
    colour: str,
) -> None:
    """Bars of one baseline, with whiskers for their intervals."""
    at = [place[bar.batch] + shift for bar in bars]
    heights = [bar.speedup for bar in bars]
    below = [max(0.0, bar.speedup - bar.low) for bar in bars]
    above = [max(0.0, bar.high - bar.speedup) for bar in bars]
    axes.bar(at, heights, width, color=colour, alpha=0.4, label=f"measured over {bars[0].over}")
    whiskers: dict[str, Any] = {"fmt": "none", "ecolor": colour, "capsize": 2, "linewidth": 1}
    axes.errorbar(at, heights, yerr=[below, above], **whiskers)


def draw_timeline(timeline: Timeline, window_s: float) -> Figure:
    """Latency over time: requests as dots, p50 and p99 as lines, events as verticals (Figure 6)."""
    figure = _figure(10, 4.8)
    axes = figure.add_subplot()
    highest, typical = 0.0, math.inf
    for number, series in enumerate(timeline.series):
        colour = COLOURS[number % len(COLOURS)]
        middles, (half, most) = windows(series, window_s)
        style: dict[str, Any] = {"marker": ".", "linewidth": 0, "alpha": 0.15, "zorder": 1}
        axes.plot(series.t_s, series.latency_ms, markersize=3, color=colour, **style)
        axes.plot(middles, half, color=colour, linewidth=1.8, label=f"{series.name}: p50")
        axes.plot(
            middles, most, color=colour, linewidth=1.1, linestyle="--", label=f"{series.name}: p99"
        )
        highest = max(highest, float(series.latency_ms.max()))
        typical = min(typical, float(np.median(series.latency_ms)))
    if highest > 20 * typical:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    _draw_events(axes, timeline.events)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("latency (ms)")
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)
    windows_of = f"percentiles in windows of {window_s * 1e3:g} ms"
    figure.suptitle(f"Latency of requests, {windows_of}", size=11)
    figure.legend(loc="outside lower center", ncols=2 * min(2, len(timeline.series)), frameon=False)
    return figure


def _draw_events(axes: Axes, events: Sequence[Event]) -> None:
    """Verticals; labels stand above the axes."""
    begin, end = axes.get_xlim()
    for event, row in label_rows(events, LABEL_WIDTH * (end - begin)):
        axes.axvline(event.t_s, color="#444444", linewidth=1, linestyle=":")
        axes.annotate(
            event.label,
            (event.t_s, 1),
            (0, 3 + 11 * row),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            size=8,
        )


def _plain_ticks(axis: Any) -> None:
    """Numbers such as 20 and 500 on a logarithmic axis, instead of powers of ten only."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
