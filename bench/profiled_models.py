"""Models of bench/models as archives with profiles, for benchmarks without a server."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from common import BENCH, Row

from shunter.allocator.cpus.cores import choose_cores, free_cores
from shunter.allocator.cpus.discovery import Topology, read_topology
from shunter.allocator.planning.profile import Profile, ProfileError
from shunter.handlers.sample import Sample
from shunter.model_store.pack import copy_config, pack
from shunter.plugins.hosts import runtime_of
from shunter.plugins.profiling import profiler
from shunter.plugins.profiling.profiles import load_profile, provenance_here

NETWORK_HANDLER = BENCH / "models/network_handler.py"
REQUEST = Sample(bytes(8))


def node(threads: int | None) -> tuple[Topology, int]:
    """The cores that everything runs on, of one NUMA node: ``threads``, or all that are free."""
    topology = read_topology()
    threads = threads or max(free_cores(topology))
    cores = choose_cores(topology, threads)
    if cores is None:
        raise SystemExit(f"no NUMA node of this host has {threads} CPUs")
    return topology.only(cores), threads


def pack_model(folder: Path, store: Path, settings: Row | None = None) -> Path:
    """Archive a model folder; ``settings`` are for the handler.

    A folder without a handler has the one of all networks.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        (copy / "handler.py").write_bytes(NETWORK_HANDLER.read_bytes())
        for file in folder.glob("*.py"):
            (copy / file.name).write_bytes(file.read_bytes())
        changes = {"handler": settings} if settings else None
        copy_config(folder / "model-config.yaml", copy, changes)
        return pack(copy, store, name=folder.name, weights_needed=False)


def profile_model(
    archive: Path, path: Path, topology: Topology, task: Mapping[str, object]
) -> Profile:
    """Measure what is missing in the profile at ``path``; one of something else begins anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = fitting_profile(archive, path, topology)

    def report(progress: profiler.Progress) -> None:
        if progress.next:
            cell = "{} threads, batch {}".format(*progress.next)
            print(f"  profile of {archive.stem}: {cell}", file=sys.stderr, flush=True)

    wanted = profiler.Task(
        archive, [REQUEST], runtime=runtime_of(), restart=known is None, **task
    )
    return profiler.run(wanted, path, topology, report)


def fitting_profile(archive: Path, path: Path, topology: Topology) -> Profile | None:
    """The profile at ``path`` if it is of this archive on this host."""
    try:
        found = load_profile(path)
        found.check_usable(provenance_here(archive, topology=topology))
    except (OSError, ProfileError):
        return None
    return found
