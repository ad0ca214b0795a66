"""How much work comes, out of what the machines counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shunter.allocator.cluster.sizing import Demand
from shunter.plugins.ray.records.directory import Entry
from shunter.plugins.ray.records.loads import Work

Key = tuple[str, int, str, bool]
"""Machine, process of its server, model, whether strict: a new server counts from 0."""


@dataclass(frozen=True)
class Seen:
    """What was counted at one moment."""

    at: float
    counts: Mapping[Key, int] = field(default_factory=dict)


def seen(now: float, entries: Iterable[Entry]) -> Seen:
    """The counters of all machines."""
    return Seen(
        now,
        {
            (entry.name, entry.report.pid, f"{work.name}/{work.version}", is_strict): count
            for entry in entries
            for work in entry.report.works
            for is_strict, count in zip((True, False), work.arrivals, strict=True)
        },
    )


def demands(before: Seen, after: Seen, entries: Iterable[Entry]) -> list[Demand]:
    """What came between, a second; of a server that is new nothing is known yet."""
    came: Counter[tuple[str, bool]] = Counter()
    for key, count in after.counts.items():
        came[key[2:]] += max(0, count - before.counts.get(key, count))
    works = {f"{work.name}/{work.version}": work for e in entries for work in e.report.works}
    step = max(after.at - before.at, 1e-9)
    return [
        _demand(model, is_strict, count / step, works[model])
        for (model, is_strict), count in sorted(came.items())
        if model in works
    ]


def _demand(model: str, is_strict: bool, rate: float, work: Work) -> Demand:
    return Demand(model, is_strict, rate, work.largest, work.state.fit.seconds(work.largest))


def unanswered(entry: Entry) -> float:
    """Requests that are at a machine; one that drains has some until it says that it has none."""
    held = sum(work.strict + work.best_effort for work in entry.report.works)
    return float(held + (entry.report.state == "draining"))
