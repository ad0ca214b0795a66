"""Requests lost, and layouts left half done, while MIG instances are changed and everything fails.

A real server; its models run on CPUs, on workers that are seated on *simulated* MIG instances: a
simulated NVML beneath the unmodified pynvml, its state in a file. The controller changes layouts as
it would on real GPUs: seats are left, instances destroyed and created, everybody comes back. In a
part of all changes calls of NVML fail, at random places and with random errors, some of them so
often that undoing fails too; in another part the controller is killed (-9), at a call of NVML or at
any moment. Meanwhile requests flow, and every answer is checked.

A layout is bad when after a change it is neither the wanted one nor the one of before, or when an
instance of it is no whole MIG device.

Examples:
    python bench/mig_faults.py            # 200 changes, about half an hour
    python bench/mig_faults.py --quick    # 20 changes
    python bench/mig_faults.py --changes 50 --seed 7
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from checked_load import CheckedLoad
from common import BENCH, Parser, Progress, Row, keep, percentile, write_result

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import Layout, layouts, plain, text_of
from shunter.allocator.devices.inventory import take_stock
from shunter.allocator.devices.journal import Journal, Phase
from shunter.allocator.devices.simulated.library import CHANGES, SimulatedLibrary, installed
from shunter.allocator.devices.simulated.state import Fault, State
from shunter.allocator.devices.simulated.store import Store
from shunter.allocator.devices.standing import number_of
from shunter.batching.page.control_page import ControlPage
from shunter.model_store.pack import pack
from shunter.plugins.torchserve.build import ensure
from shunter.plugins.torchserve.server import Server

NAME = "mig_faults"
GPUS = ("a100-40gb", "a100-40gb")
MODELS = {"strict": "strict", "bulk": "best_effort", "more": "best_effort"}
"""And their classes: best effort stands still for strict work on its instance."""
SLO_MS = 30_000
PATIENCE_S = 240.0
CODES = (2, 4, 6, 19, 20, 23, 27, 999)
"""What NVML answers where a fault is."""
READS = (
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo",
)


class Bed:
    """The server, its simulated GPUs, and what is wanted of them."""

    def __init__(self, folder: Path, choose: random.Random, quiet: bool = True) -> None:
        self.folder, self.choose, self.quiet = folder, choose, quiet
        self.store = Store(folder / "gpus.json", State.of(GPUS))
        self.settings, self.journals = folder / "shunter.toml", folder / "state"
        self.wanted = ["4g,3g", "4g,2g,1g"]
        self.write()

    def server(self) -> Server:
        """With one archive for each model."""
        store = self.folder / "store"
        for name, of_class in MODELS.items():
            self._pack(name, of_class, store)
        paths = [str(BENCH / "models/simulated_gpus"), os.environ.get("PYTHONPATH", "")]
        return Server(
            model_store=store,
            models=[f"{name}={name}.mar" for name in MODELS],
            plugins=ensure(),
            folder=self.folder / "server",
            quiet=self.quiet,
            config={"job_queue_size": "2000"},
            env={
                "BENCH_SIMULATED_GPUS": str(self.store.path),
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                "SHUNTER_CONFIG": str(self.settings),
                "SHUNTER_STATE_DIR": str(self.journals),
            },
        )

    def _pack(self, name: str, of_class: str, store: Path) -> None:
        source = self.folder / name
        source.mkdir()
        shutil.copy(BENCH / "models/sums/handler.py", source)
        section: Row = {"class": of_class}
        if of_class == "strict":
            section["slo_ms"] = SLO_MS
        config = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 8, "maxBatchDelay": 2}
        text = json.dumps({**config, "shunter": section})  # JSON is YAML
        (source / "model-config.yaml").write_text(text, "utf-8")
        pack(source, store, weights_needed=False)

    def write(self) -> None:
        """Let the settings say what is wanted; they are replaced as a whole."""
        lists = {"layouts": self.wanted, "models": list(MODELS)}
        lines = ["[controller]", "interval_ms = 50", "[mig]", "patience_s = 60"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in lists.items()]
        new = self.settings.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", "utf-8")
        new.replace(self.settings)

    def layouts(self) -> list[tuple[Layout, bool]]:
        """Of every GPU the layout that is there, and whether each instance is a whole device."""
        found = take_stock()
        return [(each.layout, all(i.is_whole for i in each.instances)) for each in found]

    def next(self) -> list[Layout]:
        """Other layouts than those of now: of one GPU or of both."""
        there = [layout for layout, _ in self.layouts()]
        profiles = take_stock()[0].profiles
        every = [each for each in layouts(plain(profiles)) if len(each) <= 4]
        wanted = list(there)
        while wanted == there:
            which = self.choose.choice([[0], [1], [0, 1]])
            for index in which:
                wanted[index] = self.choose.choice(every)
        self.wanted = [text_of(each, profiles) for each in wanted]
        return wanted

    def faults(self) -> list[Fault]:
        """What goes wrong this time: often nothing, at times so much that undoing fails too."""
        choose, kind = self.choose, self.choose.random()
        if kind < 0.35:
            return []
        if kind < 0.45:
            return [Fault("", 0, skip=choose.randrange(6), done=choose.random() < 0.5, kill=True)]
        calls = ("", *sorted(CHANGES), *READS)
        return [
            Fault(
                choose.choice(calls),
                choose.choice(CODES),
                skip=choose.randrange(8),
                times=choose.choice((1, 1, 1, 2, 3, 8)),
                done=choose.random() < 0.3,
            )
            for _ in range(choose.choice((1, 1, 2)))
        ]


def wait_for(what: str, is_there: Callable[[], bool]) -> None:
    """Until it is so; raises RuntimeError when that takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.05)


class Run:
    """Changes of layouts on a running server."""

    def __init__(self, bed: Bed, server: Server) -> None:
        self.bed, self.server = bed, server
        self.runtime = Path(self.status()["runtime"])
        self.kills = 0

    def status(self) -> Any:
        return httpx.get(f"{self.server.management}/shunter/status", timeout=30).json()

    def controller(self) -> int:
        """Its pid; it may be a while until there is one again."""
        wait_for("a controller", lambda: self.header().controller_pid > 0 and self._lives())
        return int(self.header().controller_pid)

    def _lives(self) -> bool:
        return Path(f"/proc/{self.header().controller_pid}").exists()

    def header(self) -> Any:
        with ControlPage.attach(self.runtime / "control", writable=False) as page:
            return page.header()

    def tell(self) -> int:
        """Let the controller read what is wanted; one that is killed meanwhile reads it anew."""
        self.bed.write()
        pid = self.controller()
        try:
            os.kill(pid, signal.SIGHUP)
        except ProcessLookupError:
            pid = 0
        return pid

    def settled(self, number: int) -> bool:
        """Whether the wanted layouts were carried out or given up, and nothing is half done."""
        header = self.header()
        if header.mig_done != number or header.mig_changing or not self._lives():
            return False
        try:
            gpus = take_stock()
        except DeviceError:  # a fault that was meant for the controller
            return False
        records = [Journal(self.bed.journals / "devices", gpu.uuid).read() for gpu in gpus]
        return all(each is None or each.phase is Phase.SETTLED for each in records)

    def change(self, number: int) -> Row:
        """One change with whatever goes wrong, and what became of it."""
        bed, choose, began = self.bed, self.bed.choose, time.monotonic()
        before, wanted = [layout for layout, _ in bed.layouts()], bed.next()
        faults, was = bed.faults(), self.header()
        with bed.store.change() as state:
            state.faults[:] = faults
        pid = self.tell()
        killed = False
        if not faults and choose.random() < 0.3 and pid:
            time.sleep(choose.uniform(0, 3))
            killed = _kill(pid)
        number_wanted = number_of(bed.wanted)
        wait_for(f"change {number}", lambda: self.settled(number_wanted))
        with bed.store.change() as state:
            killed |= any(each.kill and not each.times for each in state.faults)
            state.faults.clear()
        self.kills += killed
        after = bed.layouts()
        bad = sum(
            not whole or layout not in (old, new)
            for (layout, whole), old, new in zip(after, before, wanted, strict=True)
        )
        now = self.header()
        return {
            "change": number,
            "wanted": bed.wanted,
            "faults": [f"{each.call or 'any'} {each.code} x{each.times}" for each in faults],
            "killed": killed,
            "reached": [layout for layout, _ in after] == wanted,
            "undone": now.mig_undone - was.mig_undone if not killed else None,
            "problem": now.mig_problem,
            "bad_geometries": bad,
            "seconds": round(time.monotonic() - began, 2),
        }

    def seated(self) -> bool:
        """Whether every model serves on an instance that is there."""
        there = {part.uuid for gpu in take_stock() for i in gpu.instances for part in i.parts}
        models = self.status()["models"]
        devices = [group["device"] for each in models for group in each["groups"]]
        return bool(devices) and all(each in there for each in devices)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def run(args: argparse.Namespace, folder: Path) -> tuple[list[Row], Row]:
    """All changes under load."""
    choose = random.Random(args.seed)
    bed = Bed(folder, choose, quiet=args.folder is None)
    progress, rows = Progress(args.changes), []
    with installed(SimulatedLibrary(bed.store)), bed.server() as server:
        session = Run(bed, server)
        wait_for("the first layout", lambda: session.settled(number_of(bed.wanted)))
        wait_for("everybody's seat", session.seated)
        with CheckedLoad(server.ports.inference, list(MODELS), args.rate) as load:
            for number in range(args.changes):
                progress.step(f"{load.lost} lost of {load.sent}")
                rows.append(session.change(number))
                if not args.no_write:
                    keep(NAME, args.quick, rows)
            with bed.store.change() as state:
                state.faults.clear()
            wait_for("everybody's seat at the end", session.seated)
        headline = {
            "reconfigurations": len(rows),
            "lost_requests": load.lost,
            "bad_geometries": sum(row["bad_geometries"] for row in rows),
            "requests": load.sent,
            "reached": sum(row["reached"] for row in rows),
            "with_faults": sum(bool(row["faults"]) for row in rows),
            "controller_kills": session.kills,
            "p99_ms": round(percentile(load.latencies_ms, 0.99), 1),
        }
        rows.append({"answers": dict(Counter(load.outcomes)), "simulated": True})
    return rows, headline


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__, rounds=1, quick_rounds=1)
    parser.add_argument("--changes", type=int, help="default 200, 20 with --quick")
    parser.add_argument("--rate", type=float, default=60, help="requests/s, default 60")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the GPUs and the server's log there")
    parser.add_argument("--no-write", action="store_true", help="only print")
    args = parser.arguments()
    args.changes = args.changes or (20 if args.quick else 200)
    with tempfile.TemporaryDirectory() as folder:
        rows, headline = run(args, args.folder or Path(folder))
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(headline))
    if not args.no_write:
        print(write_result(NAME, quick=args.quick, rows=rows, headline=headline).name)


if __name__ == "__main__":
    main()
