"""What every benchmark shares: the host's description, statistics, results, a packed model."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import guard
from surroundings import contaminated

BENCH = Path(__file__).resolve().parent
Row = dict[str, Any]
_began: Row = {}
"""What :func:`origin` said when the run began, before it made load of its own."""


def host() -> dict[str, Any]:
    """Describe this machine without names or paths."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
    }


def origin(tree: Path = BENCH.parent) -> Row:
    """Of which code and when a result is, and what else the machine was doing."""
    told = os.environ.get(_COMMIT)
    found = git(tree, "status", "--porcelain", "--untracked-files=no", "--", ".", *_RESULTS)
    return {
        "commit": told or git(tree, "rev-parse", "HEAD"),
        "dirty": None if told or found is None else bool(found),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }


_COMMIT = "SHUNTER_COMMIT"
"""Environment variable: the commit, on a host that has a copy without its history."""
_RESULTS = (":(exclude)bench/results",)
"""What a benchmark before this one wrote is no change of the code."""


def git(tree: Path, *arguments: str) -> str | None:
    """What git says of a tree; None where there is no git or no repository."""
    command = ["git", "-C", str(tree), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of what takes part."""
    found = {"python": platform.python_version()}
    for package in ("shunter", "torchserve", "torch", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # a GPU host need not have all
            found[package] = "absent"
    found["java"] = _first_line(["java", "-version"])
    found["wrk"] = _first_line(["wrk", "-v"])
    return found


def _first_line(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return "absent"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).strip().splitlines()[0].split("Copyright")[0].strip()


def bootstrap(
    values: Sequence[float],
    *,
    of: Callable[[Sequence[float]], float] = statistics.median,
    draws: int = 2000,
    seed: int = 1,
) -> tuple[float, float]:
    """95 % percentile-bootstrap interval of ``of`` over paired samples.

    >>> bootstrap([2.0, 2.0, 2.0])
    (2.0, 2.0)
    """
    choose = random.Random(seed)
    found = sorted(of(choose.choices(values, k=len(values))) for _ in range(draws))
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Row:
    """Median of the paired ratios with its interval; infinite where the other side had nothing.

    >>> paired_ratio([2.0, 3.0, 8.0], [1.0, 1.0, 2.0])["median"]
    3.0
    """
    ratios = [a / b if b > 0 else math.inf for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap(ratios)
    return {"median": statistics.median(ratios), "low": low, "high": high, "pairs": len(ratios)}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed; nan for none.

    >>> percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.99)
    (2, 4)
    """
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * int(share * 1_000_000) // 1_000_000))
    return ordered[rank - 1]


def slope(samples: Iterable[Row], name: str) -> float:
    """MiB per minute: the median over pairs, without the first quarter, in which caches fill.

    >>> slope([{"s": 60 * i, "all": 100 + i} for i in range(8)], "all")
    1.0
    """
    rows = list(samples)
    rows = rows[len(rows) // 4 :]
    rows = rows[:: max(1, len(rows) // 300)]
    found = [60 * (b[name] - a[name]) / (b["s"] - a["s"]) for a, b in combinations(rows, 2)]
    return round(statistics.median(found), 4) if found else float("nan")


def result_path(name: str, quick: bool) -> Path:
    """Where a result is written."""
    return BENCH / "results" / ("quick" if quick else "") / f"{name}.json"


def write_result(
    name: str, *, quick: bool, rows: list[Row], headline: Row, samples: Any = None
) -> Path:
    """Write the result, and the raw samples beside it."""
    around = guard.seen()
    reasons = contaminated(around, len(os.sched_getaffinity(0)))
    path = _place(name, quick, bool(reasons))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "name": name,
        "mode": "quick" if quick else "full",
        "origin": _began or origin(),
        "surroundings": around | {"contaminated": reasons},
        "host": host(),
        "versions": versions(),
        "rows": rows,
        "headline": headline,
    }
    path.write_text(json.dumps(_finite(content), indent=1) + "\n", encoding="utf-8")
    if samples is not None:
        raw = path.with_suffix(".samples.json")
        raw.write_text(json.dumps(_finite(samples)) + "\n", encoding="utf-8")
    path.with_suffix(".partial.json").unlink(missing_ok=True)
    return path


def _place(name: str, quick: bool, is_contaminated: bool) -> Path:
    """Where it is written: a run beside other work does not take the place of a clean one; it does
    of one that does not say whether it was."""
    path = result_path(name, quick)
    if quick or not is_contaminated or not path.exists():
        return path
    before = json.loads(path.read_text(encoding="utf-8")).get("surroundings")
    if before is None or before["contaminated"]:
        return path
    aside = path.with_suffix(".contaminated.json")
    print(f"this run was not alone on the machine: it is written to {aside}", file=sys.stderr)
    return aside


def committed_samples(name: str) -> list[Row]:
    """Raw samples of the last full run; none when there was none."""
    path = result_path(name, quick=False).with_suffix(".samples.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def committed_rows(name: str) -> list[Row]:
    """Rows of the last full run; none when there was none."""
    path = result_path(name, quick=False)
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def keep(name: str, quick: bool, what: Any) -> None:
    """Note what was measured so far, so that an interrupted run is not lost."""
    path = result_path(name, quick).with_suffix(".partial.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_finite(what)) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """The same with texts for what JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Progress:
    """A line on standard error with the share done and the time left."""

    def __init__(self, total: int) -> None:
        """Expect ``total`` steps."""
        self._total, self._done, self._start = total, 0, time.monotonic()

    def step(self, text: str) -> None:
        """One step is about to begin."""
        left = ""
        if self._done:
            seconds = (time.monotonic() - self._start) / self._done * (self._total - self._done)
            left = f", {seconds / 60:.1f} min left"
        print(f"[{self._done}/{self._total}{left}] {text}", file=sys.stderr, flush=True)
        self._done += 1


class Parser(argparse.ArgumentParser):
    """The command line of a benchmark: its docstring as help, --quick, --rounds."""

    def __init__(self, doc: str | None, *, rounds: int = 7, quick_rounds: int = 3) -> None:
        """``rounds`` are made unless the user says how many, or wants it quick."""
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._rounds = rounds, quick_rounds
        self.add_argument("--quick", action="store_true", help="under two minutes")
        self.add_argument("--rounds", type=int, help=f"default {rounds}, quick {quick_rounds}")

    def arguments(self) -> argparse.Namespace:
        """What the user said. From now on no end of this process leaves a server behind."""
        given = self.parse_args()
        guard.install()
        _began.update(origin())
        given.rounds = given.rounds or self._rounds[given.quick]
        return given


def make_stores(folder: str, *names: str) -> list[Path]:
    """Empty model stores in a scratch folder."""
    stores = [Path(folder) / name for name in names]
    for store in stores:
        store.mkdir()
    return stores


def pack_sums(store: Path) -> str:
    """Archive the trivial model into ``store`` as it would be by hand; return the file's name."""
    command = ["torch-model-archiver", "--model-name", "sums", "--version", "1.0", "--force"]
    command += ["--handler", str(BENCH / "models/sums/handler.py"), "--export-path", str(store)]
    beside = Path(sys.executable).with_name(command[0])
    if beside.exists():
        command[0] = str(beside)
    store.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True, capture_output=True, cwd=store)
    return "sums.mar"
