"""Which cores an instance gets (Packrat section 3.4).

An instance stays within one NUMA node, gets physical cores before their SMT siblings, and goes to
the node that it fills best, so that large instances still find a node. Pure: who holds what is an
argument; :mod:`shunter.allocator.cpus.claims` takes and gives back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shunter.allocator.cpus.topology import Topology


def choose_cores(
    topology: Topology,
    threads: int,
    taken: Collection[int] = (),
    shared: Collection[int] = (),
) -> tuple[int, ...] | None:
    """CPUs for an instance of ``threads`` threads, ascending; None when no node has as many.

    ``taken`` CPUs are another instance's. ``shared`` ones are used by instances that this one
    will replace: they are free soon, and are given when too few are free now.
    """
    busy = set(taken) - set(shared)
    best: tuple[tuple[int, int, int, int], tuple[int, ...]] | None = None
    for node in topology.nodes:
        order = _order(topology, node, busy, set(shared))
        if len(order) < threads:
            continue
        mine = order[:threads]
        siblings = sum(is_sibling for is_sibling, *_ in mine)
        overlap = sum(is_soon for _, is_soon, *_ in mine)
        key = (siblings, overlap, len(order), node)
        if best is None or key < best[0]:
            best = key, tuple(sorted(cpu for *_, cpu in mine))
    return best[1] if best else None


def _order(
    topology: Topology, node: int, busy: set[int], shared: set[int]
) -> list[tuple[bool, bool, bool, int]]:
    """CPUs of a node that may be given, best first.

    By: its core is in use or given already; its core is free only soon; itself is; number.
    """
    cpus = [cpu for cpu in topology.cpus if cpu.node == node]
    used = {cpu.physical for cpu in cpus if cpu.id in busy}
    soon = {cpu.physical for cpu in cpus if cpu.id in shared}
    ranked = []
    for cpu in sorted(cpus, key=lambda cpu: (cpu.id in shared, cpu.id)):
        if cpu.id not in busy:
            ranked.append((cpu.physical in used, cpu.physical in soon, cpu.id in shared, cpu.id))
            used.add(cpu.physical)
    return sorted(ranked)


def free_cores(topology: Topology, taken: Collection[int] = ()) -> list[int]:
    """Free physical cores of each NUMA node, at most as many in all as a quota is worth."""
    left = topology.cores
    free = []
    for node in topology.nodes:
        cpus = [cpu for cpu in topology.cpus if cpu.node == node]
        used = {cpu.physical for cpu in cpus if cpu.id in set(taken)}
        count = min(left, len({cpu.physical for cpu in cpus} - used))
        left -= count
        free.append(count)
    return free


def place_all(topology: Topology, threads: Sequence[int]) -> list[tuple[int, ...]] | None:
    """Cores for several instances at once, largest first; None when one does not fit.

    In the order of ``threads``. For callers that place all instances themselves, as the
    benchmarks and the profiler do.
    """
    taken: set[int] = set()
    places: dict[int, tuple[int, ...]] = {}
    for index in sorted(range(len(threads)), key=lambda i: -threads[i]):
        cores = choose_cores(topology, threads[index], taken)
        if cores is None:
            return None
        places[index] = cores
        taken |= set(cores)
    return [places[index] for index in range(len(threads))]
