"""Pictures of configurations, of many models in little memory, and of preemption."""

from __future__ import annotations

import statistics

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plotting.canvas import (
    BLUE,
    GREY,
    INK,
    PALE,
    SAND,
    Row,
    Series,
    Value,
    add_legend,
    draw_bars,
    draw_lines,
    draw_one,
    frame,
    from_zero,
    name_axes,
    only,
    plain,
    plain_log,
    ranged,
    ratio,
)
from plotting.torchserve import pairs

WINDOW_S = 1.0
MEMORY_SIDES = (
    ("pool", "Shunter, pool", BLUE),
    ("dedicated", "Shunter, dedicated workers", PALE),
    ("stock", "stock, all resident", GREY),
    ("on_demand", "stock, on demand", SAND),
)
PATTERNS = {
    "hits": "four in turn,\nall hot",
    "sequential": "five\nin turn",
    "uniform": "five at\nrandom",
    "zipf": "five by\nZipf's law",
}


def packrat_serving(rows: list[Row]) -> Figure:
    """Requests per second by batch size, and the ratios to stock."""
    figure, (rates, ratios) = frame(
        "ResNet-50 through the server: the configuration chosen by itself",
        "Stock with the same allocator settings, tuned for each point; bars: 95 % of the ratio",
    )
    mine = {row["batch"]: row for row in only(rows, "batch")}
    others = {
        "fat_same_memory": ("stock, one fat worker", SAND, "^"),
        "best_stock_same_memory": ("stock, best of all settings", GREY, "s"),
    }
    lines = [
        Series(label, c, {b: plain(row[key]["per_s"]) for b, row in mine.items()}, m)
        for key, (label, c, m) in ({"shunter": ("Shunter", BLUE, "o")} | others).items()
    ]
    draw_lines(rates, lines, doubling=True)
    from_zero(rates)
    name_axes(rates, "clients (= batch size)", "requests/s")
    quotients = [
        Series(label, c, {b: ratio(row[f"vs_{key}"]) for b, row in mine.items()}, m)
        for key, (label, c, m) in others.items()
    ]
    draw_lines(ratios, quotients, doubling=True)
    from_zero(ratios)
    draw_one(ratios)
    name_axes(ratios, "clients (= batch size)", "Shunter / stock")
    return add_legend(figure, rates)


def packrat_reconfigure(timelines: list[Row]) -> Figure:
    """Latency over time in one round of each model, with the changes marked."""
    found = only(timelines, "series")
    figure, panels = frame(
        "All workers replaced under load: latency over time",
        "One round: p50 and p99 of each second. Grey: from asking for the change until the last "
        "old worker has ended; dashed: the new ones serve",
        columns=1,
        rows=len(found),
        height=1.9 * len(found) + 0.9,
    )
    for axes, timeline in zip(panels, found, strict=True):
        _draw_timeline(axes, timeline)
    panels[-1].set_xlabel("time (s)", size=9)
    return add_legend(figure, panels[0])


def _draw_timeline(axes: Axes, timeline: Row) -> None:
    (series,) = timeline["series"]
    at, ms = np.array(series["t_s"]), np.array(series["latency_ms"])
    starts = np.arange(0, at.max(), WINDOW_S)
    parts = [ms[(at >= start) & (at < start + WINDOW_S)] for start in starts]
    for share, label, colour in ((0.99, "p99", PALE), (0.5, "p50", BLUE)):
        found = [
            np.quantile(part, share, method="inverted_cdf") if part.size else np.nan
            for part in parts
        ]
        axes.plot(starts + WINDOW_S / 2, found, color=colour, label=label, linewidth=1.6)
    plain_log(axes, [base * 10**power for power in range(5) for base in (1, 2, 3, 5)])
    began: dict[str, float] = {}
    for event in timeline["events"]:
        to, what = event["label"].rsplit(": ", 1)
        if what == "asked":
            began[to] = event["t_s"]
            place = axes.get_xaxis_transform()
            axes.text(event["t_s"], 1.01, f"to {to}", transform=place, size=8, color=INK)
        elif what == "serves":
            axes.axvline(event["t_s"], color=INK, linewidth=1, linestyle=(0, (4, 3)))
        elif what == "ended":
            axes.axvspan(began[to], event["t_s"], color="#eeeeee", zorder=0)
    axes.set_ylabel(f"{series['name']}:\nlatency (ms, log)", size=9)


def rafiqi_cache(rows: list[Row]) -> Figure:
    """Requests per second by what is asked, one at a time and many."""
    mine = only(rows, "pattern", *PATTERNS)
    counts = sorted({row["concurrency"] for row in mine})
    figure, panels = frame(
        "Five models, hot memory for four",
        "Medians of the rounds; stock and dedicated workers have memory for all five, "
        "stock on demand has not",
        columns=len(counts),
        width=10.5,
    )
    for axes, count in zip(panels, counts, strict=True):
        cells = {row["pattern"]: row for row in mine if row["concurrency"] == count}
        sides = []
        for side, label, colour in MEMORY_SIDES:
            points = {
                text: plain(cells[pattern][side]["rate"])
                for pattern, text in PATTERNS.items()
                if side in cells.get(pattern, ())
            }
            sides.append(Series(label, colour, points))
        draw_bars(axes, [each for each in sides if each.points])
        from_zero(axes)
        axes.set_title(f"{count} at a time", size=9)
        name_axes(axes, "", "requests/s")
    return add_legend(figure)


def fairness(rows: list[Row]) -> Figure:
    """p99 of the quiet models without and with the flood, by side."""
    names = {side: label for side, label, _ in MEMORY_SIDES}
    keys, found = ("p99_ms_alone", "p99_ms_flooded"), []
    for row in only(rows, "p99_ms_alone"):
        times = ratio(row["p99_ms_flooded_vs_alone"])
        text = f"{names.get(row['side'], row['side'])}\n× {times.y:.1f} "
        text += f"({times.low:.1f}–{times.high:.1f})"
        medians: dict[str, Value] = {key: plain(statistics.median(row[key])) for key in keys}
        found.append({"name": text, "ours": row["side"] != "stock", **medians})
    return pairs(
        found,
        keys,
        ("without the flood", "one model flooded"),
        "Nine quiet models beside one that is flooded: their p99",
        "The flood is ten times what one model can do; in brackets 95 % of the ratio",
    )


def disb(rows: list[Row]) -> Figure:
    """What strict requests pay, and how much of the idle time best effort gets, by workload."""
    mine = [row for row in only(rows, "scheme", "shunter", "kernel") if "mean_overhead" in row]
    figure, panels = frame(
        "Strict beside best effort on the same cores (workloads of DISB)",
        "Overheads against strict requests alone; idle: the time that strict work alone leaves; "
        "bars: 95 %",
        columns=3,
        width=11.5,
    )
    for axes, key, label in zip(
        panels,
        ("mean_overhead", "p99_overhead", "share_of_idle"),
        ("strict mean: overhead (%)", "strict p99: overhead (%)", "best effort: of idle time (%)"),
        strict=True,
    ):
        sides = []
        for scheme, text, colour in (
            ("shunter", "Shunter", BLUE),
            ("kernel", "SCHED_IDLE alone", GREY),
        ):
            chosen = [row for row in mine if row["scheme"] == scheme]
            points = {row["workload"]: ranged(row, key, 100) for row in chosen}
            sides.append(Series(text, colour, points))
        draw_bars(axes, [each for each in sides if each.points])
        axes.axhline(0, color=INK, linewidth=0.9)
        name_axes(axes, "workload", label)
    return add_legend(figure)
