"""Logical CPUs, physical cores, NUMA nodes. Pure; :mod:`shunter.allocator.cpus.discovery` reads
them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Cpu:
    """A logical CPU."""

    id: int
    physical: int
    """Its physical core, by the lowest CPU of it; equal for SMT siblings."""
    node: int = 0
    """NUMA node."""


@dataclass(frozen=True)
class Topology:
    """The CPUs this process may use."""

    cpus: tuple[Cpu, ...]
    """Ascending by id."""
    quota: float = math.inf
    """CPUs' worth of time that the cgroup grants, inf without a limit."""

    @property
    def cores(self) -> int:
        """Physical cores, at most as many as the quota is worth, at least 1."""
        physical = len({cpu.physical for cpu in self.cpus})
        return max(1, min(physical, math.floor(self.quota)) if self.quota < physical else physical)

    @property
    def limited(self) -> bool:
        """Whether a quota grants less than the CPUs that the process sees.

        Then others run on the same CPUs and do not know of each other: pinning would pile them up.
        """
        return self.quota < len(self.cpus)

    @property
    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes with at least one CPU, ascending."""
        return tuple(sorted({cpu.node for cpu in self.cpus}))

    def only(self, ids: Iterable[int]) -> Topology:
        """The part of it with these CPUs."""
        wanted = set(ids)
        return Topology(tuple(cpu for cpu in self.cpus if cpu.id in wanted), self.quota)
