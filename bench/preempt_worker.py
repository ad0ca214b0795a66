"""A best-effort process of the preemption benchmark: passes of one network, through the gate.

``python bench/preempt_worker.py PAGE NETWORK THREADS [--idle] [--open] [--segment-ms MS]``

Prints a line when it is ready, then obeys lines on standard input: ``pass N`` runs N passes and
prints ``[total_ns, parked_ns, restore_ns]`` of each, ``run`` runs passes until the next line and
prints how many there were and how many gave another result than the first.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import torch

from shunter.batching.page import runners
from shunter.batching.page.control_page import ControlPage
from shunter.handlers.preemption.gate import EVERY_SLOT, Gate, WorkerPlace
from shunter.handlers.preemption.preemptible import PASSES, Preemptible


def arguments() -> argparse.Namespace:
    """What the benchmark wants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("network")
    parser.add_argument("threads", type=int)
    parser.add_argument("--idle", action="store_true", help="under SCHED_IDLE")
    parser.add_argument("--open", action="store_true", help="runs beside all strict work")
    parser.add_argument("--segment-ms", type=float, default=1.0)
    return parser.parse_args()


class Work:
    """Passes of a network whose result is known."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Build it, let it be measured and cut, keep its result."""
        from disb_models import SMALL, build

        page = ControlPage.attach(args.page)
        self.runner = runners.claim(page, os.getpid(), time.monotonic_ns())
        beside = EVERY_SLOT if args.open else 0
        self.gate = Gate(page, self.runner, WorkerPlace(0, 1), beside=beside)
        self.network, self.example = build(args.network, **SMALL[args.network])
        self.expected = self.network(self.example).clone()
        part = Preemptible(
            self.network,
            self.gate.check,
            target_ns=int(args.segment_ms * 1e6),
            runner=self.runner,
        )
        self._pass = self.gate.guard(lambda: self.network(self.example), lambda: tuple)
        for _ in range(2 * PASSES):
            self._pass()
        if part.cut is None:
            raise SystemExit(f"{args.network} could not be cut")

    def timed(self) -> tuple[int, int, int]:
        """One pass: its time, how long of it it stood still, and how late it went on."""
        names = "parked_ns", "restore_ns"
        before = [self.runner.get(name) for name in names]
        begin = time.monotonic_ns()
        self._pass()
        total = time.monotonic_ns() - begin
        parked, restored = (self.runner.get(n) - b for n, b in zip(names, before, strict=True))
        return total, parked, restored

    def until_told(self) -> dict[str, Any]:
        """Passes until a line comes."""
        done = wrong = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            wrong += not torch.equal(self._pass(), self.expected)
            done += 1
        return {"done": done, "wrong": wrong}


def main() -> None:
    """Serve the benchmark until its end of standard input is closed."""
    args = arguments()
    if args.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        work = Work(args)
        print(json.dumps({"ready": os.getpid()}), flush=True)
        for line in sys.stdin:
            match line.split():
                case ["pass", count]:
                    print(json.dumps([work.timed() for _ in range(int(count))]), flush=True)
                case ["run"]:
                    print(json.dumps(work.until_told()), flush=True)


if __name__ == "__main__":
    main()
