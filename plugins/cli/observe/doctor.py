"""``shunter doctor`` and ``shunter init``: before the first server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shunter.plugins.console import stdout
from shunter.plugins.errors import UserError

SIGNS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def doctor(
    port: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=65535, help="Look whether these are free; default: the usual ones."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at this machine: what Shunter needs, what is missing, and the command that mends it.

    Nothing is changed. Exits with 1 where something keeps a server from serving.

    Examples:

      shunter doctor

      shunter doctor --json | jq '.[] | select(.level != "ok")'
    """
    from shunter.plugins.doctor.checks import PORTS, Level, diagnose
    from shunter.plugins.doctor.facts import gather

    findings = diagnose(gather(port or PORTS))
    if as_json:
        print(json.dumps([each.as_json() for each in findings], indent=2))
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, padding=(0, 1))
        for each in findings:
            name = each.level.name.lower()
            text = Text(each.said)
            if each.mend:
                text.append(f"\n{each.mend}", style="dim")
            table.add_row(Text(name, style=SIGNS[name]), each.topic, text)
        stdout().print(table)
    raise typer.Exit(int(max(each.level for each in findings) is Level.ERROR))


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write; made if it is missing.")] = Path(),
    store: Annotated[Path, typer.Option(help="Model store that the server shall have.")] = Path(
        "model_store"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a commented shunter.toml and a config.properties for TorchServe; make its model store.

    Every key is there with its default and its meaning, commented out: what you do not touch stays
    as it is.

    Examples:

      shunter init

      shunter init /etc/shunter --store /var/lib/models
    """
    from shunter.plugins import hosts
    from shunter.plugins.doctor.templates import settings_text

    wanted = {"shunter.toml": settings_text(), **hosts.first_properties(store)}
    there = [str(folder / name) for name in wanted if (folder / name).exists()]
    if there and not force:
        raise UserError(f"{', '.join(there)}: already there; --force replaces them")
    folder, store = folder.absolute(), store.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not store.is_dir():  # without it the server does not start
            store.mkdir(parents=True)
            print(f"made {store}")
        for name, text in wanted.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(f"wrote {folder / name}")
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from error
    print(f"Put archives into {store}, for example by `shunter pack`. Start with:")
    print(
        f"  SHUNTER_CONFIG={folder / 'shunter.toml'} torchserve --start --foreground "
        f"--ts-config {folder / 'config.properties'}"
    )
    print("Its keys will be in key_file.json of the folder where you start it.")
