"""What all pictures share: colours, lines and bars with intervals, the frame around them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

Row = dict[str, Any]
BLUE, PALE = "#0b5fa5", "#8dbce0"
"""Shunter, and another arrangement of Shunter. Nobody else has these."""
GREY, SAND, SAGE, ROSE, MAUVE = "#8a8a8a", "#c9a35f", "#86ab83", "#c08497", "#a99ac4"
LIGHT = "#cfcfcf"
INK, FAINT = "#333333", "#777777"


@dataclass(frozen=True)
class Value:
    """A figure, with its 95 % interval where there is one."""

    y: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Series:
    """One side: a line, or the bars of one colour."""

    label: str
    colour: str
    points: Mapping[Any, Value]
    """By what stands on the horizontal axis."""
    marker: str = "o"


def number(value: Any) -> float:
    """Results have texts for infinity, and None for what is not known: neither can be drawn."""
    found = math.nan if value is None else float(value)
    return found if math.isfinite(found) else math.nan


def plain(value: Any) -> Value:
    """Without an interval."""
    return Value(number(value))


def ratio(found: Row) -> Value:
    """A paired ratio."""
    return Value(*(number(found[key]) for key in ("median", "low", "high")))


def ranged(row: Row, key: str, scale: float = 1) -> Value:
    """A figure whose interval stands beside it as ``KEY_interval``."""
    return Value(*(scale * number(each) for each in (row[key], *row[f"{key}_interval"])))


def only(rows: Iterable[Row], key: str, *values: Any) -> list[Row]:
    """The rows with such a key, and of these values if any. Raises KeyError when none has."""
    found = [row for row in rows if key in row and (not values or row[key] in values)]
    if not found:
        raise KeyError(" ".join(map(str, (key, *values))))
    return found


def frame(
    title: str, note: str, columns: int = 2, rows: int = 1, width: float = 9.2, height: float = 3.4
) -> tuple[Figure, list[Axes]]:
    """An empty picture. The note says what the reader must know, in small letters."""
    figure = Figure((width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
    figure.suptitle(title, x=0.01, ha="left", size=11, weight="bold", color=INK)
    figure.supxlabel(note, x=0.01, ha="left", size=8, color=FAINT)
    found = list(np.atleast_1d(figure.subplots(rows, columns)).flat)
    for axes in found:
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure, found


def name_axes(axes: Axes, x: str, y: str) -> None:
    """What the axes are, with units."""
    axes.set_xlabel(x, size=9)
    axes.set_ylabel(y, size=9)


def errors(values: Sequence[Value]) -> np.ndarray | None:
    """Below and above, as matplotlib takes them; None when nothing has an interval."""
    found = np.array([(each.y - each.low, each.high - each.y) for each in values]).T
    return None if np.isnan(found).all() else np.maximum(found, 0)


def draw_lines(axes: Axes, series: Sequence[Series], *, doubling: bool = False) -> None:
    """A line for each; with ``doubling`` the horizontal axis is logarithmic. Shunter is on top.

    There, lines with intervals are shifted a little, so that these do not hide each other.
    """
    for order, each in enumerate(series):
        values, is_ours = list(each.points.values()), each.colour == BLUE
        spread = errors(values)
        is_shifted = doubling and spread is not None
        shift = 2 ** (0.1 * (order - (len(series) - 1) / 2)) if is_shifted else 1
        axes.errorbar(
            [x * shift for x in each.points],
            [value.y for value in values],
            yerr=spread,
            label=each.label,
            color=each.colour,
            marker=each.marker,
            markersize=4.5,
            linewidth=2.2 if is_ours else 1.5,
            elinewidth=1,
            capsize=2.5,
            zorder=20 if is_ours else 10 - order,
        )
    if doubling:
        axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({x for each in series for x in each.points}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def draw_bars(axes: Axes, series: Sequence[Series], *, numbers: str = "") -> None:
    """Groups of bars; ``numbers`` is the format of what is written above them, if anything is."""
    groups = list(dict.fromkeys(x for each in series for x in each.points))
    wide = 0.8 / len(series)
    for index, each in enumerate(series):
        values = [each.points.get(group, plain(None)) for group in groups]
        at = np.arange(len(groups)) + (index - (len(series) - 1) / 2) * wide
        heights = [value.y for value in values]
        bars = axes.bar(at, heights, 0.92 * wide, color=each.colour, label=each.label)
        if (spread := errors(values)) is not None:
            axes.errorbar(at, heights, spread, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
        if numbers:
            texts = ["" if math.isnan(y) else format(y, numbers) for y in heights]
            axes.bar_label(bars, texts, padding=1, size=7, color=INK)
            axes.margins(y=0.1)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)


def draw_one(axes: Axes) -> None:
    """The line at 1, where a ratio says that both are alike."""
    axes.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def from_zero(axes: Axes) -> None:
    """The vertical axis begins at 0, with thousands set apart."""
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def plain_log(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic vertical axis with these numbers on it, as far as they are in sight."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([each for each in ticks if low <= each <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def add_legend(figure: Figure, *panels: Axes) -> Figure:
    """To the right of everything, each label once."""
    found: Row = {}
    for axes in panels or figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="outside right center", frameon=False, fontsize=8
    )
    return figure
