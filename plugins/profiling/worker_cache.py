"""The workers that are measured: started where they would serve, and kept for the next cell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from shunter.allocator.cpus.cores import choose_cores, place_all
from shunter.allocator.cpus.topology import Topology
from shunter.allocator.memory.host import available_bytes
from shunter.plugins.host import ModelWorker, UnpackedModel, WorkerFailed, WorkerRuntime
from shunter.plugins.profiling.concurrent_workers import close_all, start_all

OPEN = 3
"""Numbers of threads whose workers are kept for the next cell, if memory allows."""


class WorkerCache:
    """Workers by their number of threads, as many as run together; the last few stay open."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        model: UnpackedModel,
        topology: Topology,
        threads: int,
        batch: int,
        *,
        alone: bool,
    ) -> None:
        """Each of up to ``threads`` threads; ``alone`` or as many as have room beside each other.

        ``batch`` is the largest one they are told to expect.
        """
        self._runtime, self._model, self._batch = runtime, model, batch
        self._topology = topology
        self._near = _shared_node(topology, threads)
        self._width = max(threads, len(self._near.cpus))
        self._alone = alone
        self._open: OrderedDict[int, list[ModelWorker]] = OrderedDict()
        self._peak = 0

    def of(self, *threads: int) -> list[list[ModelWorker]]:
        """For each number of threads those that run together; all are up at once.

        Raises WorkerFailed when one does not load, or when there is no room for all.
        """
        for each in threads:
            self._ready(each)
        if not set(threads) <= self._open.keys():
            raise WorkerFailed(f"no memory for workers of {threads} threads at once")
        return [self._open[each] for each in threads]

    def _ready(self, threads: int) -> None:
        if any(worker.is_dead for worker in self._open.get(threads, ())):
            close_all(self._open.pop(threads))
        if threads not in self._open:
            self._open[threads] = self._start(threads)
        self._open.move_to_end(threads)

    def _start(self, threads: int) -> list[ModelWorker]:
        count = 1 if self._alone else max(1, self._width // threads)
        for workers in self._open.values():
            self._peak = max(self._peak, *(worker.peak_bytes for worker in workers))
        while self._open and (len(self._open) >= OPEN or not self._has_room(count)):
            close_all(self._open.popitem(last=False)[1])
        while count > 1 and not self._has_room(count):
            count -= 1
        places: Sequence[tuple[int, ...] | None] = [None] * count
        if not self._topology.limited:
            # As when it serves: under a quota nobody is pinned.
            places = place_all(self._near, [threads] * count) or places
        return start_all(
            [
                self._runtime.worker(self._model, threads=threads, cores=cores, batch=self._batch)
                for cores in places
            ]
        )

    def _has_room(self, count: int) -> bool:
        return count * self._peak <= 0.8 * available_bytes()

    def close(self) -> None:
        """End all of them, also when Ctrl-C comes meanwhile."""
        close_all([worker for workers in self._open.values() for worker in workers])
        self._open.clear()


def _shared_node(topology: Topology, threads: int) -> Topology:
    """Where instances run side by side: the NUMA node that one with ``threads`` threads gets.

    One CPU of each core, more if the instance has more threads; none if no node has as many.
    """
    cores = choose_cores(topology, threads)
    if cores is None:
        return topology.only(())
    node = next(cpu.node for cpu in topology.cpus if cpu.id == cores[0])
    whole = topology.only(cpu.id for cpu in topology.cpus if cpu.node == node)
    return whole.only(choose_cores(whole, max(threads, whole.cores)) or ())
