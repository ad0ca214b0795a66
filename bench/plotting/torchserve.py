"""Pictures of the benchmarks over HTTP and of classes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from plotting.canvas import (
    BLUE,
    GREY,
    INK,
    LIGHT,
    MAUVE,
    PALE,
    ROSE,
    SAGE,
    SAND,
    Row,
    Series,
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

PEERS = {
    "mosec": ("mosec", SAND, "s"),
    "litserve": ("LitServe", SAGE, "^"),
    "triton-python": ("Triton, Python backend (tensors)", ROSE, "D"),
}
RATIOS = (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)


def http_peers(rows: list[Row]) -> Figure:
    """Requests per second by connections, and the ratios to each peer."""
    figure, (rates, ratios) = frame(
        "Over HTTP against other servers: a trivial model, JSON",
        "Each peer in its best setting for each point, Shunter in one; bars: 95 % of the ratio",
    )
    mine = only(rows, "work", "json")
    counts = sorted({row["connections"] for row in mine})
    medians = {
        n: plain(
            statistics.median(row["shunter"]["rps"] for row in mine if row["connections"] == n)
        )
        for n in counts
    }
    lines, quotients = [Series("Shunter", BLUE, medians)], []
    for peer, (label, colour, marker) in PEERS.items():
        theirs = {row["connections"]: row for row in mine if row["peer"] == peer}
        if theirs:
            found = {n: plain(row["theirs"]["rps"]) for n, row in theirs.items()}
            lines.append(Series(label, colour, found, marker))
            found = {n: ratio(row["throughput_ratio"]) for n, row in theirs.items()}
            quotients.append(Series(label, colour, found, marker))
    draw_lines(rates, lines, doubling=True)
    from_zero(rates)
    name_axes(rates, "connections", "requests/s")
    draw_lines(ratios, quotients, doubling=True)
    plain_log(ratios, RATIOS)
    draw_one(ratios)
    name_axes(ratios, "connections", "Shunter / peer (log)")
    return add_legend(figure, rates)


def http_sweep(rows: list[Row]) -> Figure:
    """Requests per second by connections, and the ratio to stock."""
    figure, (rates, ratios) = frame(
        "Over HTTP against stock TorchServe: a trivial model",
        "Stock in its best setting for each point, Shunter in one; bars: 95 % of the ratio",
    )
    mine = {row["connections"]: row for row in only(rows, "connections")}
    draw_lines(
        rates,
        [
            Series("Shunter", BLUE, {n: plain(r["shunter"]["rate"]) for n, r in mine.items()}),
            Series(
                "stock, best setting",
                GREY,
                {n: plain(r["stock-best"]["rate"]) for n, r in mine.items()},
                "s",
            ),
        ],
        doubling=True,
    )
    from_zero(rates)
    name_axes(rates, "connections", "requests/s")
    found = {n: ratio(row["throughput_ratio"]) for n, row in mine.items()}
    draw_lines(ratios, [Series("Shunter", BLUE, found)], doubling=True)
    from_zero(ratios)
    draw_one(ratios)
    name_axes(ratios, "connections", "Shunter / best stock")
    return add_legend(figure, rates)


def slo_goodput(rows: list[Row]) -> Figure:
    """Share in time by load."""
    figure, (axes,) = frame(
        "Answers within 100 ms: sentence embeddings, open loop",
        "Load: share of stock's highest closed-loop rate; medians of the rounds",
        columns=1,
        width=7.6,
    )
    mine, lines = only(rows, "share"), []
    for side, label, colour, marker in (
        ("shunter", "Shunter, one setting", BLUE, "o"),
        ("stock-best", "stock, best for each load", GREY, "s"),
        ("stock-single", "stock, best single setting", MAUVE, "v"),
        ("bentoml", "BentoML, best for each load", SAND, "^"),
    ):
        points = {
            100 * row["share"]: plain(100 * row[side]["attainment"]) for row in mine if side in row
        }
        lines.append(Series(label, colour, points, marker))
    draw_lines(axes, [each for each in lines if each.points])
    axes.set_ylim(0, 104)
    name_axes(axes, "load (% of capacity)", "answered in time (%)")
    return add_legend(figure)


def pairs(
    rows: Sequence[Row], keys: tuple[str, str], labels: tuple[str, str], title: str, note: str
) -> Figure:
    """For each side two bars: how it was alone (pale), and beside others."""
    figure, (axes,) = frame(title, note, columns=1, width=7.6, height=0.5 * len(rows) + 1.9)
    axes.grid(visible=False)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    for index, row in enumerate(rows):
        colours = (PALE, BLUE) if row["ours"] else (LIGHT, GREY)
        for shift, key, colour in zip((-0.19, 0.19), keys, colours, strict=True):
            value = row[key]
            spread = [[max(value.y - value.low, 0)], [max(value.high - value.y, 0)]]
            axes.barh(index + shift, value.y, 0.35, color=colour)
            axes.errorbar(
                value.y, index + shift, xerr=spread, ecolor=INK, elinewidth=1, capsize=2.5
            )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], size=9)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("p99 (ms)", size=9)
    shades = (PALE, BLUE) if all(row["ours"] for row in rows) else (LIGHT, GREY)
    handles = [Patch(color=shade) for shade in shades]
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    return figure


def mixed_classes(rows: list[Row]) -> Figure:
    """Strict p99 alone and beside best effort, by side."""
    keys = ("alone_p99_ms", "mixed_p99_ms")
    found = [
        {
            "name": row["side"].replace("shunter", "Shunter").replace("triton", "Triton"),
            "ours": row["side"].startswith("shunter"),
            **{key: ranged(row, key) for key in keys},
        }
        for row in only(rows, "side")
    ]
    return pairs(
        found,
        keys,
        ("strict alone", "with best effort"),
        "Strict requests beside best effort far beyond capacity: p99",
        "Strict at 30 %, best effort at 90 % of capacity; bars: 95 %. Shunter in blue",
    )


def cluster(rows: list[Row]) -> Figure:
    """Requests per second of both models, by who is asked."""
    mine = [row for row in only(rows, "what", "closed") if "ok_per_s" in row]
    clients = max(row["clients"] for row in mine)
    models = list(dict.fromkeys(row["model"] for row in mine))
    figure, panels = frame(
        f"Three machines on one host: {clients} clients in closed loop",
        "Medians of the rounds; servers, gateways and clients share the same cores",
        columns=len(models),
        width=8.2,
    )
    for axes, model in zip(panels, models, strict=True):
        sides = []
        for side, label, colour in (
            ("gateway", "Shunter, by a gateway", BLUE),
            ("direct", "Shunter, one machine", PALE),
            ("ray_serve", "plain Ray Serve", SAGE),
        ):
            chosen = {"model": model, "side": side, "clients": clients}
            rates = [row["ok_per_s"] for row in mine if chosen.items() <= row.items()]
            if rates:
                sides.append(Series(label, colour, {model: plain(statistics.median(rates))}))
        draw_bars(axes, sides, numbers=",.0f")
        from_zero(axes)
        name_axes(axes, "", "requests/s")
    return add_legend(figure)
