"""``shunter status``: models, queues, batches and workers of a running server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.plugins.console import given, stdout
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def status(
    ctx: typer.Context,
    runtime: Annotated[
        Path | None,
        typer.Option(help="Runtime folder of a server on this host; default: the only one."),
    ] = None,
    management: Annotated[
        str | None, typer.Option(help="Ask a management API instead; it knows more.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="SHUNTER_TOKEN", help="Management key, where tokens are on."),
    ] = None,
    triton: Annotated[
        Path | None,
        typer.Option(help="Ask shunter's backend in a Triton without `shunter serve`: its socket."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch/--once", help="Refresh until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON as it is.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 1.0,
) -> None:
    """Show models, queues, batches and workers of a running server.

    On the server's own host no key is needed. The management API also tells each worker.

    Examples:

      shunter status --watch

      shunter status --management http://127.0.0.1:8081 --token 4Xk29sQz

      shunter status --triton packed/backend.sock --watch
    """
    from shunter.plugins import hosts
    from shunter.plugins.view import page_status
    from shunter.plugins.view import status as view

    def fetch() -> dict[str, Any]:
        if triton is not None:
            return hosts.status_of(triton)
        if management is None:
            return page_status.fetch(runtime)
        return hosts.host_of(management, token).status()

    _check(ctx, watch, as_json)
    render = view.render if triton is None else _triton_table
    if as_json:
        print(json.dumps(fetch(), indent=2))
    elif watch:
        _watch(lambda: render(fetch()), every)
    else:
        stdout().print(render(fetch()))


def _check(ctx: typer.Context, watch: bool, as_json: bool) -> None:
    """Raises UserError for options that do not go together, rather than not to heed one."""
    names = given(ctx)
    servers = [name for name in ("runtime", "management", "triton") if name in names]
    if len(servers) > 1:
        raise UserError(" and ".join(f"--{each}" for each in servers) + " each name a server: one")
    if "token" in names and "management" not in names:
        raise UserError("--token is the key of a management API: name it by --management")
    if as_json and watch:
        raise UserError("--json prints once: leave out --watch, or ask again and again")
    if "every" in names and not watch:
        raise UserError("--every is of --watch: say that, too")


def _triton_table(status: dict[str, Any]) -> Table:
    from shunter.plugins.view import tables

    columns = ("name", "version", "ready", "queued", "requests", "batches", "answered")
    columns += ("failed", "expired", "rejected", "abandoned")
    table = tables.empty(status["server"], columns[0], ",".join(columns[1:]))
    for model in status["models"]:
        table.add_row(*(str(model[column]) for column in columns))
    return table


def _watch(show: Callable[[], RenderableType], every: float) -> None:
    from rich.live import Live

    try:
        with Live(show(), console=stdout(), auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(show(), refresh=True)
    except KeyboardInterrupt:
        pass  # The usual way to end it.
