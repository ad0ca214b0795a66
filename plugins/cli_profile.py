"""``shunter profile``, ``shunter plan`` and ``shunter plot``: commands over a model's profile."""

from __future__ import annotations

import json
import math
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from shunter.allocator.cpus import Topology
    from shunter.batching.profile import Profile, Provenance
    from shunter.handlers.sample import Sample
    from shunter.plugins.planning import Plan
    from shunter.plugins.profiler import Progress, Task

DEFAULT_BATCH = 64
BUSY = 0.2
"""CPUs that something else may use before a warning."""
INTERRUPTED = 130

Report = Callable[["Progress"], None]

plot = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Draw a profile, what is expected of it, or latency over time, as a PNG file.

    Examples:

      shunter plot profile store/digits.profile.json

      shunter plot speedup store/*.profile.json --threads 16
    """,
)


# ---- shunter profile


def profile(
    model: Annotated[Path, typer.Argument(help="A model archive, NAME.mar.")],
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Most threads of one instance; default: cores of a NUMA node."),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Largest batch; default: the model's own, else 64."),
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Measure every cell, also those of no use.")
    ] = False,
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", help="Body of a request; several are sent in turn."),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Of --input; default: by the file's name.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an earlier run measured.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Default: NAME.profile.json beside the archive.")
    ] = None,
    precision: Annotated[
        float, typer.Option(min=0.001, max=1, help="Half the 95 % interval, as a share.")
    ] = 0.02,
    seconds: Annotated[float, typer.Option(min=0.01, help="Most time for one cell.")] = 10.0,
) -> None:
    """Measure a model's latency by threads and batch size, on this host.

    Each cell is on disk as soon as it is measured: after Ctrl-C the same command goes on.
    Cells of no use are left out, and what that may cost is stated.

    Examples:

      shunter profile store/digits.mar

      shunter profile store/resnet50.mar --input kitten.jpg --max-batch 64
    """
    from rich.console import Console

    from shunter.allocator.topology import read_topology
    from shunter.batching.measurement import Effort
    from shunter.plugins import profiler
    from shunter.plugins.profiles import profile_path

    default_batch = _registered_batch(model)
    topology = read_topology()
    task = profiler.Task(
        archive=model,
        samples=_samples(inputs or [], content_type),
        threads=_instance_threads(topology, threads),
        batch=max_batch or default_batch,
        exhaustive=exhaustive,
        effort=Effort(precision=precision, seconds=seconds),
        restart=restart,
    )
    path = output or profile_path(model)
    if not path.absolute().parent.is_dir():
        raise UserError(f"--output {path}: {path.parent} is not a folder")
    _warn_if_busy(topology)
    _show(_run(task, path, topology, Console(stderr=True)), path, _stdout())


def _registered_batch(archive: Path) -> int:
    """Largest batch that a server makes of the model's requests, as its archive says."""
    config = _model_config(archive)
    section = config.get("shunter")
    wanted = section.get("max_batch") if isinstance(section, dict) else None
    for size in (wanted, config.get("batchSize")):
        if isinstance(size, int) and size > 0:
            return size
    return DEFAULT_BATCH


def _model_config(archive: Path) -> dict[str, Any]:
    """The model-config.yaml of an archive, without unpacking the rest."""
    import yaml

    if archive.is_dir():
        raise UserError(f"{archive} is a folder: make an archive of it with `shunter pack`")
    if not archive.exists():
        raise UserError(f"{archive} does not exist")
    damage = (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, zlib.error)
    try:
        with zipfile.ZipFile(archive) as content:
            name = json.loads(content.read("MAR-INF/MANIFEST.json"))["model"].get("configFile")
            config = yaml.safe_load(content.read(name)) if name else None
    except (*damage, AttributeError, zipfile.BadZipFile, yaml.YAMLError) as error:
        raise UserError(f"{archive} cannot be read as a model archive: {error}") from error
    return config if isinstance(config, dict) else {}


def _samples(inputs: list[Path], content_type: str | None) -> list[Sample]:
    from shunter.handlers.sample import Sample

    if content_type and not inputs:
        raise UserError("--content-type is the type of --input, which is missing")
    try:
        return [Sample.read(path, content_type) for path in inputs]
    except OSError as error:
        raise UserError(f"--input {error.filename} cannot be read: {error.strerror}") from error


def _instance_threads(topology: Topology, wanted: int | None) -> int:
    """Most threads of one instance; SMT siblings count only for who asks for them."""
    from shunter.allocator.cores import free_cores

    whole = replace(topology, quota=math.inf)
    if wanted is None:
        return min(max(free_cores(whole)), topology.cores)
    cpus = max(sum(cpu.node == node for cpu in topology.cpus) for node in topology.nodes)
    most = max(1, math.floor(min(cpus, topology.quota)))
    if wanted > most:
        raise UserError(f"--threads {wanted}: an instance has at most {most} CPUs on this host")
    return wanted


def _warn_if_busy(topology: Topology) -> None:
    from shunter.plugins.profiler import busy_cores

    busy = busy_cores(topology)
    if busy > BUSY:
        print(
            f"shunter: something else uses {busy:.1f} of {len(topology.cpus)} CPUs: latencies "
            "measured beside it are too high",
            file=sys.stderr,
        )


def _run(task: Task, path: Path, topology: Topology, console: Console) -> Profile:
    from shunter.plugins import profiler

    try:
        with _reporting(console) as report:
            return profiler.run(task, path, topology, report)
    except KeyboardInterrupt:
        print(f"shunter: {_kept(path, task.restart)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _kept(path: Path, restart: bool) -> str:
    from shunter.batching.profile import ProfileError
    from shunter.plugins.profiles import load_profile

    try:
        count = len(load_profile(path).cells)
    except (OSError, ProfileError):
        return "stopped before the first cell was measured"
    command = "the same command without --restart" if restart else "the same command"
    return f"{count} cells are kept in {path}; {command} goes on"


@contextmanager
def _reporting(console: Console) -> Iterator[Report]:
    """A bar for a terminal, a line for each cell elsewhere."""
    if not console.is_terminal:
        yield _print_line
        return
    from rich import progress

    text = progress.TextColumn
    with progress.Progress(
        text("{task.description}"),
        progress.BarColumn(),
        text("{task.completed:.0f} of {task.total:.0f} cells"),
        progress.TimeElapsedColumn(),
        text("{task.fields[left]}"),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("starting", total=None, visible=False, left="")

        def report(now: Progress) -> None:
            done = len(now.profile.cells)
            bar.update(
                task,
                description=_under_way(now),
                completed=done,
                total=done + now.left,
                left=_left(now),
                visible=True,
            )

        yield report


def _print_line(now: Progress) -> None:
    done = len(now.profile.cells)
    line = f"{done} of {done + now.left} cells"
    if now.next is not None:
        line += f", now {_under_way(now)}" + (f", {_left(now)}" if _left(now) else "")
    print(line, file=sys.stderr, flush=True)


def _under_way(now: Progress) -> str:
    if now.next is None:
        return "done"
    threads, batch = now.next
    return f"{_count(threads, 'thread')}, batch {batch}"


def _left(now: Progress) -> str:
    return f"about {_duration(now.seconds_left)} left" if now.seconds_left > 0 else ""


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _show(profile: Profile, path: Path, console: Console) -> None:
    """What was measured, and last where it is."""
    from shunter.plugins import planning

    console.print(planning.cell_table(profile))
    for (threads, batch), reason in sorted(profile.failed.items()):
        print(f"{_count(threads, 'thread')}, batch {batch} cannot be measured: {reason}")
    print(f"{_count(len(profile.cells), 'cell')} in {_duration(profile.seconds)}, {profile.mode}")
    if said := planning.stated_error(profile):
        print(said)
    print(path)


# ---- shunter plan


def plan(
    model: Annotated[Path, typer.Argument(help="A profiled archive NAME.mar, or a profile.")],
    threads: Annotated[
        str | None,
        typer.Option(help="Cores, as N or one number per NUMA node as N,N; default: this host's."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Requests at once; default: each power of two.")
    ] = None,
    slo_ms: Annotated[
        float | None,
        typer.Option(min=0.001, help="Instead: most requests per second, batches within this."),
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.001, help="Memory of all instances; default: any.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also with a profile of another machine or model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which instances, threads and batches a profile leads to, beside the usual ones.

    fat: one instance with all threads of a node. one per core: as many instances of one thread.

    Examples:

      shunter plan store/digits.mar

      shunter plan store/resnet50.mar --threads 16 --batch 64
    """
    from shunter.allocator.topology import read_topology
    from shunter.plugins import planning

    if slo_ms is not None and batch is not None:
        raise UserError("--slo-ms chooses the batch itself: leave --batch away")
    topology = read_topology()
    known, local = _usable_profile(model, topology, anyway)
    nodes = _nodes(threads, topology, known, local)
    budget = math.inf if memory_gib is None else memory_gib * 2**30
    if slo_ms is None and batch is None:
        plans = planning.plan_each(known, nodes, budget_bytes=budget)
    else:
        plans = [planning.plan(known, nodes, batch or 1, slo_ms=slo_ms, budget_bytes=budget)]
    if as_json:
        print(json.dumps(_plans_as_json(known, nodes, plans), indent=2))
    elif len(plans) == 1:
        _stdout().print(planning.render(plans[0]))
        print(f"\nto use it: {plans[0].request()}")
    else:
        _stdout().print(planning.render_each(plans))


def _usable_profile(path: Path, topology: Topology, anyway: bool) -> tuple[Profile, bool]:
    """A profile, and whether it is of this machine and model."""
    from shunter.batching.profile import ProfileError

    file, archive = _profile_file(path)
    known = _load(file)
    here = _provenance(known, archive, topology)
    differences = known.provenance.differences(here)
    if differences and not anyway:
        try:
            known.check_usable(here)
        except ProfileError as error:
            raise UserError(f"{error}, or look at it with --anyway") from error
    if differences:
        print(f"shunter: measured with {'; '.join(differences)}", file=sys.stderr)
    return known, not differences


def _profile_file(path: Path) -> tuple[Path, Path | None]:
    """The profile that is meant, and its archive if that is there."""
    from shunter.plugins.profiles import SUFFIX, profile_path

    if path.suffix != ".mar":
        archive = path.with_name(path.name.removesuffix(SUFFIX) + ".mar")
        return path, archive if archive.is_file() else None
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    found = profile_path(path)
    if not found.exists():
        raise UserError(f"{path} has no profile yet: run `shunter profile {path}`")
    return found, path


def _load(path: Path) -> Profile:
    from shunter.batching.profile import ProfileError
    from shunter.plugins.profiles import load_profile

    try:
        return load_profile(path)
    except ProfileError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _provenance(known: Profile, archive: Path | None, topology: Topology) -> Provenance:
    """What a profile measured here would say; of the same model where no archive tells."""
    import importlib.metadata

    from shunter.plugins.profiles import cpu_model, provenance_here

    if archive is not None:
        return provenance_here(archive, topology=topology)
    return replace(
        known.provenance,
        cpu=cpu_model(),
        cores=topology.cores,
        torch=importlib.metadata.version("torch"),
    )


def _nodes(text: str | None, topology: Topology, known: Profile, local: bool) -> tuple[int, ...]:
    """Cores of each NUMA node: as asked for, else of the machine that was measured."""
    from shunter.allocator.cores import free_cores

    if text is None:
        # How the cores of another machine are spread over nodes is not known.
        return tuple(free_cores(topology)) if local else (known.provenance.cores,)
    try:
        nodes = tuple(int(part) for part in text.split(","))
    except ValueError:
        nodes = ()
    if not nodes or not all(1 <= node <= 8192 for node in nodes):
        raise UserError(f"--threads {text}: allowed: a number of cores, or one per NUMA node: 8,8")
    return nodes


def _plans_as_json(known: Profile, nodes: tuple[int, ...], plans: list[Plan]) -> dict[str, Any]:
    from shunter.batching.profile import summary

    return {
        "model": known.provenance.model,
        "cores": list(nodes),
        "profile": summary(known),
        "plans": [each.as_json() for each in plans],
    }


def _stdout() -> Console:
    from rich.console import Console

    # A file or a pipe has no width of its own; 80 columns would fold the tables.
    return Console(width=None if sys.stdout.isatty() else 120)


# ---- shunter plot

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
    from shunter.plugins import plots

    file, _ = _profile_file(profile)
    path = output or file.with_suffix(".png")
    _save(path, lambda: plots.draw_profile(_load(file)))


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

    Example:

      shunter plot speedup store/resnet50.profile.json --threads 16 -o speedup.png
    """
    from shunter.plugins import plots

    known = [_load(_profile_file(path)[0]) for path in profiles]
    bars = plots.measured_bars(measured) if measured else []
    series = plots.speedup_series(known, threads, bars)
    _save(output or Path("speedup.png"), lambda: plots.draw_speedup(series))


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
    from shunter.plugins import plots

    timeline = plots.read_timeline(file)
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
