"""A pool process's part of its host: CPUs, threads, and memory for weights that are in use."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shunter.allocator.cpus.cpu_list import CpuListError, format_cpu_list, parse_cpu_list
from shunter.handlers.placement.placement import AUTO, PlacementError
from shunter.handlers.pool.seat import POOL

THREADS, PROCESSES = "SHUNTER_POOL_THREADS", "SHUNTER_POOL_WORKERS"
HOT_MB, CORES = "SHUNTER_POOL_HOT_MB", "SHUNTER_POOL_CORES"
GPU = "SHUNTER_POOL_GPU"
"""Number of the GPU that all its models have; absent: none."""


def said_of(name: str, environ: Mapping[str, str]) -> int:
    """What the server says; 0: nothing."""
    said = environ.get(name, "")
    return int(said) if said.isdecimal() else 0


def cores_of(environ: Mapping[str, str]) -> str:
    """Where this process runs: its part of the pool's CPUs; ``auto``: it chooses some; or empty:
    everywhere. Raises PlacementError."""
    said = environ.get(CORES, "")
    if said in ("", AUTO):
        return said
    try:
        cpus = parse_cpu_list(said)
    except CpuListError as error:
        raise PlacementError(f"{CORES}: {error}") from None
    count, number = max(1, said_of(PROCESSES, environ)), said_of(POOL, environ)
    part = cpus[len(cpus) * number // count : len(cpus) * (number + 1) // count]
    return format_cpu_list(part or cpus)  # fewer CPUs than processes: they share them


def threads_of(environ: Mapping[str, str]) -> int:
    """Of an operator: what the server says, or this process's share of the CPUs."""
    cores = cores_of(environ)
    if cores not in ("", AUTO):
        share = len(parse_cpu_list(cores))
    else:
        share = len(os.sched_getaffinity(0)) // max(1, said_of(PROCESSES, environ))
    return said_of(THREADS, environ) or max(1, share)


def hot_bytes(environ: Mapping[str, str], free: float, places: int = 1) -> int:
    """Hot memory: what the server says, or a half of what is ``free`` for all such processes that
    have it together; there are ``places`` of this kind."""
    together = -(-max(1, said_of(PROCESSES, environ)) // max(1, places))
    return said_of(HOT_MB, environ) * 1_000_000 or int(free / 2) // together
