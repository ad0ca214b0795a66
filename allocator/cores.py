"""Which cores an instance gets (Packrat section 3.4).

An instance stays within one NUMA node, gets physical cores before their SMT siblings, and goes to
the node that it fills best, so that large instances still find a node. Pure: who holds what is an
argument; :mod:`shunter.handlers.core_claim` takes and gives back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shunter.allocator.topology import Cpu, Topology


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
    best: tuple[tuple[int, int, int, int], list[Cpu]] | None = None
    for node in topology.nodes:
        order = _order(topology, node, busy, set(shared))
        if len(order) < threads:
            continue
        mine = order[:threads]
        siblings = threads - len({cpu.physical for cpu in mine})
        overlap = sum(cpu.id in shared for cpu in mine)
        key = (siblings, overlap, len(order), node)
        if best is None or key < best[0]:
            best = key, mine
    return tuple(sorted(cpu.id for cpu in best[1])) if best else None


def _order(topology: Topology, node: int, busy: set[int], shared: set[int]) -> list[Cpu]:
    """CPUs of a node that may be given: free before shared, physical cores before siblings."""
    cpus = [cpu for cpu in topology.cpus if cpu.node == node]
    used_cores = {cpu.physical for cpu in cpus if cpu.id in busy}
    seen: dict[tuple[int, int], int] = {}
    ranked = []
    for cpu in cpus:
        if cpu.id in busy:
            continue
        rank = seen.get(cpu.physical, 0)
        seen[cpu.physical] = rank + 1
        is_sibling = rank > 0 or cpu.physical in used_cores
        ranked.append((is_sibling, cpu.id in shared, cpu.id, cpu))
    return [cpu for *_, cpu in sorted(ranked)]


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


def spread_round_robin(topology: Topology, threads: Sequence[int]) -> list[tuple[int, ...]] | None:
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
