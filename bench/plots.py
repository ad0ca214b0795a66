"""Draw the committed results of benchmarks as PNG files for the documentation.

Each picture is ``docs/images/bench-NAME.png`` of ``bench/results/NAME.json``. A result that is
missing or of an older format is left out, and a line says so. Nothing is measured. Needs matplotlib
(``pip install 'shunter[plot]'``).

Examples:
    python bench/plots.py                             # all
    python bench/plots.py http_peers disb             # only these
    python bench/plots.py --results bench/results/quick --to /tmp/pictures
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from plotting import models, torchserve, triton

BENCH = Path(__file__).resolve().parent
RESULTS, IMAGES = BENCH / "results", BENCH.parent / "docs/images"
DPI, COLOURS = 120, 64
PLOTS: dict[str, Callable[[list[dict[str, Any]]], Figure]] = {
    "http_sweep": torchserve.http_sweep,
    "http_peers": torchserve.http_peers,
    "slo_goodput": torchserve.slo_goodput,
    "mixed_classes": torchserve.mixed_classes,
    "packrat_serving": models.packrat_serving,
    "packrat_reconfigure": models.packrat_reconfigure,
    "disb": models.disb,
    "triton_sweep": triton.triton_sweep,
    "triton_slo": triton.triton_slo,
    "triton_packrat": triton.triton_packrat,
    "cluster": torchserve.cluster,
    "rafiqi_cache": models.rafiqi_cache,
    "fairness": models.fairness,
}
TIMELINES = ("packrat_reconfigure",)
"""Drawn from ``NAME.*.timeline.json``, one for each model."""


def rows_of(name: str, results: Path) -> list[dict[str, Any]]:
    """What a picture is drawn from. Raises FileNotFoundError."""
    if name in TIMELINES:
        paths = sorted(results.glob(f"{name}.*.timeline.json"))
        if not paths:
            raise FileNotFoundError(name)
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def write(figure: Figure, path: Path) -> None:
    """As a PNG of few colours, which is a third of the size."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def draw(name: str, results: Path, images: Path) -> str:
    """Draw one picture, or leave it out; a line that says which."""
    try:
        figure = PLOTS[name](rows_of(name, results))
    except FileNotFoundError:
        return f"{name}: left out, there is no result"
    except KeyError as missing:
        return f"{name}: left out, its result is of another format and has no {missing}"
    images.mkdir(parents=True, exist_ok=True)
    path = images / f"bench-{name}.png"
    write(figure, path)
    return f"{name}: {path.name}, {path.stat().st_size / 1000:.0f} kB"


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PLOTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="default bench/results")
    parser.add_argument("--to", type=Path, default=IMAGES, help="default docs/images")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.names if name not in PLOTS]:
        parser.error(f"no picture of {', '.join(unknown)}; there are: {', '.join(PLOTS)}")
    for name in args.names or PLOTS:
        print(draw(name, args.results, args.to))


if __name__ == "__main__":
    main()
