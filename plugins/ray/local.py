"""Machines of this very host, as a cloud would have them: to try a cluster, and to test it.

They are real nodes with real servers. Only what a cloud would charge and announce is made up: a
machine is called a spot machine, and ends when ``shunter cluster evict`` said that it would.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shunter.allocator.cluster.procurement import Kind
from shunter.plugins.errors import UserError
from shunter.plugins.ray import started
from shunter.plugins.ray.node import NodeSpec
from shunter.plugins.ray.providers.provider import Listed, ProviderError

MOST = 16
"""Machines that this host has room for; then there are no more to be had."""


class LocalProvider:
    """See :class:`Provider`. What it knows stands in the cluster's folder."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the cluster's."""
        self._folder = folder

    def machines(self) -> Sequence[Listed]:
        """See the protocol. A machine whose time is over is ended as a cloud ends it.

        The head is none of them: it stays.
        """
        for name, end in self.notices().items():
            if time.time() >= end:
                started.end_node(self._folder, name, at_once=True)
        draining = self._drained()
        return [
            Listed(each.name, Kind(each.kind), each.name in draining)
            for each in self._noted()[1:]
            if each.runs
        ]

    def notices(self) -> Mapping[str, float]:
        """See the protocol."""
        return notices(self._folder)

    def acquire(self, kind: Kind, count: int) -> Sequence[str]:
        """See the protocol."""
        noted = self._noted()
        room = max(0, MOST - sum(each.runs for each in noted))
        numbers = [int(each.name.rpartition("-")[2]) for each in noted]
        first = max(numbers, default=-1) + 1
        names = [f"node-{number}" for number in range(first, first + min(room, count))]
        address = started.note(self._folder)["address"]
        for name in names:
            # The cluster's usual ports are taken by another machine of this host.
            spec = NodeSpec(str(self._folder), name, address, described={"ports": None})
            started.start_node(self._folder, spec, kind)
        return names

    def drain(self, name: str) -> None:
        """See the protocol."""
        _tell(self._folder, started.DRAINING, self._drained() | {name: time.time()})

    def release(self, names: Iterable[str]) -> None:
        """See the protocol."""
        for name in names:
            started.end_node(self._folder, name)

    def _drained(self) -> dict[str, float]:
        """Since when; also after a restart of whoever asked for it."""
        return _told(self._folder, started.DRAINING)

    def _noted(self) -> list[started.Started]:
        try:
            return started.noted(self._folder)
        except UserError as error:
            raise ProviderError(str(error)) from error


def notices(folder: Path) -> dict[str, float]:
    """When machines of this host will be taken away."""
    return _told(folder, started.NOTICES)


def _told(folder: Path, file: str) -> dict[str, float]:
    try:
        found = json.loads((folder / file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): float(seconds) for name, seconds in found.items()}


def _tell(folder: Path, file: str, told: Mapping[str, float]) -> None:
    draft = folder / f"{file}.new"
    draft.write_text(json.dumps(told), encoding="utf-8")
    draft.replace(folder / file)


def announce(folder: Path, name: str, notice_s: float) -> None:
    """Say that a machine will be taken away. Raises UserError: it is not one of this host."""
    names = [each.name for each in started.noted(folder) if each.runs]
    if name not in names[1:]:
        known = ", ".join(names[1:]) or "none"
        raise UserError(f"no machine {name!r} can be evicted; allowed: {known}: the head stays")
    _tell(folder, started.NOTICES, notices(folder) | {name: time.time() + notice_s})
