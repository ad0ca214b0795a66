"""The drawings of ``shunter plot``, with matplotlib.

matplotlib is imported only where something is drawn, and without a display (Agg).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shunter.allocator.planning.profile import Profile
from shunter.plugins.profiling.planning import FAT
from shunter.plugins.view.plan_view import three_digits
from shunter.plugins.view.plot_data import (
    BASELINES,
    FULL_ROWS,
    Bar,
    Event,
    HeatMap,
    Speedups,
    Timeline,
    heat_map,
    label_rows,
    mean_speedup,
    windows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
LABEL_WIDTH = 0.0068
"""Of one character of an event's label, as a share of the axes."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by those who see few colours too."""


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
    busy = f", {profile.doubt}" if profile.doubt else ""
    where = f"{what.cpu}, torch {what.torch}{busy}"
    axes.set_title(f"{what.model}: latency of one batch\n{where}", size=10)
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
