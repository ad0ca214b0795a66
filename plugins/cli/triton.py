"""``shunter pack --triton`` and ``shunter workers``: for a Triton that somebody else starts."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from shunter.plugins.cli.files import given
from shunter.plugins.errors import UserError

LOOK_S = 0.5

Packed = Annotated[
    list[str] | None,
    typer.Argument(help="--triton: NAME, or NAME=FILE.mar, of the store; default: all."),
]
ForTriton = Annotated[
    bool, typer.Option("--triton", help="MODEL is a model store: a Triton repository of it.")
]
Repository = Annotated[
    Path | None, typer.Option(help="--triton: the folder to write; it must not be there.")
]


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
