"""Which machines there are, and what each says of itself. Pure.

The controller makes it, every gateway has a copy. One that is old does no harm: a machine that does
not answer is left out by the gateway that finds it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shunter.allocator.cluster.load import Machine
from shunter.plugins.ray.records import loads
from shunter.plugins.ray.records.loads import Work

State = Literal["starting", "serving", "draining", "released", "lost"]
"""``starting``: no server yet, or again; ``released``: it drained, and serves nothing any more."""


@dataclass(frozen=True)
class Report:
    """What a machine says of itself."""

    state: State
    inference: str = ""
    """Base URL of its server, as other machines reach it."""
    works: tuple[Work, ...] = ()
    problem: str = ""
    pid: int = 0
    """Of the server."""
    starts: int = 0
    """How often its server was started."""
    actor_pid: int = 0
    """Of the actor that keeps it."""


@dataclass(frozen=True)
class Entry:
    """A machine in the directory."""

    name: str
    node_id: str
    report: Report
    order: int = 0
    """Best effort is packed onto machines of low order."""
    is_head: bool = False
    """Ray's head is there; it is never given back."""

    @property
    def is_usable(self) -> bool:
        """Whether requests may be there."""
        return self.report.state in ("serving", "draining")

    @property
    def machine(self) -> Machine:
        """As the dispatcher knows it."""
        is_draining = self.report.state == "draining"
        return loads.machine(
            self.name, self.report.works, order=self.order, is_draining=is_draining
        )


def add(entry: Entry, entries: dict[str, Entry]) -> None:
    """Both of two machines of one name that live; of one that came back, the one that lives."""
    other = entries.get(entry.name)
    if other is None or other.report.state == "lost":
        entries[entry.name] = entry
    elif entry.report.state != "lost":
        problem = f"another machine is called {entry.name}: say --cluster-name"
        name = f"{entry.name}@{entry.node_id[:6]}"
        entries[name] = Entry(name, entry.node_id, replace(entry.report, problem=problem))


@dataclass(frozen=True)
class Directory:
    """All machines at one moment."""

    number: int = 0
    """Of a later one it is greater, also after a restart of the controller."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    idempotent: Mapping[str, bool] = field(default_factory=dict)
    """Model -> whether a lost request of it may run again."""

    def is_strict(self, model: str) -> bool:
        """Whether requests of a model are strict that say nothing."""
        name, _, version = model.partition("/")
        return next(
            (
                work.is_strict
                for entry in self.entries.values()
                for work in entry.report.works
                if work.name == name and (work.version == version or not version)
            ),
            True,
        )

    def may_repeat(self, model: str) -> bool:
        """Whether a lost request of a model that says nothing may run again."""
        return self.idempotent.get(model.partition("/")[0], True)


def told(directory: Directory) -> list[dict[str, Any]]:
    """The machines as ``shunter cluster status --json`` has them."""
    return [
        {
            "name": entry.name,
            "state": entry.report.state,
            "inference": entry.report.inference,
            "pid": entry.report.pid,
            "actor_pid": entry.report.actor_pid,
            "starts": entry.report.starts,
            "problem": entry.report.problem,
            "models": [
                {
                    "name": work.name,
                    "version": work.version,
                    "workers": work.workers,
                    "strict": work.strict,
                    "best_effort": work.best_effort,
                    "arrivals": list(work.arrivals),
                    "batch": round(work.state.batch, 2),
                    "batch_ms": round(work.state.fit.seconds(work.state.batch) * 1e3, 3),
                    "hot": work.state.is_hot,
                    "slices": list(work.slices),
                }
                for work in entry.report.works
            ],
        }
        for entry in sorted(directory.entries.values(), key=lambda each: each.name)
    ]
