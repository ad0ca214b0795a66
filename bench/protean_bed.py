"""The server of the strict/best-effort benchmark: three models under one scheme of sharing."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import disb_models
import httpx
import load
from common import BENCH, Row
from sides import BODIES, PHOTOGRAPHS, Side, closed_loop

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.measurement import Effort
from shunter.allocator.planning.profile import Profile
from shunter.model_store.minilm.archive import pack_minilm
from shunter.model_store.pack import copy_config, pack
from shunter.model_store.resnet50.archive import pack_resnet50
from shunter.plugins.hosts import runtime_of
from shunter.plugins.profiling.bandwidth import add_bandwidth
from shunter.plugins.profiling.profiler import Task, run
from shunter.plugins.profiling.profiles import profile_path

DISB = BENCH / "models/disb"
NETWORK = "densenet201"
STRICT = "minilm"
BEST_EFFORT = ("resnet50", NETWORK)
MODELS = (STRICT, *BEST_EFFORT)
BATCH = {STRICT: 16, "resnet50": 8, NETWORK: 4}
QUEUE = {STRICT: 1000, "resnet50": 16, NETWORK: 16}
"""Requests that may wait: best effort is offered more than there is room for, and refused then."""
SAMPLES = {STRICT: "sample.txt", "resnet50": "sample.jpg", NETWORK: "sample.json"}
REQUESTS: dict[str, Row] = {
    STRICT: {"bodies": BODIES},
    "resnet50": PHOTOGRAPHS.requests,
    NETWORK: {"bodies": [b'{"seed": 0}', b'{"seed": 1}']},
}


@dataclass(frozen=True)
class Scheme:
    """How the models share the cores."""

    strict: Row
    """What the ``shunter:`` section of the strict model says."""
    best_effort: Row
    """Of the others."""
    settings: str = ""
    """shunter.toml."""
    profiled: bool = False
    deadlines: bool = True
    """Whether the server knows of the SLO, and does not run what is too late."""


SETTINGS = """
[configuration]
timeout_s = 2
[placement]
auto = {placed}
interval_s = 1
"""
FAT = {"class": "strict", "auto": False, "configuration": "1x2x{batch}"}
SCHEMES = {
    # One batch at a time on all cores, by arrival, whoever's it is.
    "time_sharing": Scheme(FAT, FAT, '[preemption]\nstrict = "fifo"\n', deadlines=False),
    # Everybody on all cores, and the kernel shares them out.
    "uncontrolled": Scheme(FAT, FAT, deadlines=False),
    "static": Scheme(
        {**FAT, "configuration": "1x1x{batch}", "cores": "0"},
        {**FAT, "configuration": "1x1x{batch}", "cores": "1", "class": "best_effort"}
        | {"preemptible": False},
    ),
    # Instances, threads and batches follow the load, and best effort gives way.
    "preemption": Scheme(
        {"class": "strict", "auto": True},
        {"class": "best_effort", "auto": True},
        SETTINGS.format(placed="false"),
        profiled=True,
    ),
    "shunter": Scheme(
        {"class": "strict", "auto": True},
        {"class": "best_effort", "auto": True},
        SETTINGS.format(placed="true"),
        profiled=True,
    ),
}


def section_of(scheme: Scheme, model: str, slo_ms: float) -> Row:
    """What the ``shunter:`` section of a model says, but for its sample."""
    if model != STRICT:
        return dict(scheme.best_effort)
    return {**scheme.strict, **({"slo_ms": slo_ms} if scheme.deadlines else {})}


def profile_models(folder: Path, slo_ms: float, seconds: float) -> dict[str, Profile]:
    """Measure all models by threads and batch; the profiles lie in ``folder``."""
    found, topology = {}, read_topology()
    for model in MODELS:
        archive = pack_model(folder, model, section_of(SCHEMES["shunter"], model, slo_ms))
        effort = Effort(precision=0.05, seconds=seconds)
        task = Task(archive, (), topology.cores, BATCH[model], runtime_of(), effort=effort)
        print(f"profile of {model}", file=sys.stderr, flush=True)
        run(task, profile_path(archive), topology)
        found[model] = add_bandwidth(task, profile_path(archive), topology)
    return found


def pack_model(store: Path, model: str, section: Mapping[str, Any]) -> Path:
    """Archive a model; ``section`` is its ``shunter:`` section, but for its sample."""
    batch = BATCH[model]
    said = {"configuration": "1x2x{batch}", "sample": SAMPLES[model], **section}
    said["configuration"] = said["configuration"].format(batch=batch)
    config = {"batchSize": batch, "maxBatchDelay": 1, "minWorkers": 1, "maxWorkers": 1}
    config |= {"jobQueueSize": QUEUE[model], "shunter": said}
    if model == STRICT:
        return pack_minilm(store, config=config)
    if model == "resnet50":
        return pack_resnet50(store, config=config)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "extra").mkdir()
        shutil.copy(DISB / "handler.py", folder)
        shutil.copy(BENCH / "disb_models.py", folder / "extra")
        (folder / "extra/sample.json").write_bytes(REQUESTS[model]["bodies"][0])
        handler = {"network": NETWORK, **disb_models.SMALL[NETWORK]}
        copy_config(DISB / "model-config.yaml", folder, {**config, "handler": handler})
        return pack(folder, store, name=model)


class Bed:
    """A running server under a scheme; a context manager."""

    def __init__(self, store: Path, scheme: Scheme, slo_ms: float, profiles: Path) -> None:
        """Serve from the empty folder ``store``; ``profiles``: folder of those of the models."""
        self._scheme, self._slo_ms, self._profiles = scheme, slo_ms, profiles
        store.mkdir(exist_ok=True)
        self.store = store
        self.side = Side(store, shunter=True, settings=scheme.settings)

    def __enter__(self) -> Self:
        self.side.__enter__()
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(self._register, MODELS))
            for model in MODELS:
                closed_loop(self.side.url(model), 4, 1.5, **REQUESTS[model])
        except BaseException:
            self.side.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.side.__exit__(*error)

    def _register(self, model: str) -> None:
        archive = pack_model(self.store, model, section_of(self._scheme, model, self._slo_ms))
        if self._scheme.profiled:
            shutil.copy(self._profiles / f"{model}.profile.json", profile_path(archive))
        query = {"url": archive.name, "model_name": model, "initial_workers": "1"}
        query["synchronous"] = "true"
        models = f"{self.side.server.management}/models"
        answer = httpx.post(models, params=query, timeout=180)
        if answer.status_code != 200:
            raise RuntimeError(f"{model}: {answer.status_code} {answer.text[:300]}")

    def places(self) -> dict[str, str]:
        """Of each model its configuration, and where its groups are."""
        found = {}
        for model in MODELS:
            status = self.side.status(model)
            groups = [
                f"{g['instances']}x{g['threads']}x{g['batch']}@{g['cores'] or 'any'}"
                for g in status["groups"]
            ]
            found[model] = " ".join(groups)
        return found

    def alone_ms(self, seconds: float = 4.0) -> float:
        """Median latency of the strict model's requests when nothing else runs."""
        arrivals = {"kind": "poisson", "rate": 10.0, "seconds": seconds, "seed": 1}
        one = load.Stream("alone", self.side.url(STRICT), arrivals, bodies=BODIES)
        return float(load.run(load.Spec([one], timeout_s=10, warmup_s=1))["alone"]["p50_ms"])

    def streams(self, rates: Mapping[str, Any], seconds: float, seed: int, slo_ms: float) -> Any:
        """Open-loop streams of all models; a rate may be levels of ⟨rate, seconds⟩."""
        found = []
        for number, (model, rate) in enumerate(rates.items()):
            if isinstance(rate, int | float):
                arrivals = {"kind": "poisson", "rate": rate, "seconds": seconds}
            else:
                arrivals = {"kind": "steps", "levels": rate}
            arrivals["seed"] = seed * 10 + number
            url, of = self.side.url(model), REQUESTS[model]
            slo = slo_ms if model == STRICT else None
            found.append(load.Stream(model, url, arrivals, slo_ms=slo, **of))
        return found
