"""``shunter adopt``: models of other backends of a Triton that runs already."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.batching.forming.spelling import hint
from shunter.plugins.cli.files import check_finite
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from shunter.allocator.planning.profile import Profile
    from shunter.plugins.profiling.planning import Plan
    from shunter.plugins.profiling.profiler import Progress, Task

adopt = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Batches, classes and instances of a model that another backend of Triton serves.

    Examples:

      shunter adopt prepare models/resnet

      shunter adopt control resnet --profile resnet.profile.json
    """,
)

Http = Annotated[str, typer.Option("--http", help="Triton's HTTP API.")]
Grpc = Annotated[str, typer.Option("--grpc", help="Triton's gRPC API, as HOST:PORT.")]
HTTP, GRPC = "http://127.0.0.1:8000", "127.0.0.1:8001"
CLASSES = ("strict", "best_effort")


@adopt.command()
def prepare(
    folder: Annotated[Path, typer.Argument(help="Of the model, in Triton's repository.")],
    write: Annotated[
        bool, typer.Option("--write", help="Add the lines, not only print them.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="A file that Triton and the controller both see; default: in /dev/shm."),
    ] = None,
    library: Annotated[
        Path | None, typer.Option(help="Where Triton finds the library; default: where it is.")
    ] = None,
) -> None:
    """Print what a model's config.pbtxt needs, so that Triton forms its batches by our library.

    With --write the lines are added, and the file of before is kept beside it.

    Example:

      shunter adopt prepare models/resnet --write
    """
    from shunter.plugins import hosts

    found = hosts.adoption().prepare(folder, library, page)
    for each in found.advice:
        print(f"# {each}")
    if not found.lines:
        print(f"# {found.config} has all that is needed")
        return
    if write:
        print(f"# added to {found.config}; before it was {found.write()}")
    for each in found.lines:
        print(each)


@adopt.command()
def control(
    model: Annotated[str, typer.Argument(help="Its name.")],
    profile: Annotated[
        Path | None,
        typer.Option(help="NAME.profile.json; without it its instances stay as they are."),
    ] = None,
    request_class: Annotated[
        str, typer.Option("--class", help="strict or best_effort, of requests that name none.")
    ] = CLASSES[0],
    slo_ms: Annotated[
        float, typer.Option(min=0, help="Deadline of strict requests without one; 0: none.")
    ] = 0.0,
    cap: Annotated[
        int, typer.Option(min=0, help="Most rows of a batch; 0: as the profile says, or no cap.")
    ] = 0,
    mix_classes: Annotated[
        bool, typer.Option("--mix-classes", help="Strict and best-effort requests in one batch.")
    ] = False,
    cores: Annotated[
        int | None, typer.Option(min=1, help="For all its instances; default: this host's.")
    ] = None,
    every: Annotated[float, typer.Option(min=0.05, max=5, help="Seconds between looks.")] = 0.5,
    timeout_s: Annotated[
        float, typer.Option(min=1, help="Between two looks at whether other instances are wanted.")
    ] = 30.0,
    http: Http = HTTP,
    grpc: Grpc = GRPC,
) -> None:
    """Control a prepared model until Ctrl-C: its batches at once, its instances as the load asks.

    Changes of instances need a Triton with --model-control-mode=explicit.

    Example:

      shunter adopt control resnet --profile resnet.profile.json --slo-ms 50
    """
    from shunter.allocator.cpus.discovery import read_topology
    from shunter.plugins import hosts
    from shunter.plugins.control.settings_keys import ConfigurationSettings

    check_finite(slo_ms=slo_ms, every=every, timeout_s=timeout_s)
    if request_class not in CLASSES:
        near = hint(request_class, CLASSES)
        raise UserError(f"--class {request_class}; allowed: {', '.join(CLASSES)}{near}")
    adoption = hosts.adoption()
    terms = adoption.Terms(CLASSES.index(request_class), slo_ms, not mix_classes, cap)
    settings = ConfigurationSettings(timeout_s=timeout_s)
    found = adoption.Adopted(
        address(model, http, grpc), terms, profile, cores or read_topology().cores, settings
    )
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    try:
        _follow(found.controller, ended, every)
    finally:
        found.close()


def _follow(controller: Any, ended: threading.Event, every: float) -> None:
    """Look again and again; say what has changed."""
    told: tuple[Any, str] | None = None
    while True:
        controller.cycle()
        now = controller.present, controller.problem
        if now != told:
            print(f"now {now[0]}" if not now[1] else f"now {now[0]}; {now[1]}", flush=True)
        told = now
        if ended.wait(every):
            return


def address(model: str, http: str, grpc: str) -> Any:
    """Where a model is served."""
    from shunter.plugins import hosts

    return hosts.adoption().Address(model, http.rstrip("/"), grpc)


def profile_of(model: Path) -> Path:
    """Where the profile of a served model lies unless somebody says otherwise."""
    return model if model.suffix == ".json" else Path(f"{model}.profile.json")


def measure(where: Any, task: Task, path: Path, report: Callable[[Progress], None]) -> Profile:
    """Measure a served model."""
    from shunter.allocator.cpus.discovery import read_topology
    from shunter.plugins import hosts

    return hosts.adoption().measure(where, task, path, read_topology(), report)


def plans_of(
    profile: Profile,
    nodes: tuple[int, ...],
    batch: int | None,
    slo_ms: float | None,
    **limits: Any,
) -> list[Plan]:
    """Plans that Triton's instance groups can have."""
    from shunter.plugins import hosts

    adoption = hosts.adoption()
    if batch is None and slo_ms is None:
        return adoption.plan_each(profile, nodes, **limits)
    return [adoption.plan(profile, nodes, batch or 1, slo_ms=slo_ms, **limits)]
