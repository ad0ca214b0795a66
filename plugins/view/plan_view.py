"""A profile and the plans that it leads to, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shunter.allocator.planning.configuration import InstanceGroup, format_configuration
from shunter.allocator.planning.profile import Profile
from shunter.plugins.profiling.planning import FAT, ONE_PER_CORE, Plan, Row

ROWS = 12
"""Most lines of the table of latencies."""


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
        parts.append(Text("– more than its instances hold at once, or not enough memory"))
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


def stated_doubt(profile: Profile) -> str:
    """Why a server does not act on the profile, in a sentence; empty when it does."""
    if not profile.doubt:
        return ""
    return f"{profile.doubt}: no server changes its configuration by it; measure again, --restart"


def _doubts(profile: Profile) -> list[Text]:
    doubts = [Text(said)] if (said := stated_doubt(profile)) else []
    if not profile.complete:
        unfinished = "the profile is not complete: run `shunter profile` again to finish it"
        return [*doubts, Text(unfinished)]
    return [*doubts, Text(stated_error(profile))] if profile.error else doubts


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
