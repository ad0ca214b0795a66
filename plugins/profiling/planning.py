"""Which configuration a profile leads to, beside the usual ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from shunter.allocator.planning.configuration import Configuration, format_configuration
from shunter.allocator.planning.latency_table import LatencyTable, Memory
from shunter.allocator.planning.optimizer import (
    Choice,
    NoConfiguration,
    maximise_rate,
    minimise_latency,
    spread_over,
    spread_within,
)
from shunter.allocator.planning.profile import Profile, batch_sizes
from shunter.allocator.planning.profile_table import latency_table, memory_of
from shunter.plugins.errors import UserError

CHOSEN, FAT, ONE_PER_CORE = "chosen", "fat", "one per core"


@dataclass(frozen=True)
class Row(Choice):
    """One way to run a batch, by its name."""

    name: str

    @classmethod
    def of(cls, name: str, choice: Choice) -> Row:
        """A choice with a name."""
        return cls(choice.configuration, choice.latency_ms, choice.rate, name)

    @property
    def core_ms(self) -> float:
        """Time of cores that one request costs; all cores are held until the batch is done."""
        return self.threads * self.latency_ms / self.batch

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "name": self.name,
            "configuration": format_configuration(self.configuration),
            "latency_ms": round(self.latency_ms, 3),
            "requests_per_s": round(self.rate, 1),
            "core_ms_per_request": round(self.core_ms, 3),
        }


@dataclass(frozen=True)
class Plan:
    """The chosen configuration beside the usual ones, for one batch size or one SLO."""

    profile: Profile
    nodes: tuple[int, ...]
    batch: int
    """Requests at once; with an SLO as many as the chosen instances hold."""
    slo_ms: float | None
    rows: tuple[Row, ...]
    """The chosen one first, then those of the usual ones that are possible."""
    impossible: tuple[str, ...]
    """Why the others are not."""
    rests_on: tuple[tuple[int, int], ...]
    """Cells of the choice that were interpolated and not measured."""

    @property
    def chosen(self) -> Row:
        """What the optimizer chose."""
        return self.rows[0]

    def row(self, name: str) -> Row | None:
        """The row of that name, if it is possible."""
        return next((row for row in self.rows if row.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "batch": self.batch,
            "slo_ms": self.slo_ms,
            "rows": [row.as_json() for row in self.rows],
            "impossible": list(self.impossible),
            "interpolated": [list(cell) for cell in self.rests_on],
        }

    def request(self) -> str:
        """The request that makes a server with TorchServe's usual ports run the choice."""
        text = format_configuration(self.chosen.configuration)
        path = f"/shunter/models/{quote(self.profile.provenance.model, safe='')}/configuration"
        # Pinned, as it was measured; under a CPU quota workers stay unpinned by themselves.
        return f'curl -X PUT "http://127.0.0.1:8081{path}?configuration={text}&cores=auto"'


def plan(
    profile: Profile,
    nodes: Sequence[int],
    batch: int = 1,
    *,
    slo_ms: float | None = None,
    budget_bytes: float = math.inf,
    cap: int | None = None,
) -> Plan:
    """Choose for ``batch`` requests at once on nodes of so many cores, or for an SLO.

    ``cap``: largest batch of one instance, by default the profile's. Raises UserError when nothing
    fits.
    """
    try:
        return _plan(profile, nodes, batch, slo_ms, budget_bytes, cap)
    except NoConfiguration as error:
        raise UserError(str(error)) from error


def plan_each(
    profile: Profile,
    nodes: Sequence[int],
    *,
    budget_bytes: float = math.inf,
    cap: int | None = None,
    largest: int | None = None,
) -> list[Plan]:
    """Plans for every power of two that fits, at most ``largest``. Raises UserError if none does.

    By default that is a full batch on every core.
    """
    plans: list[Plan] = []
    full = max(1, sum(nodes)) * min(profile.batch, cap or profile.batch)
    for size in batch_sizes(largest or full):
        try:
            plans.append(_plan(profile, nodes, size, None, budget_bytes, cap))
        except NoConfiguration as error:
            if not plans:
                raise UserError(str(error)) from error
            break  # what is larger does not fit either
    return plans


def _plan(
    profile: Profile,
    nodes: Sequence[int],
    batch: int,
    slo_ms: float | None,
    budget: float,
    cap: int | None,
) -> Plan:
    if not profile.cells:
        raise UserError(f"the profile of {profile.provenance.model} has no cells yet")
    table = latency_table(profile).capped(cap or profile.batch)
    memory = memory_of(profile.cells.values(), budget)
    if slo_ms is None:
        best = minimise_latency(table, nodes, batch, memory)
    else:
        best = maximise_rate(table, nodes, slo_ms, memory)
        batch = best.batch
    rows = [Row.of(CHOSEN, best)]
    impossible = []
    for name, threads in _usual(table, nodes, batch, slo_ms).items():
        try:
            rows.append(Row.of(name, _usual_choice(table, threads, batch, slo_ms, memory)))
        except NoConfiguration as error:
            impossible.append(f"{name}: {error}")
    cells = _unmeasured(profile, best.configuration)
    return Plan(profile, tuple(nodes), batch, slo_ms, tuple(rows), tuple(impossible), cells)


def _usual(
    table: LatencyTable, nodes: Sequence[int], batch: int, slo_ms: float | None
) -> dict[str, list[int]]:
    """Threads of each instance as people set them without a profile."""
    cores = sum(nodes)
    return {
        FAT: [min(node, table.threads) for node in nodes if node > 0],
        ONE_PER_CORE: [1] * (cores if slo_ms is not None else min(cores, batch)),
    }


def _usual_choice(
    table: LatencyTable, threads: list[int], batch: int, slo_ms: float | None, memory: Memory
) -> Choice:
    if len(threads) > memory.instances(batch):
        raise NoConfiguration(f"{len(threads)} instances do not fit into the memory")
    if slo_ms is not None:
        return spread_within(table, threads, slo_ms)
    largest = sum(int(np.isfinite(table.ms[t - 1]).sum()) for t in threads)
    if largest < batch:
        raise NoConfiguration(f"its batches are at most {largest} in all")
    return spread_over(table, threads, batch)


def _unmeasured(profile: Profile, groups: Configuration) -> tuple[tuple[int, int], ...]:
    cells = set()
    for group in groups:
        measured = (b for t, b in profile.cells if t == group.threads)
        sizes = {*batch_sizes(profile.batch), *measured}
        below = max(size for size in sizes if size <= group.batch)
        above = min(size for size in sizes if size >= group.batch)
        cells |= {(group.threads, below), (group.threads, above)}
    return tuple(sorted(cells - profile.cells.keys()))
