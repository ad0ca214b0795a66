"""The figures, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
COLOURS = {
    "Molecule": "#9e9e9e",
    "INFless/Llama": "#c77d2e",
    "Naive": "#d9b44a",
    "GPUlet": "#8c6bb1",
    "PROTEAN": "#2b7bba",
    "ours": "#1b9e77",
    "Oracle": "#444444",
}
FIGURES = {
    "fig5": ("Figure 5, 16, 17: SLO compliance, vision, 3 x", "compliance"),
    "fig11": ("Figure 11: SLO compliance, Twitter-like", "compliance"),
    "fig12": ("Figure 12: SLO compliance, language models", "compliance"),
    "fig13": ("Figure 13: SLO compliance, generative models", "compliance"),
    "fig14 75:25": ("Figure 14a: SLO compliance, strict skewed", "compliance"),
    "fig14 25:75": ("Figure 14b: SLO compliance, best effort skewed", "compliance"),
    "fig15": ("Figure 15: SLO compliance, vision, 2 x", "compliance"),
    "table4": ("Table 4: SLO compliance, strict only", "compliance"),
    "table5": ("Table 5: p99 of best effort, ms", "be_p99_ms"),
}
PARTS = {
    "alone on 7g": "#444444",
    "deficiency": "#2b7bba",
    "interference": "#c77d2e",
    "queue": "#9e9e9e",
}


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """One file for every figure; the paper's printed values are crosses."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure, (title, key) in FIGURES.items():
        mine = [row for row in rows if row["figure"] == figure and key in row]
        if mine:
            written.append(_bars(mine, title, key, folder / _file(figure)))
    return [*written, _parts([row for row in rows if row["figure"] == "fig5"], folder / "fig6.svg")]


def _file(figure: str) -> str:
    return figure.replace(":", "-").replace(" ", "_") + ".svg"


def _bars(rows: list[Row], title: str, key: str, path: Path) -> Path:
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["workload"] for row in rows))
    kinds = list(dict.fromkeys(row["scheme"] for row in rows))
    width = 0.8 / len(kinds)
    figure, axes = plt.subplots(figsize=(max(5.0, 0.95 * len(names) + 2), 3.2))
    for at, kind in enumerate(kinds):
        mine = {row["workload"]: row for row in rows if row["scheme"] == kind}
        x = np.arange(len(names)) + (at - len(kinds) / 2 + 0.5) * width
        heights = [mine[name][key] for name in names]
        axes.bar(x, heights, width, label=kind, color=COLOURS[kind])
        printed = [mine[name].get("paper", {}).get(key) for name in names]
        marked = [(a, b) for a, b in zip(x, printed, strict=True) if b is not None]
        if marked:
            axes.plot(*zip(*marked, strict=True), "kx", markersize=5)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=7)
    axes.set_title(f"{title} (simulated; x: printed in the paper)", fontsize=8)
    axes.legend(fontsize=6, ncols=len(kinds), loc="upper center", bbox_to_anchor=(0.5, -0.3))
    return _save(figure, path)


def _parts(rows: list[Row], path: Path) -> Path:
    from matplotlib import pyplot as plt

    shown = ("Molecule", "INFless/Llama", "Naive", "PROTEAN", "ours")
    wanted = ("ResNet 50", "VGG 19", "GoogleNet", "ShuffleNet V2")
    mine = [row for row in rows if row["workload"] in wanted and row["scheme"] in shown]
    figure, axes = plt.subplots(figsize=(9, 3.2))
    bottom = np.zeros(len(mine))
    for part, colour in PARTS.items():
        heights = np.array([max(0.0, row["p99_parts_ms"][part]) for row in mine])
        axes.bar(range(len(mine)), heights, bottom=bottom, color=colour, label=part)
        bottom += heights
    labels = [f"{row['workload']}, {row['scheme']}" for row in mine]
    axes.set_xticks(range(len(mine)), labels, rotation=35, ha="right", fontsize=6)
    axes.set_title("Figure 6: what the strict p99 consists of, ms (simulated)", fontsize=8)
    axes.legend(fontsize=6)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return path
