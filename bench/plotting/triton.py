"""Pictures of the benchmarks behind Triton."""

from __future__ import annotations

from matplotlib.figure import Figure

from plotting.canvas import (
    BLUE,
    GREY,
    PALE,
    ROSE,
    SAGE,
    SAND,
    Row,
    Series,
    Value,
    add_legend,
    draw_lines,
    draw_one,
    frame,
    from_zero,
    name_axes,
    only,
    plain,
    ratio,
)

KINDS = {
    "http binary": ("HTTP, bytes", BLUE, "o"),
    "http json": ("HTTP, JSON", SAND, "s"),
    "grpc": ("gRPC", SAGE, "^"),
}
MODELS = {"empty": "a model that does nothing", "lenet": "LeNet"}


def triton_sweep(rows: list[Row]) -> Figure:
    """The ratio to Triton's Python backend by connections, a panel for each model."""
    mine = [row for row in only(rows, "throughput_ratio") if row["kind"] in KINDS]
    models = list(dict.fromkeys(row["model"] for row in mine))
    figure, panels = frame(
        "Behind Triton: Shunter's backend / Triton's Python backend, requests/s",
        "The Python backend in its best setting for each point, Shunter in one; bars: 95 %",
        columns=len(models),
    )
    for axes, model in zip(panels, models, strict=True):
        lines = []
        for kind, (label, colour, marker) in KINDS.items():
            points = {
                row["connections"]: ratio(row["throughput_ratio"])
                for row in mine
                if (row["model"], row["kind"]) == (model, kind)
            }
            if points:
                lines.append(Series(label, colour, points, marker))
        draw_lines(axes, lines, doubling=True)
        from_zero(axes)
        draw_one(axes)
        axes.set_title(MODELS.get(model, model), size=9)
        name_axes(axes, "connections", "ratio")
    for axes in panels:
        axes.set_ylim(0, max(each.get_ylim()[1] for each in panels))
    return add_legend(figure)


def triton_slo(rows: list[Row]) -> Figure:
    """Goodput by load."""
    figure, (rates, ratios) = frame(
        "Behind Triton: answers within 100 ms per second, sentence embeddings",
        "Triton's dynamic batcher in its best setting for each load; bars: 95 % of the ratio",
    )
    mine = {100 * row["share"]: row for row in only(rows, "share")}
    lines = [
        Series(label, colour, {x: plain(r[side]["goodput_per_s"]) for x, r in mine.items()}, marker)
        for side, label, colour, marker in (
            ("shunter", "Shunter", BLUE, "o"),
            ("triton", "Triton, dynamic batcher", ROSE, "D"),
        )
    ]
    draw_lines(rates, lines)
    from_zero(rates)
    name_axes(rates, "load (% of capacity)", "in time (requests/s)")
    draw_lines(ratios, [Series("Shunter", BLUE, {x: ratio(r["ratio"]) for x, r in mine.items()})])
    from_zero(ratios)
    draw_one(ratios)
    name_axes(ratios, "load (% of capacity)", "Shunter / Triton")
    return add_legend(figure, rates)


def triton_packrat(rows: list[Row]) -> Figure:
    """Images per second by clients, and the ratios."""
    figure, (rates, ratios) = frame(
        "Behind Triton: the chosen configuration",
        "As many clients as the batch is large; bars: 95 % of the ratio",
    )
    mine = {row["batch"]: row for row in only(rows, "batch")}
    others = {
        "shunter_fat": ("Shunter, one fat instance", PALE, "v"),
        "python_fat": ("Python backend, fat", GREY, "s"),
        "model_analyzer": ("Model Analyzer's choice", ROSE, "D"),
    }
    lines = [Series("Shunter, chosen", BLUE, _per_s(mine, "shunter"))]
    lines += [Series(label, c, _per_s(mine, k), m) for k, (label, c, m) in others.items()]
    draw_lines(rates, lines, doubling=True)
    from_zero(rates)
    name_axes(rates, "clients (= batch size)", "requests/s")
    quotients = [
        Series(label, colour, {b: ratio(row[f"vs_{key}"]) for b, row in mine.items()}, marker)
        for key, (label, colour, marker) in others.items()
    ]
    draw_lines(ratios, quotients, doubling=True)
    from_zero(ratios)
    draw_one(ratios)
    name_axes(ratios, "clients (= batch size)", "chosen / the other")
    return add_legend(figure, rates)


def _per_s(mine: dict[int, Row], side: str) -> dict[int, Value]:
    return {batch: plain(row[side]["per_s"]) for batch, row in mine.items()}
