"""Slices: what one instance of a model runs on. A set of cores, a GPU or a MIG device. Pure.

To whoever places models these are the same: each has a name of its own, a share of its device's
compute and memory bandwidth, and memory. On a host without GPUs the geometry is how the cores are
split into sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from shunter.allocator.cpus.cores import choose_cores, free_cores
from shunter.allocator.cpus.cpu_list import format_cpu_list
from shunter.allocator.cpus.topology import Topology
from shunter.allocator.devices.instances import GpuRecord


@dataclass(frozen=True)
class ComputeSlice:
    """Where an instance of a model may run."""

    name: str
    """UUID of a GPU or a MIG device, or ``cpus:0-3``; no other slice has it."""
    device: str
    """What it is a part of: UUID of a GPU, or ``host``."""
    kind: str
    """Slices of one kind are alike: 3g.20gb, 4 cores, or the name of a GPU."""
    compute: float
    """Its share of the device's multiprocessors or cores."""
    bandwidth: float
    """Its share of the device's memory bandwidth; 1 where that is shared with all others."""
    memory_bytes: int
    cpus: tuple[int, ...] = ()


def of_gpu(gpu: GpuRecord) -> tuple[ComputeSlice, ...]:
    """A GPU as a whole, or its MIG devices where MIG is on."""
    if gpu.mig != "on":
        return (ComputeSlice(gpu.uuid, gpu.uuid, gpu.name, 1.0, 1.0, gpu.memory_bytes),)
    whole = max((each.multiprocessors for each in gpu.profiles), default=0)
    found = []
    for instance in gpu.instances:
        profile, place = gpu.profile_of(instance), instance.placement
        for part in instance.parts:
            share = part.compute / instance.compute
            multiprocessors = profile.multiprocessors * share if profile else 0
            found.append(
                ComputeSlice(
                    name=part.uuid,
                    device=gpu.uuid,
                    kind=instance.profile if instance.is_whole else f"part of {instance.profile}",
                    compute=multiprocessors / whole if whole else 0.0,
                    bandwidth=place.size / gpu.slices if place else 0.0,
                    memory_bytes=part.memory_bytes,
                )
            )
    return tuple(found)


def offered(
    gpus: Iterable[GpuRecord],
    closing: Collection[str],
    whole: Collection[str],
    taken: Collection[str],
) -> list[ComputeSlice]:
    """MIG devices where work may be: not on those that are about to go.

    Where a change of a GPU was left half done, not on any but those that are ``taken`` already.
    """
    return [
        each
        for gpu in gpus
        if gpu.mig == "on"
        for each in of_gpu(gpu)
        if each.name not in closing and (gpu.uuid in whole or each.name in taken)
    ]


def core_sets(
    topology: Topology,
    widths: Sequence[int],
    memory_bytes: int,
    current: Sequence[ComputeSlice] = (),
) -> tuple[ComputeSlice, ...] | None:
    """The host's cores as sets of these many threads; None when they do not fit.

    A set of ``current`` that is wanted again keeps its cores, so that what runs there goes on,
    unless the others then find no place.
    """
    wanted = Counter(widths)
    placed: list[tuple[int, ...]] = []
    for each in current:
        if wanted[len(each.cpus)]:
            wanted[len(each.cpus)] -= 1
            placed.append(each.cpus)
    for width in sorted(wanted.elements(), reverse=True):
        taken = {cpu for cpus in placed for cpu in cpus}
        cpus = choose_cores(topology, width, taken)
        if cpus is None:
            return core_sets(topology, widths, memory_bytes) if current else None
        placed.append(cpus)
    placed.sort(key=lambda cpus: (-len(cpus), cpus))
    return tuple(core_set(topology, cpus, memory_bytes) for cpus in placed)


def core_set(topology: Topology, cpus: tuple[int, ...], memory_bytes: int) -> ComputeSlice:
    """These CPUs of the host as a slice."""
    physical = len({each.physical for each in topology.cpus if each.id in cpus})
    whole = len({each.physical for each in topology.cpus})
    return ComputeSlice(
        name=f"cpus:{format_cpu_list(cpus)}",
        device="host",
        kind=f"{len(cpus)} core{'s' if len(cpus) > 1 else ''}",
        compute=physical / whole,
        bandwidth=1.0,  # All sets share the memory controllers of their node, and its last cache.
        memory_bytes=memory_bytes,
        cpus=cpus,
    )


def splits(topology: Topology, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every way to part all free physical cores into sets, each within a node; widest set first.

    There are many on large hosts: ``most`` bounds the sets.
    """
    seen = set()
    for widths in _of_nodes(free_cores(topology)):
        split = tuple(sorted(widths, reverse=True))
        if split not in seen and (most is None or len(split) <= most):
            seen.add(split)
            yield split


def _of_nodes(cores: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not cores:
        yield ()
        return
    for rest in _of_nodes(cores[1:]):
        for mine in _partitions(cores[0], cores[0]):
            yield (*mine, *rest)


def _partitions(total: int, widest: int) -> Iterator[tuple[int, ...]]:
    if total == 0:
        yield ()
    for first in range(min(total, widest), 0, -1):
        yield from ((first, *rest) for rest in _partitions(total - first, first))
