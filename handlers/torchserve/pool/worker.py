"""``python -m shunter.handlers.torchserve.pool.worker``: a process that serves several models.

It is started by the first seat (:mod:`shunter.handlers.pool.seat`) and ends with the last one. What
it does before anything else is what a worker does; seats are taken while torch is still imported.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import MutableMapping
from pathlib import Path

from shunter.handlers.placement.allocation import start_anew_if_wanted
from shunter.handlers.placement.placement import (
    CORES_VARIABLE,
    THREADS_VARIABLE,
    Place,
    PlacementError,
    read_placement,
)
from shunter.handlers.pool.handover import LOCK_VARIABLE, SOCKET_VARIABLE
from shunter.handlers.pool.reception import Reception
from shunter.handlers.torchserve.pool.part import GPU, cores_of, threads_of

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
"""Environment of torch on a GPU: what models leave behind is one piece again for another, for pages
are moved in the GPU's page table, and not their content."""
_OF_A_SEAT = (
    *("SHUNTER_CORES", "SHUNTER_THREADS", "SHUNTER_SCHED", "SHUNTER_IDLE_CGROUP"),
    *("SHUNTER_SHARE_WITH", "SHUNTER_GENTLE", "SHUNTER_PREEMPTIBLE", "SHUNTER_SLOT"),
    *("SHUNTER_SLICES", "SHUNTER_FRONT_END", "SHUNTER_CLASS", "SHUNTER_STARTUP_TIMEOUT_S"),
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
    if GPU in environ:
        environ.setdefault(*ALLOCATOR)
    # Nothing of what they import is garbage: the collector need not look, now or while serving.
    gc.disable()
    from shunter.handlers.torchserve.pool import running

    gc.freeze()
    gc.enable()
    place.settle()
    return running.run(reception, threads, environ)


if __name__ == "__main__":
    start_anew_if_wanted()
    sys.exit(main())
