"""``shunter devices``: GPUs, their instances, and who runs on them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.batching.forming.spelling import hint
from shunter.plugins.console import stdout
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from shunter.allocator.devices.instances import GpuRecord
    from shunter.plugins.view.devices_view import NodeRecord

SIMULATED = "simulated: no GPU is asked, nothing here was measured"

Simulate = Annotated[
    list[str] | None,
    typer.Option(
        help="Not this machine's GPUs but simulated ones: MODEL:COUNT; models: a100-40gb, "
        "a100-80gb, h100-80gb, h200-141gb."
    ),
]
Layouts = Annotated[
    list[str] | None,
    typer.Option(
        help="Change simulated GPUs to these instances: 4g,3g or 4g@0,2g@4,1g@6 or none; one for "
        "all, or one for each."
    ),
]


def devices(
    simulate: Simulate = None,
    layout: Layouts = None,
    state: Annotated[
        Path | None, typer.Option(help="Keep the simulated GPUs in this file between calls.")
    ] = None,
    real_time: Annotated[
        bool,
        typer.Option("--real-time", help="Simulated changes take about 2 s, as in the paper."),
    ] = False,
    layouts: Annotated[
        bool, typer.Option("--layouts", help="Draw every layout to which nothing can be added.")
    ] = False,
    runtime: Annotated[
        Path | None, typer.Option(help="Runtime folder of the server; default: the only one.")
    ] = None,
    management: Annotated[
        str | None, typer.Option(help="Ask a management API who runs; it knows every worker.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="SHUNTER_TOKEN", help="Management key, where tokens are on."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the GPUs of this machine, their MIG instances, and which model runs on each.

    A GPU with MIG is a bar of its memory slices. free: an instance could be made there. Below are
    the cores of this host and who has which. Nothing of a real GPU is changed.

    Examples:

      shunter devices

      shunter devices --simulate a100-40gb:2 --layout 4g,3g --layout 4g,2g,1g

      shunter devices --simulate h100-80gb --layouts
    """
    if not simulate and (layout or state or real_time):
        raise UserError(
            "--layout, --state and --real-time are for simulated GPUs: add --simulate a100-40gb"
        )
    with ExitStack() as stack:
        if simulate:
            stack.enter_context(_simulated(simulate, state, real_time))
        if layout:
            _change(layout, state)
        records, problem = _stock(bool(simulate))
    models = _models(runtime, management, token)
    holders = None if simulate else _holders()
    if layouts and not as_json:
        _draw_layouts(records)
    else:
        _show(records, SIMULATED if simulate else problem, models, holders, as_json)


def _show(
    records: Sequence[GpuRecord],
    note: str,
    models: dict[int | str, str],
    holders: list[NodeRecord] | None,
    as_json: bool,
) -> None:
    from shunter.plugins.view import devices_view as view

    if as_json:
        is_simulated = note == SIMULATED
        told: dict[str, Any] = {
            "simulated": is_simulated,
            "problem": None if is_simulated else note or None,
            "devices": _as_json(records, models),
        }
        if holders is not None:
            told["host"] = [each.as_json() for each in holders]
        print(json.dumps(told, indent=2))
        return
    console = stdout()
    console.print(view.render(records, models, console.width, note))
    if holders is not None:
        console.print(view.render_host(holders, models))


def _stock(must_answer: bool) -> tuple[tuple[GpuRecord, ...], str]:
    """The GPUs, or why there are none."""
    from shunter.allocator.devices.advice import DeviceError
    from shunter.allocator.devices.inventory import take_stock

    try:
        return take_stock(), ""
    except DeviceError as error:
        if must_answer:
            raise UserError(str(error)) from error
        return (), str(error)


def _draw_layouts(records: Sequence[GpuRecord]) -> None:
    from shunter.allocator.devices.geometry import maximal, plain
    from shunter.plugins.view import devices_view as view

    console, kinds = stdout(), {each.name: plain(each.profiles) for each in records}
    if not any(kinds.values()):
        raise UserError("--layouts: no GPU here can be parted; add --simulate a100-40gb")
    for name, profiles in kinds.items():
        if profiles:
            console.print(f"{name}: {len(maximal(profiles))} layouts", highlight=False)
            console.print(view.render_layouts(profiles, maximal(profiles), console.width))


def _as_json(records: Sequence[GpuRecord], models: dict[int | str, str]) -> list[dict[str, Any]]:
    told = [record.as_json() for record in records]
    for each in told:
        for place in (each, *(part for i in each["instances"] for part in i["mig_devices"])):
            keys = (place["uuid"], *place["pids"])
            place["models"] = sorted({models[key] for key in keys if key in models})
    return told


# ---- simulated GPUs


@contextmanager
def _simulated(wanted: Sequence[str], path: Path | None, real_time: bool) -> Iterator[None]:
    from shunter.allocator.devices.simulated.library import (
        REAL_SECONDS,
        SimulatedLibrary,
        installed,
    )
    from shunter.allocator.devices.simulated.state import State
    from shunter.allocator.devices.simulated.store import Store

    models = [model for words in wanted for word in words.split(",") for model in _several(word)]
    try:
        store = Store(path, State.of(models))
        there = [gpu.model for gpu in store.read().gpus]
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it is no state of simulated GPUs"
        raise UserError(f"--state {path} cannot be used: {why}") from error
    if there != models:
        raise UserError(
            f"--state {path} has {', '.join(there)}: ask for the same GPUs, or delete the file"
        )
    with store.change() as state:
        state.seconds = REAL_SECONDS if real_time else 0.0
    with installed(SimulatedLibrary(store)):
        yield


def _several(word: str) -> list[str]:
    """GPUs as in a100-40gb:2."""
    from shunter.allocator.devices.simulated.tables import MODELS

    model, colon, count = word.strip().lower().partition(":")
    if model not in MODELS:
        known = ", ".join(MODELS)
        near = hint(model, MODELS)
        raise UserError(f"--simulate {word}: allowed: {known}, each with :COUNT{near}")
    if colon and not (count.isascii() and count.isdigit() and 1 <= int(count) <= 64):
        raise UserError(f"--simulate {word}: allowed: 1 to 64 of them")
    return [model] * int(count or 1)


def _change(wanted: Sequence[str], state: Path | None) -> None:
    """From the layouts of now to these, as the controller would."""
    from shunter.allocator.devices.advice import DeviceError
    from shunter.allocator.devices.geometry import LayoutError, parse
    from shunter.allocator.devices.mig import gpus, nvml_started
    from shunter.allocator.devices.reconfiguration import Reconfiguration

    with nvml_started(), tempfile.TemporaryDirectory() as temporary:
        there = gpus()
        if len(wanted) not in (1, len(there)):
            raise UserError(f"--layout is there {len(wanted)} times; allowed: 1 or {len(there)}")
        folder = state.with_name(f"{state.name}.journal") if state else Path(temporary)
        texts = list(wanted) * len(there) if len(wanted) == 1 else wanted
        try:
            # All are understood before the first is changed.
            targets = [
                parse(text, gpu.profiles, gpu.layout()[0])
                for gpu, text in zip(there, texts, strict=True)
            ]
        except LayoutError as error:
            raise UserError(f"--layout {error}") from error
        for gpu, target in zip(there, targets, strict=True):
            try:
                Reconfiguration(gpu, folder, patience_s=0).change(target)
            except DeviceError as error:
                raise UserError(str(error)) from error


# ---- who runs


def _holders() -> list[NodeRecord]:
    """The cores of this host by NUMA node, and who has claimed which."""
    from shunter.allocator.cpus.claims import CoreClaims, claims_path
    from shunter.allocator.cpus.discovery import read_topology
    from shunter.plugins.view.devices_view import NodeRecord

    topology, path = read_topology(), claims_path(os.environ, os.geteuid())
    claims = CoreClaims(path) if path.exists() else None
    found = []
    for node in topology.nodes:
        cpus = [cpu for cpu in topology.cpus if cpu.node == node]
        taken = {cpu.id: sorted(claims.holders(cpu.id)) if claims else [] for cpu in cpus}
        found.append(NodeRecord(node, len({cpu.physical for cpu in cpus}), taken))
    if claims:
        claims.close()
    return found


def _models(
    runtime: Path | None, management: str | None, token: str | None
) -> dict[int | str, str]:
    """Which model each worker serves, by pid, and which are seated on a device, by UUID.

    Nothing where no server is asked nor found.
    """
    from shunter.batching.page.runtime import live
    from shunter.plugins import hosts
    from shunter.plugins.view import page_status

    if management is not None:
        told = hosts.host_of(management, token).status()
    elif runtime is not None or len(live(os.environ)) == 1:
        told = page_status.fetch(runtime)
    else:
        return {}
    return {**dict(_workers(told)), **_seated(told)}


def _seated(told: dict[str, Any]) -> dict[int | str, str]:
    found: dict[int | str, str] = {}
    for model in told["models"]:
        for group in model["groups"]:
            if device := group.get("device"):
                name = f"{model['name']}/{model['version']}"
                before = found.get(device)
                found[device] = name if before in (None, name) else f"{before}, {name}"
    return found


def _workers(told: dict[str, Any]) -> Iterator[tuple[int, str]]:
    for model in told["models"]:
        name = f"{model['name']}/{model['version']}"
        for group in model["groups"]:
            yield from ((worker["pid"], name) for worker in group["workers"])
        # On the page only those that give way to others have a line of their own.
        for runner in (model.get("preemption") or {}).get("runners", ()):
            yield runner["pid"], name
