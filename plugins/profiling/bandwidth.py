"""How much of the host's memory bandwidth a model wants, by the cores that it runs on (FBR).

As many copies as have room run on cores of their own, and what they are slower than one alone is
what they cost each other. Less than the noise of a measurement counts as nothing.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from shunter.allocator.cpus.cores import place_all
from shunter.allocator.cpus.topology import Topology
from shunter.allocator.placement.slowdown import fit
from shunter.allocator.planning.profile import Profile, batch_sizes
from shunter.plugins.errors import UserError
from shunter.plugins.host import ModelWorker, UnpackedModel, WorkerFailed
from shunter.plugins.profiling.profiler import Task, samples_of
from shunter.plugins.profiling.profiles import load_profile, write_profile
from shunter.plugins.profiling.together import Subject, Together

SECONDS = 1.0
"""Of one measurement, of which there are four for each number of cores."""
MOST_BATCH = 8


def add_bandwidth(task: Task, path: Path, topology: Topology, seconds: float = SECONDS) -> Profile:
    """Measure and keep it in the profile at ``path``. Raises UserError for what a user can mend."""
    profile = load_profile(path)
    with tempfile.TemporaryDirectory(prefix="shunter-bandwidth-") as folder:
        try:
            model = task.runtime.unpack(task.archive, Path(folder))
            found = {
                cores: share
                for cores in batch_sizes(profile.threads)
                if (share := _share(task, model, topology, cores, seconds)) is not None
            }
        except (WorkerFailed, OSError) as error:
            raise UserError(str(error)) from error
    profile = replace(profile, fbr=found)
    write_profile(path, profile)
    return profile


def _share(
    task: Task, model: UnpackedModel, topology: Topology, cores: int, seconds: float
) -> float | None:
    """On sets of so many cores; None where there is no room for two."""
    places = place_all(topology, [cores] * max(1, topology.cores // cores))
    if topology.limited or places is None or len(places) < 2:
        return None
    batch = min(MOST_BATCH, task.batch)
    free = iter(places)

    def start() -> ModelWorker:
        return task.runtime.worker(model, threads=cores, cores=next(free), batch=batch).start()

    samples = samples_of(task, model)
    requests = [samples[i % len(samples)] for i in range(batch)]
    together = Together({model.name: Subject(start, requests)}, seconds)
    try:
        known = fit(together.observe((model.name,) * len(places)))
    finally:
        together.close()
    return 0.0 if model.name in known.at_most else min(1.0, known.fbr[model.name])
