"""``shunter plan``: what a profile leads to."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.plugins.cli.existing import plans_of, profile_of
from shunter.plugins.cli.files import check_finite, load, profile_file, registered_batch
from shunter.plugins.console import stdout
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from shunter.allocator.cpus.topology import Topology
    from shunter.allocator.planning.profile import Profile, Provenance
    from shunter.plugins.profiling.planning import Plan


OfTriton = Annotated[
    bool, typer.Option("--triton", help="MODEL is what `shunter profile --triton` measured.")
]


def plan(
    model: Annotated[Path, typer.Argument(help="NAME.mar, packed/models/NAME, or a profile.")],
    threads: Annotated[
        str | None,
        typer.Option(help="Cores, as N or one number per NUMA node as N,N; default: this host's."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Requests at once, of all instances; default: powers of two."),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Largest batch of one instance; default: the archive's own."),
    ] = None,
    slo_ms: Annotated[
        float | None,
        typer.Option(min=0.001, help="Instead: most requests per second, batches within this."),
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.001, help="Memory of all instances; default: any.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also with a profile of another machine or model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    triton: OfTriton = False,
) -> None:
    """Show which instances, threads and batches a profile leads to, beside the usual ones.

    fat: one instance with all threads of a node. one per core: as many instances of one thread.

    Examples:

      shunter plan store/digits.mar

      shunter plan store/resnet50.mar --threads 16 --batch 64
    """
    from shunter.allocator.cpus.discovery import read_topology
    from shunter.plugins.view import plan_view

    check_finite(slo_ms=slo_ms, memory_gib=memory_gib)
    if slo_ms is not None and batch is not None:
        raise UserError("--slo-ms chooses the batch itself: leave --batch away")
    topology = read_topology()
    if triton:
        model = profile_of(model)
    known, local, archive = _usable_profile(model, topology, anyway, served=triton)
    nodes = _nodes(threads, topology, known, local)
    budget = math.inf if memory_gib is None else memory_gib * 2**30
    cap = max_batch or (registered_batch(archive) if archive else None)
    plans = _plans(known, nodes, batch, slo_ms, triton=triton, budget_bytes=budget, cap=cap)
    if as_json:
        print(json.dumps(_plans_as_json(known, nodes, plans), indent=2))
    elif len(plans) == 1:
        served = f"shunter adopt control {known.provenance.model} --profile {model}"
        stdout().print(plan_view.render(plans[0]))
        print(f"\nto use it: {served if triton else plans[0].request()}")
    else:
        stdout().print(plan_view.render_each(plans))


def _plans(
    known: Profile,
    nodes: tuple[int, ...],
    batch: int | None,
    slo_ms: float | None,
    *,
    triton: bool,
    **limits: Any,
) -> list[Plan]:
    """For what is asked, else for every power of two."""
    from shunter.plugins.profiling import planning

    if triton:
        return plans_of(known, nodes, batch, slo_ms, **limits)
    if slo_ms is None and batch is None:
        return planning.plan_each(known, nodes, **limits)
    return [planning.plan(known, nodes, batch or 1, slo_ms=slo_ms, **limits)]


def _usable_profile(
    path: Path, topology: Topology, anyway: bool, *, served: bool
) -> tuple[Profile, bool, Path | None]:
    """A profile, whether it is of this machine and model, and its archive if that is there."""
    from shunter.allocator.planning.profile import ProfileError

    file, archive = profile_file(path)
    known = load(file)
    here = _provenance(known, archive, topology)
    if served:  # what the server is, is compared where it is controlled
        here = replace(here, torch=known.provenance.torch)
    differences = known.provenance.differences(here)
    if differences and not anyway:
        try:
            known.check_usable(here)
        except ProfileError as error:
            raise UserError(f"{error}, or look at it with --anyway") from error
    if differences:
        print(f"shunter: measured with {'; '.join(differences)}", file=sys.stderr)
    # Earlier profiles are named after the file, by which a server may not know the model.
    named = replace(known.provenance, model=here.model)
    return replace(known, provenance=named), not differences, archive


def _provenance(known: Profile, archive: Path | None, topology: Topology) -> Provenance:
    """What a profile measured here would say; of the same model where no archive tells."""
    import importlib.metadata

    from shunter.allocator.planning.profile import ProfileError
    from shunter.plugins.profiling.profiles import cpu_model, provenance_here

    if archive is not None:
        try:
            return provenance_here(archive, topology=topology)
        except (ProfileError, OSError) as error:
            raise UserError(str(error)) from error
    return replace(
        known.provenance,
        cpu=cpu_model(),
        cores=topology.cores,
        torch=importlib.metadata.version("torch"),
    )


def _nodes(text: str | None, topology: Topology, known: Profile, local: bool) -> tuple[int, ...]:
    """Cores of each NUMA node: as asked for, else of the machine that was measured."""
    from shunter.allocator.cpus.cores import free_cores

    if text is None:
        # How the cores of another machine are spread over nodes is not known.
        return tuple(free_cores(topology)) if local else (known.provenance.cores,)
    try:
        nodes = tuple(int(part) for part in text.split(","))
    except ValueError:
        nodes = ()
    if not nodes or not all(1 <= node <= 8192 for node in nodes):
        raise UserError(f"--threads {text}: allowed: a number of cores, or one per NUMA node: 8,8")
    return nodes


def _plans_as_json(known: Profile, nodes: tuple[int, ...], plans: list[Plan]) -> dict[str, Any]:
    from shunter.allocator.planning.profile import summary

    return {
        "model": known.provenance.model,
        "cores": list(nodes),
        "profile": summary(known),
        "plans": [each.as_json() for each in plans],
    }
