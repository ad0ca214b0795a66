"""What commands share that talk to people: which arguments were given, and where output goes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer
    from rich.console import Console


def given(ctx: typer.Context) -> set[str]:
    """Names of the arguments and options that stand on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    # By its name: the class is click's, or that which some versions of typer bring.
    return {name for name, each in sources.items() if each and each.name == "COMMANDLINE"}


def stdout() -> Console:
    from rich.console import Console

    # A file or a pipe has no width of its own; 80 columns would fold the tables.
    return Console(width=None if sys.stdout.isatty() else 120)


def count(number: int, what: str) -> str:
    """So many of these."""
    return f"{number} {what}{'' if number == 1 else 's'}"
