"""Twenty minutes of everything at once: is a request lost, an answer of another model, memory?

Callers ask all models of a pool at random and compare every answer: the model's name and its
numbers. Meanwhile some of the models are unregistered and registered all the time, and one
after the other workers are killed (SIGKILL) or stopped (SIGSTOP): the processes that the server
has started for models, which are the seats of a pool, and the pool's own. A stopped process of the
pool is replaced after the server's patience (SHUNTER_POOL_PATIENCE_S, here --patience); what nobody
has replaced long after that goes on. The next fault comes when all models that stay have their
workers again. A request for a model that is just unregistered may be answered 404 or 503; all
others must be answered, and rightly.

    lost_requests            without a right answer
    wrong_answers            of another model, or with other numbers
    pss_slope_mb_per_min     of all processes of the server: the median slope of all pairs of
                             samples, without the first quarter
    files_slope_mb_per_min   of its files in memory (the one copy of the weights)
    live_heap_growth_mb      of the JVM's objects that are in use, from the beginning to the end;
                             its heap itself has one size from the start. The beginning is when
                             each model has been asked once and each that changes was registered
                             anew once: classes, buffers and tables are there then. The last 1024
                             requests that a server remembers of each model are not: they fill up
                             while it runs, so a short run grows more per minute than a long one

The twenty classes whose objects grew most are in the row as live_heap_growth_by_class.

Examples:
    python bench/soak_pool.py                      # 20 minutes
    python bench/soak_pool.py --quick              # one minute of it
    python bench/soak_pool.py --minutes 120 --faults "kill a pool process"
    python bench/soak_pool.py --side dedicated --minutes 2
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
from common import Parser, Row, keep, slope, write_result
from pool.callers import ask_each
from pool.churn import Churn, Traffic
from pool.memory import MemoryWatch
from pool.models import Packed, models, pack_all
from pool.servers import HEAP_MB, POOL, SIDES, PoolServer, growth_by_class, megabytes

NAME = "soak_pool"
RESPONSE_TIMEOUT_S = 3
AGAIN_S = 120.0
"""Longest time until all workers are back."""
FAULTS = {
    "kill a worker": ("workers", signal.SIGKILL),
    "kill a pool process": ("pool", signal.SIGKILL),
    "stop a worker": ("workers", signal.SIGSTOP),
    "stop a pool process": ("pool", signal.SIGSTOP),
}


def strike(server: PoolServer, fault: str, choose: random.Random) -> Row | None:
    """One fault; None: there is no such process."""
    kind, number = FAULTS[fault]
    pids = server.processes()[kind]
    while pids:
        pid = pids.pop(choose.randrange(len(pids)))
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            victim = psutil.Process(pid)
            os.kill(pid, number)
            return {"fault": fault, "victim": victim}
    return None


def back_again(server: PoolServer, steady: Sequence[Packed], row: Row, patience_s: int) -> None:
    """Until all that stay are ready; a victim that nobody has ended goes on."""
    began, victim = time.monotonic(), row.pop("victim")
    # A worker is not missed when nobody asks it, a stopped seat never.
    longest_s = 3 * RESPONSE_TIMEOUT_S + ("pool" in row["fault"]) * 2 * patience_s
    while time.monotonic() < began + AGAIN_S:
        if not (still := _runs(victim)):
            if server.are_ready(steady):
                break
        elif time.monotonic() > began + longest_s:
            break
        time.sleep(0.1)
    row["still_there"] = still
    if still:
        with contextlib.suppress(psutil.Error):
            victim.resume()
    row["until_ready_s"] = round(time.monotonic() - began, 2)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it was buried between the two
        return False


def warm_up(server: PoolServer, packed: Sequence[Packed], changing: Sequence[Packed]) -> None:
    """Everything once that costs memory the first time. RuntimeError: it does not even work."""
    for each in changing:
        server.unregister(each)
        server.register(each)
    ends = ask_each(server.port, packed)
    if ends.lost or ends.wrong:
        raise RuntimeError(f"of {len(packed)} models: {ends.row()}")


def soak(server: PoolServer, packed: list[Packed], args: argparse.Namespace) -> Row:
    """All of it at once."""
    steady, changing = packed[args.changing :], packed[: args.changing]
    choose, faults = random.Random(3), []
    warm_up(server, packed, changing)
    before = server.live_heap()
    churn = Churn(server, changing)
    watch = MemoryWatch(server.memory, 1.0 if args.quick else 5.0)
    end = time.monotonic() + 60 * args.minutes
    with Traffic(server, packed, churn, args.threads, args.rate) as traffic:
        churn.start()
        watch.start()
        wanted = list(args.faults)
        while wanted and time.monotonic() < end:
            time.sleep(choose.uniform(1, 4))
            row = strike(server, wanted[0], choose)
            if row is None:
                print(f"there is nothing to {wanted.pop(0)}", file=sys.stderr)
                continue
            wanted.append(wanted.pop(0))
            back_again(server, steady, row, args.patience)
            faults.append(row)
            report(row, traffic, (end - time.monotonic()) / 60)
            keep(NAME, args.quick, {"faults": faults, "ends": dict(traffic.ends.counts)})
        time.sleep(max(0.0, end - time.monotonic()))
        churn.stop()
    watch.stop()
    row = result(server, packed, traffic, churn, faults, watch.samples)
    after = server.live_heap()
    row["live_heap_growth_by_class"] = growth_by_class(before, after)
    return {"live_heap_mb": [megabytes(before), megabytes(after)], **row}


def report(row: Row, traffic: Traffic, minutes_left: float) -> None:
    """A line of progress."""
    ends = traffic.ends
    text = f"[{minutes_left:.1f} min left] {row['fault']}: {row['until_ready_s']} s; of "
    text += f"{ends.counts.total()} requests {traffic.lost} lost, {ends.wrong} wrong"
    print(text, file=sys.stderr, flush=True)


def result(
    server: PoolServer,
    packed: Sequence[Packed],
    traffic: Traffic,
    churn: Churn,
    faults: list[Row],
    samples: list[Row],
) -> Row:
    """What came of it; at the end every model must still be what it was."""
    after = ask_each(server.port, packed)
    row = traffic.ends.row() | {"gone": traffic.gone, "lost": traffic.lost + after.lost}
    row["wrong"] += after.wrong
    row["slowest_ms"] = traffic.slowest_ms
    row["examples"] = traffic.examples
    row["changes"], row["failed_changes"] = churn.changes, dict(churn.failed)
    row["faults"] = dict(Counter(each["fault"] for each in faults))
    row["still_there"] = dict(Counter(each["fault"] for each in faults if each["still_there"]))
    row["worst_until_ready_s"] = max((each["until_ready_s"] for each in faults), default=0)
    row["memory"] = [samples[0], samples[-1]] if samples else []
    for name in ("pss", "files", "jvm_pss", "pool_pss", "workers_pss"):
        row[f"{name}_slope"] = slope(samples, name)
    return row | {"samples": {"memory": samples, "faults": faults}}


def headline(row: Row) -> Row:
    """The claims."""
    return {
        "lost_requests": row["lost"],
        "wrong_answers": row["wrong"],
        "pss_slope_mb_per_min": row["pss_slope"],
        "files_slope_mb_per_min": row["files_slope"],
        "live_heap_growth_mb": round(row["live_heap_mb"][1] - row["live_heap_mb"][0], 1),
        "requests": row["requests"],
        "faults": sum(row["faults"].values()),
        "changes": row["changes"],
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=1, quick_rounds=1)
    parser.add_argument("--side", choices=SIDES, default=POOL, help="default pool")
    parser.add_argument("--minutes", type=float, help="default 20, quick 1")
    parser.add_argument("--models", type=int, help="default 20, quick 6")
    parser.add_argument("--changing", type=int, help="of them come and go; default 6, quick 2")
    parser.add_argument("--threads", type=int, default=6, help="callers; default 6")
    parser.add_argument("--rate", type=float, default=40, help="requests/s at most; default 40")
    parser.add_argument("--pool-workers", type=int, default=2, help="default 2")
    parser.add_argument("--hot-mb", type=int, help="of all workers; default: half of the weights")
    parser.add_argument("--patience", type=int, help="seconds; default 30, quick 3")
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS))
    args = parser.arguments()
    quick = args.quick
    args.minutes = args.minutes or (1.0 if quick else 20.0)
    args.patience = args.patience or (3 if quick else 30)
    args.models = args.models or (6 if quick else 20)
    args.changing = args.changing or (2 if quick else 6)
    return args


def main() -> None:
    """Run and write the result."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        config = {"responseTimeout": RESPONSE_TIMEOUT_S}
        packed = pack_all(models(args.models, 4, 24), store, config=config)
        half = round(sum(each.bytes for each in packed) / 2**21)
        hot_mb = max(32, (args.hot_mb or half) // args.pool_workers)
        with PoolServer(
            args.side,
            store,
            models=packed,
            hot_mb=hot_mb,
            workers=args.pool_workers,
            patience_s=args.patience,
            heap_mb=HEAP_MB,
        ) as server:
            row = soak(server, packed, args)
    samples = row.pop("samples")
    row = {"side": args.side, "models": len(packed), **row}
    top = headline(row)
    path = write_result(NAME, quick=args.quick, rows=[row], headline=top, samples=samples)
    print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
