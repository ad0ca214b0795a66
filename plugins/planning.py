"""``shunter plan``: which configuration a profile leads to, and why, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shunter.batching.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
)
from shunter.batching.optimizer import (
    LatencyTable,
    NoConfiguration,
    maximise_rate,
    minimise_latency,
    spread_over,
)
from shunter.batching.profile import Profile, batch_sizes, latency_table, memory_of
from shunter.plugins.errors import UserError


@dataclass(frozen=True)
class Row:
    """One way to run a batch."""

    name: str
    configuration: Configuration
    latency_ms: float
    rate: float

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "name": self.name,
            "configuration": format_configuration(self.configuration),
            "latency_ms": round(self.latency_ms, 3),
            "requests_per_s": round(self.rate, 1),
        }


@dataclass(frozen=True)
class Plan:
    """The chosen configuration beside the usual ones, for one batch size."""

    profile: Profile
    nodes: tuple[int, ...]
    batch: int
    rows: tuple[Row, ...]
    """The chosen one first."""
    rests_on: tuple[tuple[int, int], ...]
    """Cells of the choice that were interpolated and not measured."""


def plan(
    profile: Profile,
    nodes: Sequence[int],
    batch: int,
    *,
    slo_ms: float | None = None,
    budget_bytes: float = float("inf"),
) -> Plan:
    """Choose for ``batch`` requests at once on nodes of so many cores, or for an SLO.

    Raises UserError when nothing fits.
    """
    table = latency_table(profile)
    memory = memory_of(profile.cells.values(), budget_bytes)
    try:
        if slo_ms is None:
            best = minimise_latency(table, nodes, batch, memory)
        else:
            best = maximise_rate(table, nodes, slo_ms, memory)
    except NoConfiguration as error:
        raise UserError(str(error)) from error
    rows = [Row("chosen", best.configuration, best.latency_ms, best.rate)]
    rows += _baselines(table, nodes, batch if slo_ms is None else None)
    missing = {
        (group.threads, size)
        for group in best.configuration
        for size in _bracket(profile, group.batch)
    } - profile.cells.keys()
    return Plan(profile, tuple(nodes), batch, tuple(rows), tuple(sorted(missing)))


def _baselines(table: LatencyTable, nodes: Sequence[int], batch: int | None) -> list[Row]:
    if batch is None:
        return []
    found = []
    fat = max(nodes)
    usual = {
        "fat": [fat],
        "one per core": [1] * min(sum(nodes), batch),
    }
    for name, threads in usual.items():
        try:
            choice = spread_over(table, threads, batch)
        except NoConfiguration:
            continue
        found.append(Row(name, choice.configuration, choice.latency_ms, choice.rate))
    return found


def _bracket(profile: Profile, batch: int) -> set[int]:
    sizes = batch_sizes(profile.batch)
    return {max(s for s in sizes if s <= batch), min(s for s in sizes if s >= batch)}


def render(plan: Plan) -> Group:
    """The plan for a terminal."""
    profile = plan.profile
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("configuration")
    table.add_column("instances x threads, batch")
    for name in ("latency", "requests/s", "against chosen"):
        table.add_column(name, justify="right")
    for row in plan.rows:
        table.add_row(
            row.name,
            format_configuration(row.configuration),
            ", ".join(_words(group) for group in row.configuration),
            f"{row.latency_ms:.2f} ms",
            f"{row.rate:.0f}",
            f"{row.latency_ms / plan.rows[0].latency_ms:.2f} x",
        )
    what = profile.provenance
    cores = " + ".join(str(node) for node in plan.nodes)
    head = (
        f"{what.model}: batch {plan.batch} on {cores} cores\n"
        f"profile: {len(profile.cells)} cells, {profile.mode}, {what.cpu}, torch {what.torch}, "
        f"{what.date}"
    )
    parts: list[Any] = [Text(head), table]
    if profile.error:
        parts.append(
            Text(f"an exhaustive profile might find one that is faster by {profile.error:.1%}")
        )
    if plan.rests_on:
        cells = ", ".join(f"{t}x{b}" for t, b in plan.rests_on)
        parts.append(Text(f"interpolated, not measured: threads x batch {cells}"))
    return Group(*parts)


def _words(group: InstanceGroup) -> str:
    return f"{group.instances} x {group.threads} threads, {group.batch} each"
