"""``shunter profile``: measure a model, with a progress bar."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.plugins.cli.existing import GRPC, HTTP, Grpc, Http, address, measure, profile_of
from shunter.plugins.cli.files import archive_in, check_finite, registered_batch
from shunter.plugins.console import count, stdout
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from shunter.allocator.cpus.topology import Topology
    from shunter.allocator.planning.profile import Profile
    from shunter.handlers.sample import Sample
    from shunter.plugins.profiling.profiler import Progress, Task

DEFAULT_BATCH = 64
INTERRUPTED = 130

Report = Callable[["Progress"], None]

Model = Annotated[Path, typer.Argument(help="A model archive, NAME.mar.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Most threads of one instance; default: cores of a NUMA node."),
]
MaxBatch = Annotated[
    int | None, typer.Option(min=1, help="Largest batch; default: the model's own, else 64.")
]
Exhaustive = Annotated[
    bool, typer.Option("--exhaustive", help="Measure every cell, also those of no use.")
]
Alone = Annotated[
    bool, typer.Option("--alone", help="One instance at a time, not as many as run together.")
]
Bandwidth = Annotated[
    bool,
    typer.Option("--bandwidth", help="Also what instances on cores of their own cost each other."),
]
Inputs = Annotated[
    list[Path] | None,
    typer.Option("--input", help="Body of a request; several are sent in turn."),
]
ContentType = Annotated[str | None, typer.Option(help="Of --input; default: by the file's name.")]
Restart = Annotated[bool, typer.Option("--restart", help="Forget what an earlier run measured.")]
Output = Annotated[Path | None, typer.Option(help="Default: NAME.profile.json beside the archive.")]
Served = Annotated[
    bool, typer.Option("--triton", help="MODEL is served by a Triton that runs: its name.")
]
Precision = Annotated[
    float, typer.Option(min=0.001, max=1, help="Half the 95 % interval, as a share.")
]
Seconds = Annotated[
    float,
    typer.Option(
        min=0.01,
        help="Time for one cell; 2 warm-ups and 6 runs are made anyway, 3 if over 3 x as long.",
    ),
]


def profile(
    model: Model,
    threads: Threads = None,
    max_batch: MaxBatch = None,
    exhaustive: Exhaustive = False,
    alone: Alone = False,
    bandwidth: Bandwidth = False,
    inputs: Inputs = None,
    content_type: ContentType = None,
    restart: Restart = False,
    output: Output = None,
    precision: Precision = 0.02,
    seconds: Seconds = 10.0,
    triton: Served = False,
    http: Http = HTTP,
    grpc: Grpc = GRPC,
) -> None:
    """Measure a model's latency by threads and batch size, on this host.

    Each cell is on disk as soon as it is measured: after Ctrl-C the same command goes on. Cells of
    no use are left out, and what that may cost is stated. What a choice rests on is measured again
    until it is settled; what a noisy host leaves open is told. A profile of an archive holds behind
    TorchServe and Triton. packed/models/NAME, of `shunter pack --triton`, is its newest version.
    With --triton MODEL is the name of a model of another backend that a running Triton serves, made
    ready by `shunter adopt prepare`; --input is then a request as Triton takes it by HTTP.

    Examples:

      shunter profile store/digits.mar

      shunter profile store/resnet50.mar --input kitten.jpg --max-batch 64
    """
    from rich.console import Console

    from shunter.allocator.cpus.discovery import read_topology
    from shunter.allocator.planning.measurement import Effort
    from shunter.plugins import hosts
    from shunter.plugins.profiling import profiler
    from shunter.plugins.profiling.profiles import profile_path

    check_finite(precision=precision, seconds=seconds)
    where = address(str(model), http, grpc) if triton else None
    model = model if triton else archive_in(model)
    topology = read_topology()
    task = profiler.Task(
        archive=model,
        samples=_samples(inputs or [], content_type),
        threads=_instance_threads(topology, threads or (1 if triton else None)),
        batch=_batch(model, where, max_batch),
        runtime=None if triton else hosts.runtime_of(),
        exhaustive=exhaustive,
        alone=alone,
        effort=Effort(precision=precision, seconds=seconds),
        restart=restart,
        busy=lambda: _busy(topology),
    )
    path = output or (profile_of(model) if triton else profile_path(model))
    if not path.absolute().parent.is_dir():
        raise UserError(f"--output {path}: {path.parent} is not a folder")
    _show(_run(task, path, topology, Console(stderr=True), bandwidth, where), path, stdout())


def _batch(model: Path, where: Any, wanted: int | None) -> int:
    """Largest batch: as wanted, else as the model's own configuration says."""
    from shunter.allocator.planning.profile import LARGEST_BATCH
    from shunter.plugins import hosts

    if wanted is not None and wanted > LARGEST_BATCH:
        raise UserError(f"--max-batch {wanted}: allowed: 1 to {LARGEST_BATCH}")
    if wanted is None:
        wanted = hosts.adoption().largest_batch(where) if where else registered_batch(model)
    return wanted or DEFAULT_BATCH


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
    from shunter.allocator.cpus.cores import free_cores

    whole = replace(topology, quota=math.inf)
    if wanted is None:
        return min(max(free_cores(whole)), topology.cores)
    cpus = max(sum(cpu.node == node for cpu in topology.cpus) for node in topology.nodes)
    most = max(1, math.floor(min(cpus, topology.quota)))
    if wanted > most:
        raise UserError(f"--threads {wanted}: an instance has at most {most} CPUs on this host")
    return wanted


def _busy(topology: Topology) -> float:
    """CPUs that something else uses, with a warning when these are too many."""
    from shunter.allocator.planning.profile import BUSY
    from shunter.plugins.profiling.profiler import busy_cores

    busy = busy_cores(topology)
    if busy > BUSY:
        print(
            f"shunter: something else uses {busy:.1f} of {len(topology.cpus)} CPUs: latencies "
            "measured beside it are too high",
            file=sys.stderr,
        )
    return round(busy, 2)


def _run(
    task: Task,
    path: Path,
    topology: Topology,
    console: Console,
    bandwidth: bool,
    where: Any,
) -> Profile:
    from shunter.plugins.profiling import profiler
    from shunter.plugins.profiling.bandwidth import add_bandwidth

    try:
        with _reporting(console) as report:
            if where is not None:
                return measure(where, task, path, report)
            found = profiler.run(task, path, topology, report)
        return add_bandwidth(task, path, topology) if bandwidth else found
    except KeyboardInterrupt:
        print(f"shunter: {_kept(path, task.restart)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _kept(path: Path, restart: bool) -> str:
    from shunter.allocator.planning.profile import ProfileError
    from shunter.plugins.profiling.profiles import load_profile

    try:
        found = len(load_profile(path).cells)
    except (OSError, ProfileError):
        return "stopped before the first cell was measured"
    command = "the same command without --restart" if restart else "the same command"
    return f"{found} cells are kept in {path}; {command} goes on"


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
    line = f"{count(threads, 'thread')}, batch {batch}"
    if now.beside is not None:
        line += f", in turns with {count(now.beside[0], 'thread')}, batch {now.beside[1]}"
    return line


def _left(now: Progress) -> str:
    return f"about {_duration(now.seconds_left)} left" if now.seconds_left > 0 else ""


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _show(profile: Profile, path: Path, console: Console) -> None:
    """What was measured, and last where it is."""
    from shunter.plugins.view import plan_view

    console.print(plan_view.cell_table(profile))
    for (threads, batch), reason in sorted(profile.failed.items()):
        print(f"{count(threads, 'thread')}, batch {batch} cannot be measured: {reason}")
    if said := plan_view.stated_doubt(profile):
        print(said)
    print(f"{count(len(profile.cells), 'cell')} in {_duration(profile.seconds)}, {profile.way}")
    if said := plan_view.stated_error(profile):
        print(said)
    for each in profile.undecided:
        print(each)
    print(path)
