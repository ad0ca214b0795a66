"""``shunter events``: what happened in a running server, and why."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.plugins.console import stdout

if TYPE_CHECKING:
    from rich.text import Text

LOOK_S = 0.5
_STYLES = {"warning": "yellow", "error": "red"}


def events(
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    about: Annotated[
        str | None, typer.Option(help="Only of this: NAME, NAME/VERSION, or controller.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each.")] = False,
    management: Annotated[
        str | None, typer.Option(help="Management API; default: as for `shunter load`.")
    ] = None,
    runtime: Annotated[
        Path | None, typer.Option(help="Runtime folder of a Triton of `shunter serve`.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="SHUNTER_TOKEN", help="Management key, where tokens are on."),
    ] = None,
) -> None:
    """Say what happened in a running server lately, and why.

    Changes of configurations, workers that were lost, requests that were dropped early or refused,
    weights that left a cache, and what the controller decided. A server remembers the last 512;
    SHUNTER_EVENT_LOG=FILE in its environment has it write each as a line of JSON.

    Examples:

      shunter events --follow

      shunter events --json | jq 'select(.level == "error")'
    """
    from shunter.plugins import hosts

    host, console, last = hosts.running(management, runtime, token), stdout(), 0
    try:
        while True:
            for each in host.events(last):
                last = each["number"]
                if about in (None, each["about"], each["about"].partition("/")[0]):
                    if as_json:
                        print(json.dumps(each), flush=True)
                    else:
                        console.print(line(each), soft_wrap=True)
            if not follow:
                return
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        pass  # The usual way to end it.


def line(told: dict[str, Any]) -> Text:
    """One of them, for people."""
    from rich.text import Text

    at = datetime.fromtimestamp(told["unix_ms"] / 1000)
    style = _STYLES.get(told["level"], "")
    return Text.assemble(
        (f"{at:%H:%M:%S} ", "dim"), (f"{told['about']}: ", "bold"), (told["text"], style)
    )
