"""One measurement of the DISB benchmark: both loads, and what the machine did meanwhile."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import load
import numpy as np
import psutil
from accounting import Samples, status_name
from arrivals import Times
from common import Row
from disb_server import SCHEMES, Bed, copies, model_of, preemption, register_name

LEAD_S = 1.5
"""Of strict requests before what is counted; in it the best-effort clients start."""
SETTLE_S = 0.4
"""Best effort runs at least that long before what is counted."""
TIMEOUT_S = 60.0
WRONG = 406
OWN_SESSION = ("setsid",)
# The kernel compares scheduling classes inside of a session or cgroup only. A client in another
# one than the server's would wait behind best effort for a slice of 3 ms and more; clients are
# elsewhere, so the strict one goes before everything where that is permitted.
FIRST = ("chrt", "--fifo", "1")


class LateStart(Exception):
    """The best-effort clients were not running when counting began."""


def measure(
    bed: Bed, scheme: str, due: Mapping[str, Times], best_effort: Sequence[str], seconds: float
) -> Row:
    """Strict requests at ``due``, which begins LEAD_S early, beside closed-loop best effort.

    Without strict requests best effort is measured alone. Raises LateStart; then try again.
    """
    bed.use(scheme)
    with ExitStack() as stack:
        strict = other = None
        begin = time.monotonic() + LEAD_S
        if due:
            spec = load.Spec(_strict(bed, due, seconds), timeout_s=TIMEOUT_S, warmup_s=LEAD_S)
            spec.cpu_pids = {"jvm": [bed.side.server.pid]}
            first = FIRST if client_goes_first() else ()
            strict = stack.enter_context(load.start(spec, wrapper=first))
            begin = strict.started + LEAD_S
        if SCHEMES[scheme].best_effort is not None:
            # It starts later than it is told to last from now, so it is there until the end.
            closed = _closed(bed, scheme, best_effort, begin + seconds - time.monotonic())
            other = stack.enter_context(load.start(closed, wrapper=OWN_SESSION))
            _stand_back(other.pid)
            if not due:
                begin = other.started + SETTLE_S
            elif other.started + SETTLE_S > begin:
                raise LateStart(f"{other.started + SETTLE_S - begin:.2f} s late")
        found = _watch(bed, begin, seconds)
        if strict is not None:
            found |= _strict_row(strict.result())
        if other is not None:
            found |= _best_effort_row(other.result(), begin, found["seconds"])
    return found


@functools.cache
def client_goes_first() -> bool:
    """Whether the strict client may run before everything else on this host."""
    return subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode == 0


def _strict(bed: Bed, due: Mapping[str, Times], seconds: float) -> list[load.Stream]:
    return [
        load.Stream(
            model,
            bed.url(model, "strict"),
            {"kind": "times", "times": times, "seconds": LEAD_S + seconds},
            bodies=bed.bodies(model, "strict"),
            request_class="strict",
        )
        for model, times in due.items()
    ]


def _closed(bed: Bed, scheme: str, models: Sequence[str], seconds: float) -> load.Spec:
    kinds = copies(SCHEMES[scheme].best_effort or "", bed.setting.copies(models))
    closed = load.Closed(1, seconds)
    streams = [
        load.Stream(
            register_name(model, kind),
            bed.url(model, kind),
            closed=closed,
            bodies=bed.bodies(model, kind),
        )
        for model in models
        for kind in kinds
    ]
    return load.Spec(streams, timeout_s=TIMEOUT_S)


def _stand_back(pid: int) -> None:
    """Let the best-effort clients only take what is left: elsewhere they would take nothing.

    SCHED_IDLE counts within a session where the kernel groups tasks by it (autogroup), so theirs
    is their own and has the least weight.
    """
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # the kernel does not group
        Path(f"/proc/{pid}/autogroup").write_text("19", encoding="ascii")


def _watch(bed: Bed, begin: float, seconds: float) -> Row:
    """What the cores and the workers did in an interval of monotonic time."""
    _sleep_until(begin)
    first, runners, started = psutil.cpu_times(), bed.runners(), time.monotonic()
    _sleep_until(begin + seconds)
    last, ended = psutil.cpu_times(), time.monotonic()
    return {
        "seconds": ended - started,
        "idle_share": idle_share(first._asdict(), last._asdict()),
        **preemption(runners, bed.runners()),
    }


def idle_share(first: Mapping[str, float], last: Mapping[str, float]) -> float:
    """Of all cores' time between two readings of /proc/stat; stolen time is not idle.

    >>> idle_share({"user": 1, "idle": 5, "iowait": 0}, {"user": 4, "idle": 11, "iowait": 1})
    0.7
    """
    # What guests used is contained in user and nice.
    spent = {key: last[key] - first[key] for key in last if not key.startswith("guest")}
    return (spent["idle"] + spent["iowait"]) / sum(spent.values())


def _strict_row(result: load.Result) -> Row:
    counted = result.samples.between(*result.counted_s)
    good = counted.status == 200
    latencies = {
        model: np.round(result.of(model).between(*result.counted_s).latency_s * 1e3, 3).tolist()
        for model in result.streams
    }
    return {
        "strict_ms": (counted.latency_s[good] * 1e3).round(3).tolist(),
        "strict_mean_by_model_ms": {m: float(np.mean(v)) for m, v in latencies.items() if v},
        "strict_faults": _faults(counted),
        "strict_client": result.client,
        "jvm_cores": result.cpu_cores["jvm"],
    }


def _best_effort_row(result: load.Result, begin: float, seconds: float) -> Row:
    """Requests count by when they ended."""
    first = begin - result.started
    ended = result.samples.due_s + result.samples.latency_s
    counted = result.samples.where((ended >= first) & (ended < first + seconds))
    answers = Counter(counted.stream[counted.status == 200].tolist())
    done: Counter[str] = Counter()
    for index, name in enumerate(result.streams):
        done[model_of(name)] += answers[index]
    latencies = counted.latency_s[counted.status == 200]
    return {
        "best_effort_done": dict(done),
        "best_effort_mean_ms": float(latencies.mean() * 1e3) if len(latencies) else None,
        "best_effort_faults": _faults(result.samples),
        "best_effort_client_cores": result.client["cores"],
    }


def _faults(samples: Samples) -> Row:
    """Requests that were not answered with 200, by status."""
    bad = samples.status[samples.status != 200].tolist()
    return dict(Counter("wrong" if s == WRONG else status_name(int(s)) for s in bad))


def service_times(bed: Bed, models: Sequence[str], quick: bool) -> dict[str, float]:
    """Seconds of one request to each strict model on an idle server, the lowest of some turns.

    A server that has just started may be slower: one turn once gave DenseNet 53 ms instead of 27,
    and the workloads a third less strict work than they are for.
    """
    turns, seconds = (2, 0.8) if quick else (4, 1.5)
    found = [{model: _service_time(bed, model, seconds) for model in models} for _ in range(turns)]
    return {model: min(turn[model] for turn in found) for model in models}


def _service_time(bed: Bed, model: str, seconds: float) -> float:
    """Mean of a closed loop."""
    closed = load.Closed(1, seconds)
    url, bodies = bed.url(model, "strict"), bed.bodies(model, "strict")
    one = load.Stream(model, url, None, closed, bodies, request_class="strict")
    found = load.run(load.Spec([one], timeout_s=TIMEOUT_S, warmup_s=min(0.3, seconds / 3)))
    counted = found.samples.between(*found.counted_s)
    return float(counted.latency_s[counted.status == 200].mean())


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
