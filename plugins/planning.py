"""A profile as a table, and ``shunter plan``: which configuration it leads to, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
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
    Memory,
    NoConfiguration,
    maximise_rate,
    minimise_latency,
    spread_over,
)
from shunter.batching.profile import Profile, batch_sizes, latency_table, memory_of
from shunter.plugins.errors import UserError

ROWS = 12
"""Most lines of the table of latencies."""
CHOSEN, FAT, ONE_PER_CORE = "chosen", "fat", "one per core"


@dataclass(frozen=True)
class Row:
    """One way to run a batch."""

    name: str
    configuration: Configuration
    latency_ms: float
    rate: float

    @property
    def core_ms(self) -> float:
        """Time of cores that one request costs; all cores are held until the batch is done."""
        cores = sum(group.instances * group.threads for group in self.configuration)
        batch = sum(group.instances * group.batch for group in self.configuration)
        return cores * self.latency_ms / batch

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
    budget_bytes: float = float("inf"),
) -> Plan:
    """Choose for ``batch`` requests at once on nodes of so many cores, or for an SLO.

    Raises UserError when nothing fits.
    """
    try:
        return _plan(profile, nodes, batch, slo_ms, budget_bytes)
    except NoConfiguration as error:
        raise UserError(str(error)) from error


def plan_each(
    profile: Profile, nodes: Sequence[int], *, budget_bytes: float = float("inf")
) -> list[Plan]:
    """Plans for every power of two that was profiled and fits. Raises UserError if none does."""
    plans: list[Plan] = []
    for size in batch_sizes(profile.batch):
        try:
            plans.append(_plan(profile, nodes, size, None, budget_bytes))
        except NoConfiguration as error:
            if not plans:
                raise UserError(str(error)) from error
            break  # what is larger does not fit either
    return plans


def _plan(
    profile: Profile, nodes: Sequence[int], batch: int, slo_ms: float | None, budget: float
) -> Plan:
    if not profile.cells:
        raise UserError(f"the profile of {profile.provenance.model} has no cells yet")
    table, memory = latency_table(profile), memory_of(profile.cells.values(), budget)
    if slo_ms is None:
        best = minimise_latency(table, nodes, batch, memory)
    else:
        best = maximise_rate(table, nodes, slo_ms, memory)
        batch = sum(group.instances * group.batch for group in best.configuration)
    rows = [Row(CHOSEN, best.configuration, best.latency_ms, best.rate)]
    impossible = []
    for name, threads in _usual(table, nodes, batch, slo_ms).items():
        try:
            rows.append(_usual_row(name, table, threads, batch, slo_ms, memory))
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


def _usual_row(
    name: str,
    table: LatencyTable,
    threads: list[int],
    batch: int,
    slo_ms: float | None,
    memory: Memory,
) -> Row:
    if len(threads) > memory.instances(batch):
        raise NoConfiguration(f"{len(threads)} instances do not fit into the memory")
    if slo_ms is not None:
        return _within(name, table, threads, slo_ms)
    largest = sum(int(np.isfinite(table.ms[t - 1]).sum()) for t in threads)
    if largest < batch:
        raise NoConfiguration(f"its batches were profiled only up to {largest} in all")
    choice = spread_over(table, threads, batch)
    return Row(name, choice.configuration, choice.latency_ms, choice.rate)


def _within(name: str, table: LatencyTable, threads: list[int], slo_ms: float) -> Row:
    """These instances, each with the batch of the highest rate within the SLO."""
    kinds: Counter[tuple[int, int]] = Counter()
    for t in threads:
        row = table.ms[t - 1]
        sizes = np.flatnonzero(row <= slo_ms) + 1
        if not sizes.size:
            raise NoConfiguration(f"one request on {t} threads takes {row[0]:.2f} ms")
        kinds[t, int(sizes[np.argmax(sizes / row[sizes - 1])])] += 1
    groups = tuple(InstanceGroup(kinds[kind], *kind) for kind in sorted(kinds, reverse=True))
    rate = sum(n * kind[1] / table.of(*kind) for kind, n in kinds.items()) * 1e3
    return Row(name, groups, max(table.of(*kind) for kind in kinds), rate)


def _unmeasured(profile: Profile, groups: Configuration) -> tuple[tuple[int, int], ...]:
    cells = set()
    for group in groups:
        measured = (b for t, b in profile.cells if t == group.threads)
        sizes = {*batch_sizes(profile.batch), *measured}
        below = max(size for size in sizes if size <= group.batch)
        above = min(size for size in sizes if size >= group.batch)
        cells |= {(group.threads, below), (group.threads, above)}
    return tuple(sorted(cells - profile.cells.keys()))


def render(plan: Plan) -> Group:
    """One plan for a terminal."""
    goal = f"batch {plan.batch}" if plan.slo_ms is None else f"batches within {plan.slo_ms:g} ms"
    table = _table("|configuration|instances", "latency|requests/s|core-ms|against chosen")
    for row in plan.rows:
        table.add_row(
            row.name,
            format_configuration(row.configuration),
            ", ".join(_words(group) for group in row.configuration),
            f"{row.latency_ms:.2f} ms",
            f"{row.rate:.0f}",
            f"{row.core_ms:.2f}",
            _beside_chosen(plan, row),
        )
    parts: list[Any] = [Text(_head(plan.profile, plan.nodes, goal)), "", table]
    parts += [Text(f"not possible: {reason}") for reason in plan.impossible]
    parts.append(Text("core-ms: time of cores that one request costs"))
    if plan.rests_on:
        cells = ", ".join(f"{t}x{b}" for t, b in plan.rests_on)
        parts.append(Text(f"interpolated, not measured: threads x batch {cells}"))
    return Group(*parts, *_doubts(plan.profile))


def render_each(plans: Sequence[Plan]) -> Group:
    """Plans of several batch sizes for a terminal, one line each."""
    table = _table("", "batch")
    for name in ("chosen", ""):
        table.add_column(name)
    for name in ("latency", "requests/s", FAT, ONE_PER_CORE):
        table.add_column(name, justify="right")
    for each in plans:
        table.add_row(
            "",
            str(each.batch),
            format_configuration(each.chosen.configuration),
            "*" if each.rests_on else "",
            f"{each.chosen.latency_ms:.2f} ms",
            f"{each.chosen.rate:.0f}",
            _against(each, FAT),
            _against(each, ONE_PER_CORE),
        )
    profile, nodes = plans[0].profile, plans[0].nodes
    parts: list[Any] = [Text(_head(profile, nodes, "each batch size")), "", table]
    if any(each.rests_on for each in plans):
        parts.append(Text("* rests on cells that were interpolated, not measured"))
    if any(each.impossible for each in plans):
        parts.append(Text("– not profiled so far, or not enough memory"))
    return Group(*parts, *_doubts(profile))


def cell_table(profile: Profile) -> Table:
    """Measured latencies for a terminal; of many numbers of threads the powers of two."""
    table = Table(
        title="latency in ms", title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    sizes = sorted({batch for _, batch in profile.cells})
    rows = sorted({threads for threads, _ in profile.cells})
    if len(rows) > ROWS:
        rows = [t for t in rows if t & (t - 1) == 0 or t == rows[-1]]
    table.add_column("threads")
    for size in sizes:
        table.add_column(f"batch {size}" if size == sizes[0] else str(size), justify="right")
    for threads in rows:
        cells = [profile.cells.get((threads, size)) for size in sizes]
        table.add_row(str(threads), *(three_digits(cell.ms) if cell else "·" for cell in cells))
    return table


def three_digits(number: float) -> str:
    """A number with about three digits and no exponent."""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"


def _table(texts: str, numbers: str) -> Table:
    """An empty table; column names are separated by bars."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in texts.split("|"):
        table.add_column(name)
    for name in numbers.split("|"):
        table.add_column(name, justify="right")
    return table


def _head(profile: Profile, nodes: Sequence[int], goal: str) -> str:
    what = profile.provenance
    return (
        f"{what.model}: {goal} on {' + '.join(map(str, nodes))} cores\n"
        f"profile: {len(profile.cells)} of {profile.possible} cells, {profile.way}, "
        f"{what.date[:10]}, torch {what.torch}\n{what.cpu}"
    )


def stated_error(profile: Profile) -> str:
    """What choices from an adaptive profile may lack, in a sentence; empty when nothing."""
    if profile.error is None:
        return ""
    if profile.error < 0.0005:
        return "an exhaustive profile would lead to no faster choice"
    return f"an exhaustive profile might lead to choices up to {profile.error:.1%} faster"


def _doubts(profile: Profile) -> list[Text]:
    if not profile.complete:
        return [Text("the profile is not complete: run `shunter profile` again to finish it")]
    return [Text(stated_error(profile))] if profile.error else []


def _beside_chosen(plan: Plan, row: Row) -> str:
    if row is plan.chosen:
        return ""
    if row.configuration == plan.chosen.configuration:
        return "the same"
    if plan.slo_ms is None:
        return f"{row.latency_ms / plan.chosen.latency_ms:.2f} x as long"
    return f"{row.rate / plan.chosen.rate:.2f} x the rate"


def _against(plan: Plan, name: str) -> str:
    row = plan.row(name)
    if row is None:
        return "–"
    return f"{row.latency_ms:.2f} ms ({row.latency_ms / plan.chosen.latency_ms:.2f} x)"


def _words(group: InstanceGroup) -> str:
    threads = "thread" if group.threads == 1 else "threads"
    return f"{group.instances} x {group.threads} {threads}, {group.batch} each"
