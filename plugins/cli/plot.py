"""``shunter plot``: profiles, speed-ups and timelines as PNG files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from shunter.plugins.cli.files import check_finite, load, profile_file
from shunter.plugins.errors import UserError

plot = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Draw a profile, what is expected of it, or latency over time, as a PNG file.

    Examples:

      shunter plot profile store/digits.profile.json

      shunter plot speedup store/*.profile.json --threads 16
    """,
)

Output = Annotated[Path | None, typer.Option("--output", "-o", help="PNG file to write.")]


@plot.command("profile")
def plot_profile(
    profile: Annotated[Path, typer.Argument(help="A profile, or a profiled archive.")],
    output: Output = None,
) -> None:
    """Draw the latency by threads and batch size.

    Example:

      shunter plot profile store/digits.profile.json -o digits.png
    """
    from shunter.plugins.view import plots

    file, _ = profile_file(profile)
    path = output or file.with_suffix(".png")
    _save(path, lambda: plots.draw_profile(load(file)))


@plot.command("speedup")
def plot_speedup(
    profiles: Annotated[list[Path], typer.Argument(help="Profiles, or profiled archives.")],
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores; default: most threads of the profile.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="JSON of bench/packrat_micro.py to draw beside it.")
    ] = None,
    output: Output = None,
) -> None:
    """Draw how much faster the chosen configuration is expected to be, by batch size.

    The file is written beside the first profile, unless --output says where.

    Example:

      shunter plot speedup store/resnet50.profile.json --threads 16 -o speedup.png
    """
    from shunter.plugins.profiling.profiles import SUFFIX
    from shunter.plugins.view import plot_data, plots

    files = [profile_file(path)[0] for path in profiles]
    known = [load(file) for file in files]
    bars = plot_data.measured_bars(measured) if measured else []
    series = plot_data.speedup_series(known, threads, bars)
    name = files[0].name.removesuffix(SUFFIX) + ".speedup.png" if len(files) == 1 else "speedup.png"
    _save(output or files[0].with_name(name), lambda: plots.draw_speedup(series))


@plot.command("timeline")
def plot_timeline(
    file: Annotated[Path, typer.Argument(help='JSON with "series" and "events".')],
    window_ms: Annotated[
        float, typer.Option(min=1, help="Time over which p50 and p99 are taken.")
    ] = 100,
    output: Output = None,
) -> None:
    """Draw latency over time, with what happened meanwhile.

    The file: {"series": [{"name": "…", "t_s": […], "latency_ms": […]}],
    "events": [{"t_s": 8, "label": "…"}]}

    Example:

      shunter plot timeline change.json -o change.png
    """
    from shunter.plugins.view import plot_data, plots

    check_finite(window_ms=window_ms)
    timeline = plot_data.read_timeline(file)
    path = output or file.with_suffix(".png")
    _save(path, lambda: plots.draw_timeline(timeline, window_ms / 1e3))


def _save(path: Path, draw: Callable[[], Any]) -> None:
    try:
        figure = draw()
        figure.savefig(path, format="png")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise UserError("plots need matplotlib: pip install 'shunter[plot]'") from error
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    print(path)
