"""The ``shunter`` command. Thin: each heavier command has a module of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shunter.plugins.cli.devices import devices
from shunter.plugins.cli.existing import adopt
from shunter.plugins.cli.models import configure, load, unload
from shunter.plugins.cli.nic import nic
from shunter.plugins.cli.plan import plan
from shunter.plugins.cli.plot import plot
from shunter.plugins.cli.profile import profile
from shunter.plugins.cli.status import status
from shunter.plugins.cli.triton import (
    ForTriton,
    Packed,
    Repository,
    pack_repository,
    workers,
)
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="shunter",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

SAMPLES = ("digits", "minilm", "resnet50")


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
    """Batching, classes and deadlines for unmodified TorchServe."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line. A user's mistake prints one sentence and exits with status 2."""
    try:
        app(args=argv, prog_name="shunter")
    except UserError as error:
        print(f"shunter: {error}", file=sys.stderr)
        raise SystemExit(2) from None


@app.command()
def pack(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help=f"A folder with handler.py, or a sample: {', '.join(SAMPLES)}."),
    ],
    models: Packed = None,
    store: Annotated[Path, typer.Option(help="Model store to write into.")] = Path("store"),
    name: Annotated[str | None, typer.Option(help="Model name; default: the folder's.")] = None,
    version: Annotated[str, typer.Option(help="Model version.")] = "1.0",
    eager: Annotated[
        bool, typer.Option("--eager", help="digits: pack class and weights, not TorchScript.")
    ] = False,
    no_weights: Annotated[
        bool,
        typer.Option("--no-weights", help="A folder whose model.py or handler makes its own."),
    ] = False,
    triton: ForTriton = False,
    output: Repository = None,
) -> None:
    """Pack a model folder, or a sample model, into a .mar file; or archives for Triton.

    The folder holds handler.py and, where needed, model.py, one file of weights (.pt, .pth,
    .onnx), model-config.yaml, requirements.txt, *.json and extra/. With --triton the archives of a
    store become a model repository for a Triton that you start yourself.

    Examples:

      shunter pack digits --store store

      shunter pack ./my_model --store store --version 2.0

      shunter pack --triton store digits --output packed
    """
    if triton:
        pack_repository(ctx, Path(model), models or [], output)
        return
    if models or output:
        raise UserError(f"{models[0] if models else '--output'}: only with --triton")
    from shunter.model_store.pack import PackError, pack

    try:
        if no_weights and model in SAMPLES:
            raise UserError("--no-weights is for folders; a sample has its weights")
        if model == "digits":
            _pack_digits(store, name or model, version, eager)
        elif eager:
            raise UserError("--eager is for the sample digits; a folder says it by its files")
        elif model in SAMPLES:
            print(_pack_sample(model, store, name or model, version))
        else:
            print(
                pack(Path(model), store, name=name, version=version, weights_needed=not no_weights)
            )
    except (PackError, OSError) as error:
        raise UserError(str(error)) from error


def _pack_sample(model: str, store: Path, name: str, version: str) -> Path:
    with _stderr().status(f"packing {model}"):
        if model == "minilm":
            from shunter.model_store.minilm.archive import pack_minilm

            return pack_minilm(store, name=name, version=version)
        _require("PIL")
        from shunter.model_store.resnet50.archive import pack_resnet50

        return pack_resnet50(store, name=name, version=version)


def _pack_digits(store: Path, name: str, version: str, eager: bool) -> None:
    _require("sklearn")
    from rich.progress import Progress

    from shunter.model_store.digits.archive import pack_digits

    with Progress(console=_stderr(), transient=True) as bar:
        task = bar.add_task("training digits", total=None)
        packed = pack_digits(
            store,
            eager=eager,
            name=name,
            version=version,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    known = packed.metadata
    print(f"test accuracy {known['test_accuracy']:.2%} on {known['test_images']} held-out images")
    print(packed.path)


@app.command()
def serve(
    store: Annotated[Path, typer.Option(help="Model store.")] = Path("store"),
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="NAME=FILE.mar to load; default: all of the store."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the sample model digits.")] = False,
    port: Annotated[int, typer.Option(help="Inference; management and metrics follow.")] = 8080,
    grpc: Annotated[int, typer.Option(help="gRPC inference; gRPC management follows.")] = 7070,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="KEY=VALUE, an option of the server.")
    ] = None,
    tokens: Annotated[
        bool | None,
        typer.Option("--tokens/--no-tokens", help="TorchServe's token authorisation; default: on."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Keep configuration and logs here; default: temporary. A Triton whose `serve` was "
            "killed is taken over by the next one with the same folder."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="TorchServe's default logs.")] = False,
    triton: Annotated[
        bool, typer.Option("--triton", help="Triton with the backend, and not TorchServe.")
    ] = False,
) -> None:
    """Serve models with TorchServe and the plugin until Ctrl-C, then drain and stop.

    Examples:

      shunter serve --demo --no-tokens

      shunter serve --store store --model resnet=resnet.mar --config job_queue_size=500

      shunter serve --demo --triton --port 8000 --grpc 8001
    """
    from rich.console import Console

    from shunter.plugins import hosts
    from shunter.plugins.cli import serve as serving

    if triton:
        serving.check_triton(tokens=tokens, verbose=verbose)
    if demo:
        _pack_digits(store, "digits", "1.0", eager=False)
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
    _require("sklearn", "grpc", "google.protobuf")
    from rich.console import Console

    from shunter.plugins.cli import demo as demonstration

    raise typer.Exit(demonstration.run(Console()))


app.command()(status)
app.command()(devices)
app.command()(load)
app.command()(unload)
app.command()(configure)
app.command()(profile)
app.command()(plan)
app.command()(nic)
app.command()(workers)
app.add_typer(plot, name="plot")
app.add_typer(adopt, name="adopt")


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


def _require(*modules: str) -> None:
    """Say which extra is missing before anything slow starts."""
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise UserError(f"the Python module {module} is missing: pip install 'shunter[demo]'")


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True)


if __name__ == "__main__":
    main()
