"""The ``shunter`` command. Thin: each heavier command has a module of its own."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from shunter.plugins.cli.devices import devices
from shunter.plugins.cli.existing import adopt
from shunter.plugins.cli.models import configure, load, unload
from shunter.plugins.cli.nic import nic
from shunter.plugins.cli.observe.doctor import doctor, init
from shunter.plugins.cli.observe.events import events
from shunter.plugins.cli.observe.explain import explain
from shunter.plugins.cli.observe.status import status
from shunter.plugins.cli.observe.trace import trace
from shunter.plugins.cli.pack import pack, pack_digits, require
from shunter.plugins.cli.plan import plan
from shunter.plugins.cli.plot import plot
from shunter.plugins.cli.profile import profile
from shunter.plugins.errors import UserError
from shunter.plugins.ray.commands import cluster, join

LOOK_S = 0.5

Port = Annotated[
    int, typer.Option(min=1, max=65535, help="Inference; management and metrics follow.")
]
Grpc = Annotated[
    int, typer.Option(min=1, max=65535, help="gRPC inference; gRPC management follows.")
]
Tokens = Annotated[
    bool | None,
    typer.Option("--tokens/--no-tokens", help="TorchServe's token authorisation; default: on."),
]
Kept = Annotated[
    Path | None,
    typer.Option(
        help="Keep configuration and logs here; default: temporary. A Triton whose `serve` was "
        "killed is taken over by the next one with the same folder."
    ),
]
Head = Annotated[
    str | None,
    typer.Option("--cluster", help="HOST:PORT: be a machine of that cluster, see its `up`."),
]
Key = Annotated[
    Path | None, typer.Option("--cluster-key", help="The cluster's key, from its head.")
]
Name = Annotated[
    str | None,
    typer.Option(
        "--cluster-name", help="Of this machine there; default: the host's. On AWS: instance id."
    ),
]

app = typer.Typer(
    name="shunter",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"shunter {version('shunter')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print it and exit.")
    ] = False,
) -> None:
    """Batching, classes and deadlines for unmodified TorchServe and Triton."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line. A user's mistake prints one sentence and exits with status 2."""
    try:
        app(args=argv, prog_name="shunter")
    except UserError as error:
        print(f"shunter: {error}", file=sys.stderr)
        raise SystemExit(2) from None


@app.command()
def serve(
    ctx: typer.Context,
    store: Annotated[Path, typer.Option(help="Model store.")] = Path("store"),
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="NAME=FILE.mar to load; default: all of the store."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the sample model digits.")] = False,
    port: Port = 8080,
    grpc: Grpc = 7070,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="KEY=VALUE, an option of the server.")
    ] = None,
    tokens: Tokens = None,
    folder: Kept = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="TorchServe's default logs.")] = False,
    triton: Annotated[
        bool, typer.Option("--triton", help="Triton with the backend, and not TorchServe.")
    ] = False,
    cluster_head: Head = None,
    cluster_key: Key = None,
    cluster_name: Name = None,
) -> None:
    """Serve models with TorchServe and the plugin until Ctrl-C, then drain and stop.

    Examples:

      shunter serve --demo --no-tokens

      shunter serve --store store --model resnet=resnet.mar --config job_queue_size=500

      shunter serve --demo --triton --port 8000 --grpc 8001

      shunter serve --cluster 10.0.0.1:6379 --cluster-key key --store store
    """
    if cluster_head is not None:
        join(ctx, cluster_head, cluster_key, store, cluster_name, (port, grpc), folder)
        return
    from rich.console import Console

    from shunter.plugins import hosts
    from shunter.plugins.cli import serve as serving

    if triton:
        serving.check_triton(tokens=tokens, verbose=verbose)
    if demo:
        pack_digits(store, "digits", "1.0", eager=False)
        models = ["digits=digits.mar"]
    server = hosts.process_of(
        store,
        serving.archives(store, models or []),
        settings=serving.parse_settings(config or []),
        tokens=tokens is not False,
        folder=folder,
        ports=(port, grpc),
        quiet=not verbose,
        name=hosts.TRITON if triton else hosts.TORCHSERVE,
    )
    serving.run(server, Console())


@app.command()
def demo() -> None:
    """Serve digits and sentence embeddings with the plugin, send requests, print tables.

    Example:

      shunter demo
    """
    require("sklearn", "grpc", "google.protobuf")
    from rich.console import Console

    from shunter.plugins.cli import demo as demonstration

    raise typer.Exit(demonstration.run(Console()))


app.command()(doctor)
app.command()(init)
app.command()(pack)
app.command()(status)
app.command()(events)
app.command()(explain)
app.command()(trace)
app.command()(devices)
app.command()(load)
app.command()(unload)
app.command()(configure)
app.command()(profile)
app.command()(plan)
app.command()(nic)
app.add_typer(plot, name="plot")
app.add_typer(adopt, name="adopt")
app.add_typer(cluster, name="cluster")


@app.command()
def workers(
    folder: Annotated[Path, typer.Argument(help="What `shunter pack --triton` wrote.")],
    socket: Annotated[
        Path | None,
        typer.Option(help="Where Triton's backend listens; default: backend.sock of the folder."),
    ] = None,
) -> None:
    """Start the workers of a packed Triton repository until Ctrl-C; Triton is started by you.

    Triton may come before or after them, and end and come again.

    Examples:

      shunter pack --triton store --output packed

      shunter workers packed
    """
    from shunter.plugins import hosts

    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    found = hosts.packed_workers(folder, socket)
    try:
        count = found.start()
        print(f"{count} worker{'' if count == 1 else 's'} loaded; start Triton:", flush=True)
        print(f"  {found.command}", flush=True)
        told: list[str] = []
        while not ended.wait(LOOK_S):
            problems = found.look_after()
            for each in problems:
                if each not in told:
                    print(f"shunter: {each}", flush=True)
            told = problems
    finally:
        found.close()


@app.command("plugins-path")
def plugins_path() -> None:
    """Print the folder for torchserve --plugins-path; build the jar if it is missing or stale.

    Example:

      torchserve --start --ncs --model-store store --plugins-path $(shunter plugins-path)
    """
    from shunter.plugins.hosts import plugins_folder

    print(plugins_folder())


@app.command()
def jar(
    output: Annotated[
        Path | None, typer.Option(help="Folder for the jar; default: beside the Java sources.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Build even a fresh jar again.")] = False,
) -> None:
    """Build the TorchServe plugin jar with javac and print its folder.

    Examples:

      shunter jar

      shunter jar --output /opt/torchserve/plugins
    """
    from shunter.plugins.hosts import plugins_folder

    print(plugins_folder(output, force=force))


if __name__ == "__main__":
    main()
