"""``python -m shunter.handlers.torchserve.pool.worker``: a process that serves several models.

It is started by the first seat (:mod:`shunter.handlers.pool.seat`) and ends with the last one. What
it does before anything else is what a worker does; seats are taken while torch is still imported.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from shunter.allocator.cpus.cpu_list import CpuListError, format_cpu_list, parse_cpu_list
from shunter.allocator.memory.host import available_bytes
from shunter.handlers.placement.allocation import start_anew_if_wanted
from shunter.handlers.placement.placement import (
    AUTO,
    CORES_VARIABLE,
    THREADS_VARIABLE,
    Place,
    PlacementError,
    read_placement,
)
from shunter.handlers.pool.handover import LOCK_VARIABLE, SOCKET_VARIABLE
from shunter.handlers.pool.reception import Reception
from shunter.handlers.pool.seat import POOL

THREADS, PROCESSES = "SHUNTER_POOL_THREADS", "SHUNTER_POOL_WORKERS"
HOT_MB, CORES = "SHUNTER_POOL_HOT_MB", "SHUNTER_POOL_CORES"
_OF_A_SEAT = (
    *("SHUNTER_CORES", "SHUNTER_THREADS", "SHUNTER_SCHED", "SHUNTER_IDLE_CGROUP"),
    *("SHUNTER_SHARE_WITH", "SHUNTER_GENTLE", "SHUNTER_PREEMPTIBLE", "SHUNTER_SLOT"),
    *("SHUNTER_SLICES", "SHUNTER_FRONT_END", "SHUNTER_CLASS"),
)
"""Of the one that has started this process; others have others."""


def be_nobodys(environ: MutableMapping[str, str], path: list[str]) -> None:
    """Forget the model of the seat that has started this process: its place and its folder."""
    for name in _OF_A_SEAT:
        environ.pop(name, None)
    folder = Path.cwd()

    def is_its(entry: str) -> bool:
        return bool(entry) and Path(entry).resolve().is_relative_to(folder)

    path[:] = [each for each in path if not is_its(each)]
    if named := environ.get("PYTHONPATH"):
        entries = [each for each in named.split(os.pathsep) if not is_its(each)]
        environ["PYTHONPATH"] = os.pathsep.join(entries)
    os.chdir(environ["SHUNTER_RUNTIME"])


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


def hot_bytes(environ: Mapping[str, str]) -> int:
    """Hot memory: what the server says, or a half of what is free, for all such processes."""
    share = int(available_bytes() / 2) // max(1, said_of(PROCESSES, environ))
    return said_of(HOT_MB, environ) * 1_000_000 or share


def main() -> int:
    """Serve until the last seat has gone; return the exit status."""
    environ = os.environ
    listening = socket.socket(fileno=int(environ.pop(SOCKET_VARIABLE)))
    lock = int(environ.pop(LOCK_VARIABLE))
    for each in (listening.fileno(), lock):
        os.set_inheritable(each, False)
    reception = Reception(listening, lock)
    reception.start()
    be_nobodys(environ, sys.path)
    try:
        threads = threads_of(environ)
        environ[THREADS_VARIABLE], environ[CORES_VARIABLE] = str(threads), cores_of(environ)
        place = Place(read_placement(environ), environ)
    except PlacementError as error:
        print(f"Pool process cannot take its place: {error}", flush=True)
        return 1
    # Nothing of what they import is garbage: the collector need not look, now or while serving.
    gc.disable()
    from shunter.handlers.torchserve.pool import process

    gc.freeze()
    gc.enable()
    place.settle()
    return process.run(reception, threads, hot_bytes(environ), environ)


if __name__ == "__main__":
    start_anew_if_wanted()
    sys.exit(main())
