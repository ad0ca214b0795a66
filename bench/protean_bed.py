"""The server of the benchmark of strict and best effort: three models under one sharing scheme."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import disb_models
import httpx
import load
from common import BENCH, Row
from sides import BODIES, PHOTOGRAPHS, Side, closed_loop

from shunter.model_store.minilm.archive import pack_minilm
from shunter.model_store.pack import copy_config, pack
from shunter.model_store.resnet50.archive import pack_resnet50
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
    profiled: bool = field(default=False)


FAT = {"class": "strict", "auto": False, "configuration": "1x2x{batch}"}
SCHEMES = {
    # One batch at a time on all cores, by arrival, whoever's it is.
    "time_sharing": Scheme(FAT, FAT, '[preemption]\nstrict = "fifo"\n'),
    # Everybody on all cores, and the kernel shares them out.
    "uncontrolled": Scheme(FAT, FAT),
    "static": Scheme(
        {**FAT, "configuration": "1x1x{batch}", "cores": "0"},
        {**FAT, "configuration": "1x1x{batch}", "cores": "1", "class": "best_effort"}
        | {"preemptible": False},
    ),
    # Instances, threads and batches follow the load, and best effort gives way.
    "preemption": Scheme(
        {"class": "strict"},
        {"class": "best_effort"},
        "[configuration]\ntimeout_s = 3\n[placement]\nauto = false\n",
        profiled=True,
    ),
    "shunter": Scheme(
        {"class": "strict"},
        {"class": "best_effort"},
        "[configuration]\ntimeout_s = 3\n[placement]\ninterval_s = 2\n",
        profiled=True,
    ),
}


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

    def __init__(self, store: Path, scheme: Scheme, profiles: Path | None = None) -> None:
        """Serve from the empty folder ``store``; ``profiles``: folder of those of the models."""
        self._scheme, self._profiles = scheme, profiles
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
        section = self._scheme.strict if model == STRICT else self._scheme.best_effort
        archive = pack_model(self.store, model, section)
        if self._scheme.profiled and self._profiles is not None:
            shutil.copy(self._profiles / f"{model}.profile.json", profile_path(archive))
        query = {"url": archive.name, "model_name": model, "initial_workers": "1"}
        query["synchronous"] = "true"
        models = f"{self.side.server.management}/models"
        httpx.post(models, params=query, timeout=180).raise_for_status()

    def places(self) -> dict[str, str]:
        """Of each model its configuration, and where its groups are."""
        found = {}
        for model in MODELS:
            status = self.side.status(model)
            groups = [f"{g['configuration']}@{g.get('cores') or 'any'}" for g in status["groups"]]
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


def settled(bed: Bed, quiet_s: float, longest_s: float) -> dict[str, str]:
    """Wait until no placement has changed for so long; what it is then."""
    end = time.monotonic() + longest_s
    seen, since = bed.places(), time.monotonic()
    while time.monotonic() < min(end, since + quiet_s):
        time.sleep(0.5)
        if (now := bed.places()) != seen:
            seen, since = now, time.monotonic()
    return seen


def as_text(places: Mapping[str, str]) -> str:
    """One line."""
    return json.dumps(places)
