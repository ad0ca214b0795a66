"""``shunter pack``: archives from folders and samples."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shunter.plugins.cli.triton import ForTriton, Packed, Repository, pack_repository
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

SAMPLES = ("digits", "minilm", "resnet50")


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
    from shunter.model_store.pack import PackError
    from shunter.model_store.pack import pack as packed

    try:
        if no_weights and model in SAMPLES:
            raise UserError("--no-weights is for folders; a sample has its weights")
        if model == "digits":
            pack_digits(store, name or model, version, eager)
        elif eager:
            raise UserError("--eager is for the sample digits; a folder says it by its files")
        elif model in SAMPLES:
            print(_pack_sample(model, store, name or model, version))
        else:
            print(
                packed(
                    Path(model), store, name=name, version=version, weights_needed=not no_weights
                )
            )
    except (PackError, OSError) as error:
        raise UserError(str(error)) from error


def _pack_sample(model: str, store: Path, name: str, version: str) -> Path:
    with _stderr().status(f"packing {model}"):
        if model == "minilm":
            from shunter.model_store.minilm.archive import pack_minilm

            return pack_minilm(store, name=name, version=version)
        require("PIL")
        from shunter.model_store.resnet50.archive import pack_resnet50

        return pack_resnet50(store, name=name, version=version)


def pack_digits(store: Path, name: str, version: str, eager: bool) -> None:
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
