"""An hour of everything at once: is a request lost, an answer wrong, does memory grow?

One TorchServe with ten models: minilm, digits (strict and best effort), one that adds numbers, five
that share two pool processes. Callers ask all of them at random by REST, gRPC and the network front
end (UDP, TCP, a Unix socket), as strict or best effort, a fifth with a deadline, and compare every
answer. Every 20 to 40 seconds something happens: a model gets another configuration, is scaled, or
is unregistered and registered again; a worker, a pool process, the controller or the front end is
killed (SIGKILL); a worker or a pool process stands still for some seconds (SIGSTOP); a burst of
requests is begun and left. The next one comes when everything is back. All requests say that they
may run twice.

    lost_requests                without a right answer. Not counted: those that are refused, as
                                 documented, because of the deadline that they name (too_late),
                                 and those for a model that is just not there (gone)
    wrong_answers                with other numbers
    worst_rss_slope_mb_per_hour  of the JVM, the controller, the front end, all workers together,
                                 all pool processes together: the one that grows fastest; least
                                 squares over the second half, of samples taken between faults
    worst_growth_mb_per_hour     within processes that have run for five minutes, of memory that is
                                 theirs alone: which processes there are does not matter to it
    live_heap_growth_mb          of the JVM's objects in use, from the beginning to the end; its
                                 heap itself has one size from the start
    idle_cpu_share               cores that all processes use without requests, with ten models

Examples:
    python bench/soak.py                     # an hour
    python bench/soak.py --quick             # one minute of it
    python bench/soak.py --minutes 600 --rate 150
    python bench/soak.py --faults "kill a worker" "stop a worker" --minutes 10
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
from common import Parser, Row, keep, write_result
from cpu_use import CpuUse
from pool.churn import Churn
from pool.memory import MemoryWatch
from soaking.bed import Bed
from soaking.events import FAULTS, Events
from soaking.memory import summary
from soaking.targets import pack_targets
from soaking.traffic import Traffic, ask_all

NAME = "soak"
SETTLE_S = 70.0
"""After the last request, before the idle server is looked at: its last minute has nothing in it
then, so that none of its numbers moves any more."""


def happen(bed: Bed, traffic: Traffic, churn: Churn, args: argparse.Namespace) -> list[Row]:
    """One event after the other until the time is over."""
    choose, found = random.Random(args.seed), []
    events = Events(bed, churn, choose, args.faults)
    end = time.monotonic() + 60 * args.minutes
    while True:
        pause_s = choose.uniform(*args.pause_s)
        if time.monotonic() + pause_s >= end:
            break
        time.sleep(pause_s)
        found.append(events.happen(events.next()))
        report(found[-1], traffic, (end - time.monotonic()) / 60)
        keep(NAME, args.quick, {"faults": found, "ends": dict(traffic.tally.ends.counts)})
    time.sleep(max(0.0, end - time.monotonic()))
    return found


def say(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


def report(row: Row, traffic: Traffic, minutes_left: float) -> None:
    """A line of progress."""
    tally = traffic.tally
    text = f"[{minutes_left:.1f} min left] {row['fault']}: {row['until_ready_s']} s"
    text += f"; of {tally.ends.counts.total()} requests {tally.lost} lost, {tally.ends.wrong} wrong"
    problem = row.get("problem") or ("" if row["ready"] else "not everything is back")
    say(f"{text}{'; ' if problem else ''}{problem}")


def idle_cores(bed: Bed, seconds: float) -> dict[str, float]:
    """Cores that each kind of process uses while nobody asks."""
    time.sleep(min(SETTLE_S, 5 * seconds))
    use = CpuUse(bed.groups())
    use.begin()
    time.sleep(seconds)
    use.end()
    return use.cores()


def soak(bed: Bed, args: argparse.Namespace) -> Row:
    """Traffic and events, and what came of it."""
    clients = bed.clients()
    before = ask_all(bed.targets, clients)
    if before.lost or before.ends.wrong:
        raise RuntimeError(f"not even before the first fault: {before.examples}")
    heap = bed.server.live_heap_mb()
    churn = Churn(bed.server, [each for each in bed.targets if each.changing])
    watch = MemoryWatch(bed.memory, args.sample_s)
    watch.start()
    busy = psutil.cpu_times()
    with Traffic(bed.targets, clients, churn, args.rate) as traffic:
        events = happen(bed, traffic, churn, args)
    used = busy_share(busy, psutil.cpu_times())
    watch.stop()
    whole = bed.wait_until_whole()
    after = ask_all(bed.targets, clients)
    row = {"models": len(bed.targets), **traffic.tally.row(), "busy_share": used}
    row["lost"] += after.lost
    row["wrong"] += after.ends.wrong
    row["examples"] += after.examples
    row |= summary_of_events(events) | {"whole_at_the_end": whole, "changes": churn.changes}
    row["failed_changes"] = dict(churn.failed)
    row["memory"] = summary(watch.samples)
    row["live_heap_mb"] = [heap, bed.server.live_heap_mb()]
    say(f"idle for {args.idle_s:g} s")
    row["idle_cores"] = idle_cores(bed, args.idle_s)
    return row | {"samples": {"memory": watch.samples, "faults": events}}


def busy_share(before: Any, after: Any) -> float:
    """Of all cores, between two looks at the machine's clocks."""
    spent = [b - a for a, b in zip(before, after, strict=True)]
    idle = after.idle - before.idle + after.iowait - before.iowait
    return round(1 - idle / sum(spent), 3) if sum(spent) else 0.0


def summary_of_events(events: list[Row]) -> Row:
    """How many of each, and how long until everything was back."""
    waits: dict[str, list[float]] = {}
    for each in events:
        waits.setdefault(each["fault"], []).append(each["until_ready_s"])
    return {
        "faults": dict(Counter(each["fault"] for each in events)),
        "worst_until_ready_s": {name: max(found) for name, found in waits.items()},
        "not_ready": sum(not each["ready"] for each in events),
        "problems": [each["problem"] for each in events if "problem" in each],
    }


def worst(slopes: Iterable[float]) -> float:
    """The largest of those that are known."""
    return max((each for each in slopes if not math.isnan(each)), default=math.nan)


def headline(row: Row) -> Row:
    """The claims."""
    slopes, within = row["memory"]["rss_slopes"], row["memory"]["growth_within"]
    return {
        "lost_requests": row["lost"],
        "wrong_answers": row["wrong"],
        "worst_rss_slope_mb_per_hour": worst(slopes.values()),
        **{f"{kind}_rss_slope_mb_per_hour": slope for kind, slope in slopes.items()},
        "worst_growth_mb_per_hour": worst(within.values()),
        **{f"{kind}_growth_mb_per_hour": slope for kind, slope in within.items()},
        "live_heap_growth_mb": round(row["live_heap_mb"][1] - row["live_heap_mb"][0], 1),
        "idle_cpu_share": round(sum(row["idle_cores"].values()), 4),
        "requests": row["requests"],
        "too_late": row["too_late"],
        "faults": sum(row["faults"].values()),
        "worst_until_ready_s": max(row["worst_until_ready_s"].values(), default=0.0),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = Parser(__doc__, rounds=1, quick_rounds=1)
    parser.add_argument("--minutes", type=float, help="default 60, quick 1")
    parser.add_argument("--rate", type=float, default=80, help="requests/s at most; default 80")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when")
    parser.add_argument("--idle-s", type=float, help="without requests; default 60, quick 5")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS, metavar="FAULT")
    args = parser.arguments()
    args.minutes = args.minutes or (1.0 if args.quick else 60.0)
    args.idle_s = args.idle_s or (5.0 if args.quick else 60.0)
    args.sample_s = 1.0 if args.quick else 10.0
    args.pause_s = (2.0, 5.0) if args.quick else (20.0, 40.0)
    return args


def main() -> None:
    """Run and write the result."""
    args = arguments()
    with tempfile.TemporaryDirectory() as store, tempfile.TemporaryDirectory() as weights:
        say("pack ten models")
        bed = Bed(Path(store), pack_targets(Path(store), Path(weights)))
        say("start the server")
        with bed.server:
            if not bed.wait_until_whole():
                raise RuntimeError("not all of the server came")
            say(f"{args.minutes:g} minutes")
            row = soak(bed, args)
    samples = row.pop("samples")
    top = headline(row)
    path = write_result(NAME, quick=args.quick, rows=[row], headline=top, samples=samples)
    print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
