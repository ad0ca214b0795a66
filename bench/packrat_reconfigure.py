"""Does anyone notice a change of the configuration?

A model under an open Poisson load of 60 % of what the slower of two configurations can do, REST,
while the batch size goes 8 -> 64 -> 8. Each time all worker processes are replaced: those of the
optimum for 64 load beside those for 8, take over, and back. Where the optimum for both has the
same processes, they are replaced all the same. What counts is each request from its scheduled
time of sending, in three windows: before, during (from asking for the change until the last old
worker has ended) and after. The models are resnet50, with JPEGs in, and minilm, whose short
latencies show every disturbance.

Examples:
    python bench/packrat_reconfigure.py                 # 7 rounds, about 15 minutes
    python bench/packrat_reconfigure.py --quick         # minilm, 1 round
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import load
from common import Parser, Progress, Row, bootstrap, keep, make_stores, percentile, write_result
from sides import PHOTOGRAPHS, SENTENCES, Setting, Side, Workload, closed_loop

from shunter.allocator.cores import free_cores
from shunter.allocator.topology import read_topology
from shunter.batching.configuration import format_configuration
from shunter.batching.optimizer import minimise_latency
from shunter.batching.profile import latency_table
from shunter.plugins.profiler import Task, run
from shunter.plugins.profiles import profile_path
from shunter.plugins.worker_client import Sample

NAME = "packrat_reconfigure"
SMALL, LARGE = 8, 64
SHARE = 0.6
SETTING = Setting(batch=LARGE, delay_ms=5, workers=1, threads=0, queue=1000)
LONGEST_CHANGE_S = 120
QUIET_S = 12
"""Before a change, and after it."""
SETTLE_S = 2
"""Not counted, after the start of the load."""


def configurations(side: Side) -> dict[int, str]:
    """The optimum for both batch sizes, from a profile measured now."""
    workload = side.workload
    archive = side.archive(workload.name, SETTING, {"auto": False})
    topology = read_topology()
    samples = [Sample(workload.bodies[0], workload.content_type)]
    task = Task(archive, samples, threads=topology.cores, batch=LARGE)
    table = latency_table(run(task, profile_path(archive), topology))
    choices = {b: minimise_latency(table, free_cores(topology), b) for b in (SMALL, LARGE)}
    return {batch: format_configuration(each.configuration) for batch, each in choices.items()}


def change(side: Side, to: str) -> Row:
    """Replace all processes; when it was asked for, served and was over, on the host's clock."""
    name = side.workload.name
    generation = side.status(name)["generation"]
    old = set(side.pids()["workers"])
    found: Row = {"to": to, "asked": time.monotonic()}
    side.configure(name, configuration=to, cores="auto", restart="true")
    while time.monotonic() < found["asked"] + LONGEST_CHANGE_S:
        if "serves" not in found and side.status(name)["generation"] > generation:
            found["serves"] = time.monotonic()
        if "serves" in found and not old & set(side.pids()["workers"]):
            return {**found, "ended": time.monotonic()}
        time.sleep(0.02)
    raise RuntimeError(f"no change to {to}: {side.status(name)['last_change']}")


def capacity(side: Side, wanted: dict[int, str]) -> dict[int, float]:
    """Requests per second that each configuration answers, with 64 clients."""
    found = {}
    for batch, configuration in reversed(wanted.items()):
        change(side, configuration)
        url, requests = side.url(side.workload.name), side.workload.requests
        closed_loop(url, LARGE, 3, **requests)
        found[batch] = closed_loop(url, LARGE, 6, **requests)["ok_per_s"]
    return found


def one_round(side: Side, wanted: dict[int, str], rate: float, seed: int) -> Row:
    """Load from beginning to end, and both changes under it."""
    given = {"kind": "poisson", "rate": rate, "seconds": 1200, "seed": seed}
    url, requests = side.url(side.workload.name), side.workload.requests
    stream = load.Stream("load", url, arrivals=given, slo_ms=1000, **requests)
    with load.start(load.Spec([stream], timeout_s=60)) as running:
        time.sleep(SETTLE_S + QUIET_S)
        changes = []
        for batch in (LARGE, SMALL):
            changes.append(change(side, wanted[batch]))
            time.sleep(QUIET_S)
        end = time.monotonic()
        result = running.stop()
    started = result.started
    for each in changes:
        for key in ("asked", "serves", "ended"):
            each[key] -= started
    samples = result.of("load")
    return {
        "model": side.workload.name,
        "changes": changes,
        "end": end - started,
        "due_s": samples.due_s.round(4).tolist(),
        "latency_ms": (samples.latency_s * 1e3).round(3).tolist(),
        "status": samples.status.tolist(),
    }
