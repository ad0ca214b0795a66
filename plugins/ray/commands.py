"""``shunter cluster``: many machines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from shunter.plugins.console import given, stdout
from shunter.plugins.errors import UserError
from shunter.plugins.ray.records.names import require_ray

cluster = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Many machines behind gateways, on Ray.

    Examples:

      shunter cluster up --local 3 --store store

      shunter cluster status
    """,
)

Folder = Annotated[
    Path | None,
    typer.Option(help="What this host keeps of the cluster; default: /tmp/shunter-cluster-UID."),
]


@cluster.command()
def up(
    local: Annotated[
        int | None,
        typer.Option(
            min=1, max=16, help="So many machines on this host, to try it; nobody else can join."
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Model store; default: cluster.toml's, or store.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="cluster.toml; default: that of this folder, if any.")
    ] = None,
    triton: Annotated[
        bool, typer.Option("--triton", help="Each machine runs Triton, and not TorchServe.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="Of the first gateway; the others follow.")
    ] = None,
    folder: Folder = None,
) -> None:
    """Start a cluster on this host; come back when it serves.

    Each machine runs one server with the models of the store. A request goes to any gateway, as to
    TorchServe or Triton itself. Other hosts join with `shunter serve --cluster`.

    Examples:

      shunter cluster up --local 3 --store store

      shunter cluster up --config cluster.toml
    """
    from shunter.plugins.ray import cluster as running
    from shunter.plugins.ray import started
    from shunter.plugins.ray.records import settings

    found, base = settings.given(config, store=store, triton=triton, port=port)
    console, place = stdout(), folder or started.usual_folder()
    with console.status("starting") as shown:
        status = running.up(
            place,
            found,
            base,
            nodes=local or 1,
            is_local=local is not None,
            say=lambda text: shown.update(f"starting: {text}"),
        )
    _show(status)
    if local is None:
        head = started.note(place)["address"]
        print(f"others join: shunter serve --cluster {head} --cluster-key {place / started.TOKEN}")


@cluster.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON as it is.")] = False,
    folder: Folder = None,
) -> None:
    """Show the gateways and machines of the cluster.

    Example:

      shunter cluster status
    """
    from shunter.plugins.ray import cluster as running
    from shunter.plugins.ray import started

    found = running.status(folder or started.usual_folder())
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _show(found)


@cluster.command()
def drain(
    machine: Annotated[str, typer.Argument(help="Its name in `shunter cluster status`.")],
    folder: Folder = None,
) -> None:
    """Send nothing more to a machine, let it answer what it holds, end its server.

    Example:

      shunter cluster drain node-2
    """
    from shunter.plugins.ray import cluster as running
    from shunter.plugins.ray import started

    running.drain(folder or started.usual_folder(), machine)
    print(f"{machine} is released: it holds nothing")


@cluster.command()
def evict(
    machine: Annotated[str, typer.Argument(help="Its name in `shunter cluster status`.")],
    notice: Annotated[float, typer.Option(min=1, help="Seconds until it is ended.")] = 30,
    folder: Folder = None,
) -> None:
    """Have a machine of this host taken away, as a cloud takes away a spot machine.

    For clusters with `provider = "local"`: its end is announced, it is replaced, drained, and ended
    when the time is over, whatever it does then.

    Example:

      shunter cluster evict node-2 --notice 30
    """
    from shunter.plugins.ray import local, started

    local.announce(folder or started.usual_folder(), machine, notice)
    print(f"{machine} ends in {notice:g} s")


@cluster.command()
def sky(
    name: Annotated[str, typer.Argument(help="Of the service.")] = "shunter",
    config: Annotated[
        Path | None, typer.Option(help="cluster.toml; default: that of this folder, if any.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or bucket (s3://...) of the archives.")
    ] = None,
    accelerators: Annotated[str, typer.Option(help="Of a machine, such as A100:8.")] = "",
    cloud: Annotated[str, typer.Option(help="Such as aws; default: whichever is cheapest.")] = "",
    rate: Annotated[float, typer.Option(min=0.001, help="Requests a second of a machine.")] = 10,
) -> None:
    """Print a service for SkyPilot's SkyServe, which then has machines of its own, without Ray.

    Example:

      shunter cluster sky embed --store s3://models --accelerators L4:1 > embed.yaml
    """
    from shunter.plugins.ray.providers.sky import SkyService, sky_yaml
    from shunter.plugins.ray.records import settings

    found, base = settings.given(config, store=None, triton=False, port=None)
    machines = found.machines
    service = SkyService(
        name,
        store or str((base / found.server.store).resolve()),
        least=machines.least,
        most=machines.most,
        rate=rate,
        accelerators=accelerators,
        cloud=cloud,
        on_demand_least=machines.on_demand_least,
        start_s=int(machines.patience_s),
        keep_s=int(machines.keep_s),
    )
    print(sky_yaml(service), end="")


@cluster.command()
def down(folder: Folder = None) -> None:
    """End the machines and gateways that were started on this host.

    Example:

      shunter cluster down
    """
    from shunter.plugins.ray import started

    started.down(folder or started.usual_folder())
    print("the cluster has ended")


def join(
    ctx: typer.Context,
    head: str,
    key: Path | None,
    store: Path,
    name: str | None,
    ports: tuple[int, int],
    folder: Path | None,
) -> None:
    """``shunter serve --cluster``. Raises UserError."""
    allowed = {"cluster_head", "cluster_key", "cluster_name", "store", "port", "grpc", "folder"}
    if others := given(ctx) - allowed:
        raise UserError(f"--{min(others)}: what a cluster serves is said by its cluster.toml")
    host, _, port = head.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--cluster {head}: write HOST:PORT, as `shunter cluster up` printed it")
    from shunter.plugins.ray import cluster as running
    from shunter.plugins.ray import started
    from shunter.plugins.ray.node import NodeSpec

    require_ray()
    if key is None:
        raise UserError("--cluster-key: name a copy of the file token of the cluster's folder")
    place = folder or started.usual_folder().with_name(f"{started.usual_folder().name}-node")
    started.make_folder(place, key)
    described: dict[str, Any] = {"address": running.own_address(place)}
    if given(ctx) & {"port", "grpc"}:
        described["ports"] = list(ports)
    if "store" in given(ctx):
        described["store"] = str(store.resolve())
    name = name or socket.gethostname()
    running.join(NodeSpec(str(place), name, head, described=described))


def _show(found: dict[str, Any]) -> None:
    from rich.table import Table

    console = stdout()
    for each in found["gateways"]:
        where, problem = each.get("address", ""), each["problem"]
        counters = ", ".join(f"{v} {k}" for k, v in each.get("counters", {}).items())
        text = f"{each['name']}  {where}  on {each.get('machine')}  {problem or counters}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    table = Table()
    for column in ("machine", "state", "server", "models", "waiting", "starts", "problem"):
        table.add_column(column)
    for each in found["machines"]:
        models = [f"{model['name']} {model['version']}" for model in each["models"]]
        waiting = sum(model["strict"] + model["best_effort"] for model in each["models"])
        where = each["inference"]
        row = (each["name"], each["state"], where, ", ".join(models), str(waiting))
        table.add_row(*row, str(each["starts"]), each["problem"])
    console.print(table)
