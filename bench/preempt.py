"""How soon best-effort inference gets out of the way, what that costs it, and whether it is right.

Best-effort processes run DISB's networks on all cores, as model workers do.

kernel       How late does a thread wake up that was sent a byte at a random time: on the idle
             host, beside best effort under SCHED_IDLE, and beside best effort without control?
cooperative  A hold word is raised at a random moment of a pass: time until the pass stands still,
             in microseconds and in units of the network's longest segment. One network at a time,
             not under SCHED_IDLE, so that parking at segments is all there is.
restore      A pass that was preempted once against one that was not: what it took longer, beside
             the time for which it was held; as a share of the pass.
storm        Random holds, among them those of processes that are killed while they hold, under two
             best-effort networks at once, until 10,000 preemptions: results that are not bit for
             bit what they should be, and whether anything stands still in the end.
watchdog     Time from `kill -9` of a holder to the pass going on; and with a holder that hangs.

Examples:
    python bench/preempt.py              # all of it, about 8 minutes
    python bench/preempt.py --quick      # under two minutes
    python bench/preempt.py --only cooperative,restore
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from common import BENCH, Parser, Progress, Row, bootstrap, keep, percentile, write_result

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import Holder, claim
from shunter.batching.page.layout import HEADER_FIELDS, RunnerState
from shunter.batching.page.records import RunnerLine
from shunter.batching.page.runners import read_runners

NAME = "preempt"
NETWORKS = ("vgg19", "resnet152", "densenet201", "inception_v3", "distilbert")
PARTS = ("kernel", "cooperative", "restore", "storm", "watchdog")
HOLD_S = 0.003
"""How long one hold lasts."""
PATIENCE_S = 60.0
STORM_S = 600.0

WAITER = """
import os, sys, time
read, write = int(sys.argv[1]), int(sys.argv[2])
while (sent := os.read(read, 8)) != b"":
    late = time.monotonic_ns() - int.from_bytes(sent, "little")
    os.write(write, late.to_bytes(8, "little"))
"""
HOLDER = """
import os, sys, time
from pathlib import Path
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import claim
page = ControlPage.attach(Path(sys.argv[1]))
holder = claim(page, os.getpid(), time.monotonic_ns())
holder.hold(1, 1, time.monotonic_ns())
print("held", flush=True)
while True:
    time.sleep(0.05)
    holder.heartbeat(time.monotonic_ns())
    holder.progress(time.monotonic_ns())
"""


class Worker:
    """A best-effort process."""

    def __init__(self, page: Path, network: str, *options: str) -> None:
        """Start it and wait until it is ready."""
        threads = str(len(os.sched_getaffinity(0)))
        command = [sys.executable, str(BENCH / "preempt_worker.py"), str(page), network, threads]
        environ = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": threads}
        self._process = subprocess.Popen(
            [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
        )
        self.pid = self.answer()["ready"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, line: str) -> None:
        """Tell it what to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What it did; a RuntimeError when it says nothing for PATIENCE_S."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            raise RuntimeError("a best-effort process stands still")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a best-effort process has ended")
        return json.loads(line)


@contextmanager
def running(*workers: Worker) -> Iterator[list[Row]]:
    """While the block runs they run passes; what they did is in the list afterwards."""
    found: list[Row] = []
    for worker in workers:
        worker.ask("run")
    try:
        yield found
    finally:
        for worker in workers:
            worker.ask("")
            found.append(worker.answer())


class Bed:
    """A control page, and a holder of it."""

    def __init__(self, folder: Path) -> None:
        """As a server would make it."""
        self.path = folder / "control"
        now = time.monotonic_ns()
        self.page = ControlPage.create(
            self.path, owner_pid=os.getpid(), created_unix_ns=time.time_ns(), now_ns=now
        )
        self.holder: Holder = claim(self.page, os.getpid(), now)

    def line(self, pid: int) -> RunnerLine:
        """What a worker says."""
        return next(line for line in read_runners(self.page) if line.runner_pid == pid)

    def hold(self, slices: int) -> None:
        """Raise or lower the word."""
        self.holder.hold(slices, int(slices > 0), time.monotonic_ns())

    def until(self, condition: Callable[[], bool], fault: str) -> None:
        """Poll, beating; a RuntimeError after PATIENCE_S."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(fault)
            self.holder.heartbeat(time.monotonic_ns())
            self.holder.progress(time.monotonic_ns())
            time.sleep(0.0005)


# ---- kernel


def wake_ups(count: int, choose: random.Random) -> list[float]:
    """How late a sleeping process wakes up, in microseconds."""
    there, back = os.pipe(), os.pipe()
    command = [sys.executable, "-c", WAITER, str(there[0]), str(back[1])]
    found = []
    with subprocess.Popen(command, pass_fds=(there[0], back[1])) as process:
        os.close(there[0])
        os.close(back[1])
        for _ in range(count + 10):
            time.sleep(0.004 + 0.008 * choose.random())
            os.write(there[1], time.monotonic_ns().to_bytes(8, "little"))
            found.append(int.from_bytes(os.read(back[0], 8), "little") / 1e3)
        os.close(there[1])
        process.wait()
    os.close(back[0])
    return found[10:]


def kernel(bed: Bed, rounds: int, count: int) -> tuple[list[Row], Row]:
    """Wake-ups on the idle host, beside controlled and beside uncontrolled best effort."""
    sides: dict[str, Sequence[str] | None] = {"idle": None, "beside": ("--idle", "--open")}
    sides["uncontrolled"] = ("--open",)
    samples: dict[str, list[list[float]]] = {side: [] for side in sides}
    choose = random.Random(1)
    with ExitStack() as stack:
        workers = {
            side: [stack.enter_context(Worker(bed.path, n, *options)) for n in NETWORKS[:2]]
            for side, options in sides.items()
            if options is not None
        }
        for _ in range(rounds):
            for side in sides:
                with running(*workers.get(side, ())):
                    time.sleep(0.2)
                    samples[side].append(wake_ups(count, choose))
    rows = []
    for side, of_rounds in samples.items():
        every = [late for each in of_rounds for late in each]
        shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
        row: Row = {"part": "kernel", "side": side, "wake_ups": len(every)}
        row |= {name: percentile(every, share) for name, share in shares.items()}
        if side != "idle":
            row |= _against(of_rounds, samples["idle"])
        rows.append(row)
    beside = next(row for row in rows if row["side"] == "beside")
    return rows, {
        "kernel_p50_us": beside["p50_us"],
        "kernel_p99_vs_idle_wakeup": beside["p99_vs_idle"],
    }


def _against(ours: Sequence[list[float]], idle: Sequence[list[float]]) -> Row:
    """Ratio of p99 of all wake-ups; its interval by drawing rounds in pairs."""
    pairs = list(zip(ours, idle, strict=True))

    def ratio(drawn: Sequence[tuple[list[float], list[float]]]) -> float:
        both = [[late for pair in drawn for late in pair[side]] for side in (0, 1)]
        return percentile(both[0], 0.99) / percentile(both[1], 0.99)

    return {"p99_vs_idle": ratio(pairs), "p99_vs_idle_interval": bootstrap(pairs, of=ratio)}


# ---- cooperative


def cooperative(bed: Bed, count: int, segments_ms: Sequence[float]) -> tuple[list[Row], Row]:
    """From raised word to standing still, network by network."""
    rows = []
    for segment_ms in segments_ms:
        for network in NETWORKS:
            with Worker(bed.path, network, "--segment-ms", str(segment_ms)) as worker:
                times = yields(bed, worker, count)
                line = bed.line(worker.pid)
            in_segments = [ns / line.segment_ns for ns in times]
            rows.append(
                {
                    "part": "cooperative",
                    "network": network,
                    "wanted_segment_ms": segment_ms,
                    "segments": line.segments,
                    "longest_segment_us": line.segment_ns / 1e3,
                    "pass_ms": line.solo_ns / 1e6,
                    "preemptions": len(times),
                    "p50_us": percentile(times, 0.5) / 1e3,
                    "p99_us": percentile(times, 0.99) / 1e3,
                    "worst_us": max(times) / 1e3,
                    "p50_segments": percentile(in_segments, 0.5),
                    "p99_segments": percentile(in_segments, 0.99),
                }
            )
    first = [row for row in rows if row["wanted_segment_ms"] == segments_ms[0]]
    return rows, {"cooperative_p99_segments": max(row["p99_segments"] for row in first)}


def yields(bed: Bed, worker: Worker, count: int) -> list[int]:
    """Nanoseconds from a raised word to a parked pass."""
    choose = random.Random(2)
    found = []
    with running(worker):
        while len(found) < count:
            time.sleep(0.002 + 0.02 * choose.random())
            before = bed.line(worker.pid)
            bed.hold(1)
            bed.until(lambda: _is_parked(bed, worker), "it never stood still")
            after = bed.line(worker.pid)
            bed.hold(0)
            bed.until(lambda: not _is_parked(bed, worker), "it never went on")
            if after.yield_ns > before.yield_ns:  # else it stood still before a pass had begun
                found.append(after.yield_ns - before.yield_ns)
    return found


def _is_parked(bed: Bed, worker: Worker) -> bool:
    return bed.line(worker.pid).runner_state == RunnerState.PARKED


# ---- restore


def restore(bed: Bed, count: int) -> tuple[list[Row], Row]:
    """What one preemption adds to a pass beside the hold itself, network by network."""
    rows = []
    choose = random.Random(3)
    for network in NETWORKS:
        with Worker(bed.path, network) as worker:
            solo_s = bed.line(worker.pid).solo_ns / 1e9
            quiet, preempted = [], []
            while len(preempted) < count:
                worker.ask("pass 1")
                quiet.append(worker.answer()[0][0])
                worker.ask("pass 1")
                time.sleep(solo_s * choose.random() * 0.9)
                bed.hold(1)
                time.sleep(HOLD_S)
                bed.holder.progress(time.monotonic_ns())  # the strict work ends here
                bed.hold(0)
                total, parked, restored = worker.answer()[0]
                if parked:
                    preempted.append((total - parked + restored, restored, quiet[-1]))
        added = [spent - quiet for spent, _, quiet in preempted]
        alone = statistics.median(quiet)
        share = [each / alone for each in added]
        rows.append(
            {
                "part": "restore",
                "network": network,
                "preemptions": len(added),
                "pass_ms": alone / 1e6,
                "restore_p50_us": statistics.median(late for _, late, _ in preempted) / 1e3,
                "added_median_us": statistics.median(added) / 1e3,
                "overhead": statistics.median(share),
                "overhead_interval": bootstrap(share),
            }
        )
    return rows, {"restore_overhead": max(row["overhead"] for row in rows)}


# ---- storm


def storm(bed: Bed, wanted: int) -> tuple[list[Row], Row]:
    """Random holds until there were as many preemptions."""
    choose = random.Random(4)
    begin = time.monotonic()
    killed = 0
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(bed.path, n)) for n in ("vgg19", "distilbert")]
        with running(*workers) as done:
            while sum(bed.line(w.pid).preemptions for w in workers) < wanted:
                if time.monotonic() - begin > STORM_S:
                    raise RuntimeError(f"no {wanted} preemptions in {STORM_S:.0f} s")
                if choose.random() < 0.0005:
                    killed += 1
                    _killed_holder(bed)
                bed.hold(choose.choice((0, 1)))
                bed.holder.progress(time.monotonic_ns())
                time.sleep(choose.random() * 0.002)
            bed.hold(0)
            time.sleep(1)  # longer than a word that nobody lowers could be believed to matter
            lines = [bed.line(w.pid) for w in workers]
            standing = [_is_parked(bed, worker) for worker in workers]
    wrong = sum(each["wrong"] for each in done)
    row = {
        "part": "storm",
        "preemptions": sum(line.preemptions for line in lines),
        "killed_holders": killed,
        "passes": sum(each["done"] for each in done),
        "wrong": wrong,
        "standing_still_in_the_end": sum(standing),
        "seconds": time.monotonic() - begin,
    }
    return [row], {"wrong_answers": wrong + sum(standing)}


def _holding_process(bed: Bed) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HOLDER, str(bed.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if process.stdout.readline() != b"held\n":
        raise RuntimeError("a holder could not be started")
    return process


def _killed_holder(bed: Bed) -> None:
    process = _holding_process(bed)
    process.kill()
    process.communicate()


# ---- watchdog


def watchdog(bed: Bed, count: int) -> tuple[list[Row], Row]:
    """From the end of a holder to the end of the hold."""
    # Longer than any hold here: what ends them must be the watchdog, not the ageing of a batch.
    bed.page.words[HEADER_FIELDS["longest_park_us"].offset // 8] = 60_000_000
    found: dict[str, list[float]] = {"killed": [], "hung": []}
    with Worker(bed.path, "vgg19") as worker:
        for number in range(count + 3):
            kind = "killed" if number < count else "hung"
            with running(worker):
                process = _holding_process(bed)
                bed.until(lambda: _is_parked(bed, worker), "it never stood still")
                begin = time.monotonic()
                process.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
                bed.until(lambda: not _is_parked(bed, worker), "it never went on")
                found[kind].append((time.monotonic() - begin) * 1e3)
                process.kill()
                process.communicate()
    bed.page.words[HEADER_FIELDS["longest_park_us"].offset // 8] = 0
    rows = [
        {"part": "watchdog", "holder": kind, "p50_ms": statistics.median(v), "worst_ms": max(v)}
        for kind, v in found.items()
    ]
    return rows, {"killed_holder_worst_ms": max(found["killed"])}


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, rounds=10)
    parser.add_argument("--only", help=f"parts with commas, of {', '.join(PARTS)}")
    args = parser.arguments()
    only = args.only.split(",") if args.only else list(PARTS)
    if set(only) - set(PARTS):
        parser.error(f"--only: allowed are {', '.join(PARTS)}")
    quick = args.quick
    rows: list[Row] = []
    headline: Row = {}
    progress = Progress(len(only))
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(Path(folder))
        parts: dict[str, Callable[[], tuple[list[Row], Row]]] = {
            "kernel": lambda: kernel(bed, args.rounds, 120 if quick else 400),
            "cooperative": lambda: cooperative(
                bed, 60 if quick else 400, (1.0,) if quick else (1.0, 0.25)
            ),
            "restore": lambda: restore(bed, 25 if quick else 150),
            "storm": lambda: storm(bed, 1000 if quick else 10_000),
            "watchdog": lambda: watchdog(bed, 5 if quick else 20),
        }
        for name in only:
            progress.step(name)
            found, numbers = parts[name]()
            rows += found
            headline |= numbers
            keep(NAME, quick, rows)
            for row in found:
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    path = write_result(NAME, quick=quick, rows=rows, headline=headline)
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
