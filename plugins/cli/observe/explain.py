"""``shunter explain``: what happened to a request."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.plugins.console import stdout

if TYPE_CHECKING:
    from rich.table import Table

LAST = "last"


def explain(
    request: Annotated[
        str, typer.Argument(help="Its x-request-id, or last: those that ended last.")
    ] = LAST,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    bad: Annotated[
        bool, typer.Option("--bad", help="Only those that were refused, failed or late.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, max=1024, help="How many of the last ones.")] = 1,
    management: Annotated[
        str | None, typer.Option(help="Management API; default: http://127.0.0.1:8081.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="SHUNTER_TOKEN", help="Management key, where tokens are on."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON as it is.")] = False,
) -> None:
    """Say what happened to a request: class, deadline, wait, batch, worker, and why it was refused.

    A server remembers the last 1024 requests of each model that ended.

    Examples:

      shunter explain 4f1d2f7c-55b1-4a0e-8a4e-6a1f0f4f2a10

      shunter explain last --bad --count 20
    """
    from shunter.plugins import hosts

    wanted = None if request == LAST else request
    found = hosts.ended_requests(management, token, wanted, model=model, bad=bad, count=count)
    if as_json:
        print(json.dumps(found, indent=2))
    elif len(found) == 1:
        print(story(found[0]))
    elif found:
        stdout().print(_table(found))
    else:
        print("no request that is meant has ended yet")


def story(told: dict[str, Any]) -> str:
    """One request in sentences."""
    arrived = datetime.fromtimestamp(told["arrived_unix_ms"] / 1000)
    deadline = told["deadline_ms"]
    lines = [
        f"{told['id']}: {told['class']} request to {told['model']}, "
        + ("no deadline" if deadline is None else f"to be answered within {deadline:.1f} ms"),
        f"  {arrived:%H:%M:%S.%f}"[:-3] + "  it came",
    ]
    waited, ran = told["waited_ms"], told["ran_ms"]
    if told["group"] is not None:
        others = told["batch"] - 1
        beside = f"with {others} other{'' if others == 1 else 's'}" if others else "alone"
        lines.append(f"  + {waited:.1f} ms  a worker of group {told['group']} took it, {beside}")
    if told["deaths"]:
        lines.append(f"  {told['deaths']} of its workers died")
    ended = f"  + {waited + ran:.1f} ms  "
    if told["why"]:
        lines.append(f"{ended}it ended with {told['status']}: {told['why']}")
    else:
        late = "" if told["in_time"] else f", {waited + ran - deadline:.1f} ms late"
        lines.append(f"{ended}it was answered with {told['status']}{late}")
    return "\n".join(lines)


def _table(found: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None)
    for name in ("request", "model", "class"):
        table.add_column(name)
    for name in ("waited ms", "ran ms", "batch", "status"):
        table.add_column(name, justify="right")
    table.add_column("why")
    for each in found:
        why = each["why"] or ("" if each["in_time"] else "answered after its deadline")
        numbers = (f"{each['waited_ms']:.1f}", f"{each['ran_ms']:.1f}", str(each["batch"]))
        table.add_row(
            str(each["id"]), each["model"], each["class"], *numbers, str(each["status"]), why
        )
    return table
