"""Three machines on Ray behind two gateways, all on this host, with real models.

Throughput and latency of digits and minilm through a gateway, asked of one machine directly, and of
plain Ray Serve with ``@serve.batch`` on the same archives with as many model processes; what a
gateway adds to one request at a time; strict requests beside best effort; what is lost, and how
long it takes, when a server, a whole node, a gateway, the controller or Ray's head is killed and
when a machine gets notice, under an open load of requests that may run twice. All processes, and
those of the rival, share the cores of this host, so that only ratios say something.

Examples:
    python bench/cluster.py
    python bench/cluster.py --quick
    python bench/cluster.py --no-rival
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import load
from cluster_bed import PREDICTIONS, Bed, Clients
from common import Parser, Progress, Row, bootstrap, keep, paired_ratio, write_result
from rivals import ray_serve_server
from rivals.environments import Unavailable
from rivals.process import RivalFailed
from sides import BODIES

from shunter.model_store.digits.archive import pack_digits
from shunter.model_store.minilm.archive import pack_minilm

NAME = "cluster"
MACHINES = 3
CLIENTS = 24
"""Of the closed loops."""
STRICT, BEST_EFFORT = 0.3, 0.9
"""Of the highest rate: see mixed_classes.py."""
FAULT_LOAD = 0.3
SETTLE_S = 1.0
CORES = len(os.sched_getaffinity(0))
"""As many workers have models whose archives say no number."""
SERVING = {"batchSize": 32, "maxBatchDelay": 1, "minWorkers": 1, "maxWorkers": 1}


@dataclass(frozen=True)
class Model:
    """What is asked of one."""

    name: str
    bodies: tuple[bytes, ...]
    content_type: str
    workers: int
    """Of each machine."""


DIGITS = Model("digits", (bytes(range(16)) * 4,), "application/octet-stream", CORES)
MINILM = Model("minilm", tuple(BODIES), "application/json", 1)
MODELS = (DIGITS, MINILM)


def closed(model: Model, url: str, clients: int, seconds: float) -> Row:
    """A closed loop of clients."""
    stream = load.Stream(
        name="load",
        url=url,
        closed=load.Closed(clients, seconds + SETTLE_S),
        bodies=model.bodies,
        content_type=model.content_type,
        deadline_ms=60_000,
    )
    found = load.run(load.Spec([stream], timeout_s=60, warmup_s=SETTLE_S))["load"]
    return {each: found[each] for each in ("ok_per_s", "p50_ms", "p99_ms", "statuses")}


def sides(bed: Bed, rivals: dict[str, ray_serve_server.RayServe], model: Model) -> dict[str, str]:
    """Where a model is asked."""
    found = {"gateway": f"{bed.gateways[0]}{PREDICTIONS}{model.name}"}
    found["direct"] = f"{bed.machine()['inference']}{PREDICTIONS}{model.name}"
    if model.name in rivals:
        found["ray_serve"] = rivals[model.name].url
    return found


def throughput(
    bed: Bed, rivals: dict[str, Any], seconds: float, rounds: int, step: Callable[[str], None]
) -> list[Row]:
    """Every side of every model, interleaved."""
    rows = []
    for number in range(rounds):
        for model in MODELS:
            for side, url in sides(bed, rivals, model).items():
                step(f"round {number + 1}: {model.name}, {side}")
                for clients in (CLIENTS, 1) if side != "ray_serve" else (CLIENTS,):
                    found = closed(model, url, clients, seconds)
                    where = {"what": "closed", "model": model.name, "side": side}
                    rows.append({**where, "clients": clients, "round": number, **found})
    return rows


def mixed(bed: Bed, capacity: float, seconds: float, rounds: int, step: Any) -> list[Row]:
    """Strict alone and beside best effort, by one gateway each."""
    rows = []
    for number in range(rounds):
        for classes in (("strict",), ("strict", "best_effort")):
            step(f"round {number + 1}: {' and '.join(classes)}")
            streams = [
                load.Stream(
                    name=each,
                    url=f"{bed.gateways[at]}{PREDICTIONS}{MINILM.name}",
                    arrivals={
                        "kind": "poisson",
                        "rate": (STRICT, BEST_EFFORT)[at] * capacity,
                        "seconds": seconds + SETTLE_S,
                    },
                    bodies=MINILM.bodies,
                    request_class=each,
                    deadline_ms=60_000,
                    seed=10 * number + at,
                )
                for at, each in enumerate(classes)
            ]
            found = load.run(load.Spec(streams, timeout_s=60, warmup_s=SETTLE_S))["strict"]
            row = {each: found[each] for each in ("ok_per_s", "p50_ms", "p99_ms", "statuses")}
            rows.append({"what": "mixed", "classes": len(classes), "round": number, **row})
    return rows


def fault(bed: Bed, name: str, rate: float) -> Row:
    """One under load: what was lost, and how long it took."""
    with Clients(bed.gateways, DIGITS.name, DIGITS.bodies[0], rate) as clients:
        over = getattr(bed, name)()
        whole_s = bed.wait_whole(over)
    return {"what": "fault", "fault": name, "seconds_until_whole": whole_s, **clients.row()}


FAULTS = ("kill_server", "kill_node", "kill_gateway", "kill_controller", "evict", "kill_head")


def headline(rows: list[Row]) -> Row:
    """The claims."""

    def values(model: str, side: str, clients: int, key: str) -> list[float]:
        chosen = {"model": model, "side": side, "clients": clients}
        return [each[key] for each in rows if chosen.items() <= each.items()]

    found: Row = {}
    ratios = {}
    for model in (each.name for each in MODELS):
        ours, theirs = (values(model, s, CLIENTS, "ok_per_s") for s in ("gateway", "ray_serve"))
        if theirs:
            ratios[model] = paired_ratio(ours, theirs)
        direct = values(model, "direct", CLIENTS, "ok_per_s")
        found[f"throughput_vs_one_machine_{model}"] = paired_ratio(ours, direct)["median"]
    if ratios:
        found["throughput_vs_plain_ray_serve"] = min(each["median"] for each in ratios.values())
        found |= {f"throughput_vs_plain_ray_serve_{m}": r["median"] for m, r in ratios.items()}
    pairs = zip(
        *(values(DIGITS.name, side, 1, "p50_ms") for side in ("gateway", "direct")), strict=True
    )
    added = [a - b for a, b in pairs]
    found["gateway_overhead_ms"] = statistics.median(added)
    found["gateway_overhead_ms_low"], found["gateway_overhead_ms_high"] = bootstrap(added)
    alone, both = (
        [each["p99_ms"] for each in rows if each["what"] == "mixed" and each["classes"] == count]
        for count in (1, 2)
    )
    found["strict_p99_mixed_vs_alone"] = paired_ratio(both, alone)["median"]
    faults = [each for each in rows if each["what"] == "fault"]
    found["lost_idempotent_requests"] = sum(each["lost"] for each in faults)
    found["seconds_until_whole"] = max(each["seconds_until_whole"] for each in faults)
    return found | {f"seconds_until_whole_{e['fault']}": e["seconds_until_whole"] for e in faults}


def start_rivals(stack: ExitStack, store: Path) -> dict[str, ray_serve_server.RayServe]:
    """A Ray with a deployment for each model; none, and why, where there is no Ray Serve."""
    found = {}
    try:
        for model in MODELS:
            archive = store / f"{model.name}.mar"
            replicas = MACHINES * model.workers
            rival = ray_serve_server.RayServe(archive, replicas=replicas, threads=1)
            found[model.name] = stack.enter_context(rival)
    except (Unavailable, RivalFailed) as error:
        print(f"Ray Serve is left out: {error}")
    return found


def main() -> None:
    """Measure, write the result, print the claims."""
    parser = Parser(__doc__, quick_rounds=1)
    parser.add_argument("--no-rival", action="store_true", help="without plain Ray Serve")
    given = parser.arguments()
    seconds = 3.0 if given.quick else 15.0
    of_a_round = 3 * len(MODELS) + 2
    progress = Progress(given.rounds * of_a_round + len(FAULTS) + 2)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = Path(folder)
        pack_digits(store)
        pack_minilm(store, config={**SERVING, "handler": {"threads": 1}})
        progress.step("plain Ray Serve")
        rivals = {} if given.no_rival else start_rivals(stack, store)
        progress.step(f"{MACHINES} machines")
        bed = stack.enter_context(Bed(store, MACHINES))
        for model in MODELS:
            closed(model, sides(bed, rivals, model)["gateway"], CLIENTS, seconds)
        rows = throughput(bed, rivals, seconds, given.rounds, progress.step)
        keep(NAME, given.quick, rows)
        rates = {
            model.name: statistics.median(
                each["ok_per_s"]
                for each in rows
                if (each["model"], each["side"], each["clients"])
                == (model.name, "gateway", CLIENTS)
            )
            for model in MODELS
        }
        rows += mixed(bed, rates[MINILM.name], seconds, given.rounds, progress.step)
        keep(NAME, given.quick, rows)
        for name in FAULTS:
            progress.step(name)
            rows.append(fault(bed, name, FAULT_LOAD * rates[DIGITS.name]))
            keep(NAME, given.quick, rows)
    claims = headline(rows)
    print(write_result(NAME, quick=given.quick, rows=rows, headline=claims))
    for name, value in claims.items():
        print(f"{name:>40}  {value:.4g}")


if __name__ == "__main__":
    main()
