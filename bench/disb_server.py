"""The server of the DISB benchmark: its models, its schemes, and what its page says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import disb_models
import httpx
from common import BENCH, Row
from sides import Side

from shunter.batching.page.codec import decode
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import RUNNER_COUNT, RUNNER_SIZE, RUNNERS_OFFSET, Order
from shunter.batching.page.records import RunnerLine
from shunter.model_store.pack import copy_config, pack

FOLDER = BENCH / "models/disb"
SEEDS = range(4)
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Scheme:
    """How strict and best-effort work share the cores."""

    best_effort: str | None
    """Under which kind the best-effort models are registered; None: there is no such load."""
    exclusive: bool = False
    best_effort_order: str = "round_robin"
    padding: str = "auto"


SCHEMES = {
    "rt_only": Scheme(None),
    "seq": Scheme("plain", exclusive=True),
    "concurrent": Scheme("plain", best_effort_order="concurrent"),
    "shunter": Scheme("yielding"),
    "kernel": Scheme("idle"),
    "parking": Scheme("yielding", padding="never"),
}
"""``concurrent`` is this server without control, not stock TorchServe."""
KINDS: dict[str, Row] = {
    "strict": {"class": "strict", "environment": {"OMP_PROC_BIND": "true"}},
    "plain": {"class": "best_effort", "preemptible": False},
    "yielding": {"class": "best_effort", "preemptible": True},
    # SCHED_IDLE alone: nothing stands still, and there are no turns.
    "idle": {
        "class": "best_effort",
        "preemptible": False,
        "environment": {"SHUNTER_SCHED": "idle"},
    },
}
"""What a kind's ``shunter:`` section says."""


def copies(kind: str, count: int) -> list[str]:
    """A kind, and as many more like it under names of their own as make ``count``.

    >>> copies("idle", 3)
    ['idle', 'idle2', 'idle3']
    """
    return [kind, *(f"{kind}{number}" for number in range(2, count + 1))]


def register_name(model: str, kind: str) -> str:
    """The name that a model is registered by as one of ``KINDS``."""
    return f"{model}-{kind}"


def model_of(name: str) -> str:
    """The model that is registered by such a name.

    >>> model_of("inception_v3-idle2")
    'inception_v3'
    """
    return name.rpartition("-")[0]


@dataclass(frozen=True)
class Setting:
    """What all models and schemes have in common."""

    threads: int
    """Of every strict model's only worker: as many as there are cores."""
    best_effort_threads: int = 1
    """Of every best-effort model's only worker. These networks are so small that a second thread
    makes a pass little faster, or slower; several with one each do most in a given time."""
    strict_order: str = "fifo"
    """In which order strict models take turns, in every scheme; see shunter.toml."""
    environment: tuple[tuple[str, str], ...] = ()
    """Of every worker."""

    def threads_of(self, kind: str) -> int:
        """Threads of a worker of that kind."""
        return self.threads if kind == "strict" else self.best_effort_threads

    def copies(self, models: Sequence[str]) -> int:
        """How many of each best-effort model have threads for all cores, with a client each.

        >>> Setting(2).copies(["resnet152"]), Setting(2).copies(["a", "b", "c", "d", "e"])
        (2, 1)
        """
        return -(-self.threads // (self.best_effort_threads * len(models)))


def pack_model(store: Path, model: str, kind: str, setting: Setting) -> Path:
    """Archive one network; there are no batches."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "extra").mkdir()
        shutil.copy(FOLDER / "handler.py", folder)
        shutil.copy(BENCH / "disb_models.py", folder / "extra")
        shutil.copy(BENCH / "models/inception_v3/model.py", folder / "extra/inception_v3.py")
        like = KINDS[kind.rstrip("0123456789")]
        section = {"configuration": f"1x{setting.threads_of(kind)}x1", "auto": False, **like}
        section["environment"] = {**dict(setting.environment), **section.get("environment", {})}
        handler = {"network": model, **disb_models.SMALL[model]}
        changes = {"handler": handler, "shunter": section, "minWorkers": 1, "maxWorkers": 1}
        copy_config(FOLDER / "model-config.yaml", folder, changes)
        return pack(folder, store, name=register_name(model, kind))


class Bed:
    """A running server with the models of some workloads; a context manager."""

    def __init__(self, store: Path, setting: Setting) -> None:
        """Serve from ``store``, which is empty."""
        self._store, self.setting = store, setting
        self.side = Side(store, shunter=True, settings=self._settings(SCHEMES["rt_only"]))
        self._expected: dict[tuple[str, int, int], str] = {}
        self._now = SCHEMES["rt_only"]

    def __enter__(self) -> Self:
        self.side.__enter__()
        try:
            self._page = ControlPage.attach(Path(self.side.runtime()) / "control", writable=False)
        except BaseException:
            self.side.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._page.close()
        self.side.__exit__(*error)

    def register(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Models as kinds, two at a time; strict ones say what the right answers are."""
        wanted = sorted(set(wanted), key=lambda pair: pair[1] != "strict")
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(lambda pair: self._register(*pair), wanted):
                pass
        for model, kind in wanted:
            self._check_answers(model, kind)

    def _register(self, model: str, kind: str) -> None:
        archive = pack_model(self._store, model, kind, self.setting)
        query = {"url": archive.name, "model_name": archive.stem, "initial_workers": "1"}
        query["synchronous"] = "true"
        models = f"{self.side.server.management}/models"
        httpx.post(models, params=query, timeout=180).raise_for_status()

    def _check_answers(self, model: str, kind: str) -> None:
        """All kinds answer alike, and a wrong answer would be seen."""
        for seed in SEEDS:
            found = self._ask(model, kind, {"seed": seed})
            if found.status_code != 200:
                raise RuntimeError(f"{model} as {kind}: {found.status_code} {found.text[:200]}")
            # The last bits depend on the number of threads, and on nothing else.
            known = self._expected.setdefault((model, self._threads(kind), seed), found.text)
            if known != found.text:
                raise RuntimeError(f"{model} as {kind} answers otherwise than as other kinds")
        wrong = self._ask(model, kind, {"seed": 0, "expect": "0" * 16})
        if wrong.status_code != 406:
            raise RuntimeError(f"{model} as {kind}: a wrong answer was {wrong.status_code}")

    def _ask(self, model: str, kind: str, request: Mapping[str, Any]) -> httpx.Response:
        return httpx.post(self.url(model, kind), json=request, headers=JSON, timeout=60)

    def url(self, model: str, kind: str) -> str:
        """Where a model's predictions are asked for."""
        return self.side.url(register_name(model, kind))

    def bodies(self, model: str, kind: str) -> list[bytes]:
        """Requests that are answered by 406 unless the answer is right."""
        threads = self._threads(kind)
        return [
            json.dumps({"seed": seed, "expect": self._expected[model, threads, seed]}).encode()
            for seed in SEEDS
        ]

    def _threads(self, kind: str) -> int:
        return self.setting.threads_of(kind)

    def _settings(self, scheme: Scheme) -> str:
        return (
            "[preemption]\n"
            f'strict = "{self.setting.strict_order}"\n'
            f'best_effort = "{scheme.best_effort_order}"\n'
            f"exclusive = {str(scheme.exclusive).lower()}\n"
            f'padding = "{scheme.padding}"\n'
        )

    def use(self, name: str) -> None:
        """Let the server work by a scheme; returns when its page says so."""
        scheme = SCHEMES[name]
        if self._settings(scheme) != self._settings(self._now):
            settings = self._store / "shunter.toml"
            settings.write_text(self._settings(scheme), encoding="utf-8")
            os.kill(self._page.header().controller_pid, signal.SIGHUP)
            self._now = scheme
        orders = self.setting.strict_order, scheme.best_effort_order
        wanted = *(Order[order.upper()] for order in orders), int(scheme.exclusive)
        _wait(lambda: self._turns() == wanted, f"scheme {name} is not on the page")

    def _turns(self) -> tuple[int, int, int]:
        header = self._page.header()
        return header.strict_order, header.best_effort_order, header.exclusive

    def runners(self) -> dict[int, RunnerLine]:
        """What workers say of their preemption, by pid."""
        found = {}
        for index in range(RUNNER_COUNT):
            line = decode(RunnerLine, self._page.words, (RUNNERS_OFFSET + index * RUNNER_SIZE) // 8)
            if line.runner_pid:
                found[line.runner_pid] = line
        return found


def preemption(before: Mapping[int, RunnerLine], after: Mapping[int, RunnerLine]) -> Row:
    """What workers did between two moments.

    The worst yield is that since a worker's start, of those that were preempted meanwhile.
    """
    sums = dict.fromkeys(("preemptions", "parked_ns", "yield_ns", "restore_ns", "drops"), 0)
    worst = 0
    for pid, line in after.items():
        first = before.get(pid, RunnerLine())
        for name in sums:
            sums[name] += getattr(line, name) - getattr(first, name)
        if line.preemptions > first.preemptions:
            worst = max(worst, line.yield_worst_ns)
    count = sums["preemptions"]
    return {
        "preemptions": count,
        "drops": sums["drops"],
        "parked_ms": sums["parked_ns"] / 1e6,
        "yield_us_sum": sums["yield_ns"] / 1e3,
        "restore_us_sum": sums["restore_ns"] / 1e3,
        "yield_worst_us": worst / 1e3,
    }


def _wait(condition: Callable[[], bool], fault: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(fault)
        time.sleep(0.02)
