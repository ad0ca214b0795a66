"""``shunter pack``: archives from folders and samples; repositories for a Triton of one's own."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.batching.forming.spelling import hint
from shunter.plugins.console import given
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

SAMPLES = ("digits", "minilm", "resnet50")
Packed = Annotated[
    list[str] | None,
    typer.Argument(help="--triton: NAME, or NAME=FILE.mar, of the store; default: all."),
]
Network = Annotated[
    str | None,
    typer.Option(help="A sample: also workers for the network front end, such as 1x1x32."),
]
ForTriton = Annotated[
    bool, typer.Option("--triton", help="MODEL is a model store: a Triton repository of it.")
]
Repository = Annotated[
    Path | None, typer.Option(help="--triton: the folder to write; it must not be there.")
]


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
    network: Network = None,
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
    _check(model, eager=eager, no_weights=no_weights, network=network)
    from shunter.model_store.pack import PackError
    from shunter.model_store.pack import pack as packed

    try:
        if model == "digits":
            pack_digits(store, name or model, version, eager=eager, network=network)
        elif model in SAMPLES:
            print(_pack_sample(model, store, name or model, version, network))
        else:
            how = {"weights_needed": not no_weights, "check": _check_config}
            print(packed(Path(model), store, name=name, version=version, **how))
    except (PackError, OSError) as error:
        near = "" if Path(model).exists() else hint(model, SAMPLES)
        raise UserError(f"{error}{near}") from error


def _check(model: str, *, eager: bool, no_weights: bool, network: str | None) -> None:
    """Raises UserError for an option that means nothing for such a model."""
    if no_weights and model in SAMPLES:
        raise UserError("--no-weights is for folders; a sample has its weights")
    if network and model not in SAMPLES:
        raise UserError("--network is for samples; a folder says it in its model-config.yaml")
    if eager and model != "digits":
        raise UserError("--eager is for the sample digits; a folder says it by its files")


def _check_config(config: Mapping[str, Any]) -> None:
    """Raises UserError for what a server would refuse."""
    from shunter.plugins import hosts

    try:
        hosts.check_model_config(config)
    except UserError as error:
        raise UserError(f"model-config.yaml: {error}") from error


def pack_repository(
    ctx: typer.Context, store: Path, models: list[str], output: Path | None
) -> None:
    """Write a repository, and say how it is served."""
    if others := given(ctx) - {"model", "models", "triton", "output"}:
        name = min(others).replace("_", "-")
        raise UserError(f"--{name}: not with --triton, which takes archives as they are")
    from shunter.plugins import hosts
    from shunter.plugins.cli.serve import archives
    from shunter.plugins.profiling.profiles import profile_path

    if output is None:
        raise UserError("--output FOLDER is missing: where the repository for Triton is written")
    if not store.is_dir():
        raise UserError(f"{store} is not a folder: with --triton name a model store")
    named = [
        each if "=" in each else f"{each.removesuffix('.mar')}={each.removesuffix('.mar')}.mar"
        for each in models
    ]
    found = archives(store, named)
    hosts.pack_repository(store, found, output, profile_path)
    for each in found:
        print(output / "models" / each.partition("=")[0])
    print(f"start its workers, which say how to start Triton: shunter workers {output}")


def _pack_sample(model: str, store: Path, name: str, version: str, network: str | None) -> Path:
    from shunter.model_store.pack import with_network

    with _stderr().status(f"packing {model}"):
        if model == "minilm":
            from shunter.model_store.minilm import archive as minilm

            config = with_network(minilm.HERE / "model-config.yaml", network)
            return minilm.pack_minilm(store, name=name, version=version, config=config)
        require("PIL")
        from shunter.model_store.resnet50 import archive as resnet50

        config = with_network(resnet50.HERE / "model-config.yaml", network)
        return resnet50.pack_resnet50(store, name=name, version=version, config=config)


def pack_digits(
    store: Path, name: str, version: str, *, eager: bool = False, network: str | None = None
) -> None:
    """Train the sample, pack it, say how good it is."""
    require("sklearn")
    from rich.progress import Progress

    from shunter.model_store.digits import archive

    with Progress(console=_stderr(), transient=True) as bar:
        task = bar.add_task("training digits", total=None)
        packed = archive.pack_digits(
            store,
            eager=eager,
            name=name,
            version=version,
            network=network,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    known = packed.metadata
    print(f"test accuracy {known['test_accuracy']:.2%} on {known['test_images']} held-out images")
    print(packed.path)


def require(*modules: str) -> None:
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
