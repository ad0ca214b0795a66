"""Triton as the server under test: the same models and requests, with what it calls otherwise."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from e2e_exchange import PATIENCE_S, START_S, Answer, call, wait_until
from e2e_harness import Model, Site
from e2e_named_models import NAMED

from shunter.allocator.planning.configuration import parse_configuration
from shunter.plugins import hosts
from shunter.plugins.host import HostError
from shunter.plugins.view.page_status import COUNTERS

IN_FORCE = {
    "ahead": lambda policy, value: policy.ahead == value,
    "ageing_ms": lambda policy, value: policy.ageing_ns == value * 1_000_000,
    "mix_classes": lambda policy, value: policy.mixes == int(value),
    "threshold": lambda policy, value: policy.threshold == value,
    "admission": lambda policy, value: policy.admission == int(value),
}
KEPT = 4
"""Models that stay loaded for the next test that wants the same."""


@dataclass
class _Ports:
    inference: int


class _Server:
    def __init__(self, process: Any) -> None:
        self.process = process
        self.ports = _Ports(int(process.inference.rpartition(":")[2]))

    @property
    def log(self) -> Path:
        return Path(self.process.log)

    @property
    def pid(self) -> int:
        return int(self.process.pid)


class TritonModel(Model):
    """A model of a Triton, whose requests are bodies in a tensor."""

    LATE = FAILED = 503
    FORBIDDEN, KILLED = 400, 500
    HAS_LIMIT = tells_more = False
    is_used = is_worn = False

    @property
    def address(self) -> str:
        return f"/v2/models/{self.name}/infer"

    def wrap(self, body: Mapping[str, Any]) -> str:
        self.is_worn |= bool({"crash", "fail", "sleep_ms"} & body.keys())
        tensor = {"name": "body", "datatype": "BYTES", "shape": [1, 1], "data": [json.dumps(body)]}
        return json.dumps({"inputs": [tensor]})

    def unwrap(self, answer: Answer) -> Answer:
        if answer.status != 200:
            return replace(answer, body=json.dumps({"message": answer["error"]}).encode())
        return replace(answer, body=answer["outputs"][0]["data"][0].encode())

    @property
    def served(self) -> Any:
        return next(each for each in self.site.host.served if each.name == self.name)

    def hosted(self) -> Any:
        """What the server says now."""
        listed = self.site.host.status()["models"]
        return next(each for each in listed if each["name"] == self.name)

    def state(self) -> Any:
        """What the control page says, written after this was asked; counted since ``begin``."""
        now, page, slot = time.monotonic_ns(), self.site.host.page.page, self.served.slot.index
        wait_until("the page", lambda: page.read_telemetry(slot).updated_ns > now)
        told = next(m for m in self.site.page_status()["models"] if m["name"] == self.name)
        for words, before in zip(_counted(told), self.before, strict=True):
            words.update({key: count - before.get(key, 0) for key, count in words.items()})
        return {key: value for key, value in told.items() if key != "batches"} | {
            "batches": {size: count for size, count in told["batches"].items() if count}
        }

    def configuration(self) -> Any:
        state = self.state()
        return {key: state[key] for key in ("configuration", "auto", "state", "last_change")}

    def waiting(self) -> int:
        return int(self.hosted()["queued"])

    def pids(self) -> list[int]:
        return list(self.hosted()["pids"])

    def is_whole(self) -> bool:
        return bool(self.hosted()["ready"] == sum(g.instances for g in self.served.configuration))

    def begin_change(self, configuration: str = "") -> None:
        wanted = parse_configuration(configuration) if configuration else self.served.configuration
        host = self.site.host
        self._change = self.site.pool.submit(host.start_generation, self.name, wanted)

    def changed(self) -> Any:
        self._change.exception(PATIENCE_S)
        return self.state()

    def begin(self) -> TritonModel:
        """As if it were new: nothing has run, nothing is counted."""
        for path in (self.record, *self.slow_load.parent.glob("slow-load*")):
            path.unlink(missing_ok=True)
        self.is_used = True
        wait_until("its workers serve", self.is_whole)
        self.first_pids = set(self.pids())
        self.before: list[dict[str, int]] = [{} for _ in _counted(None)]
        self.before = [dict(words) for words in _counted(self.state())]
        return self

    def end(self) -> None:
        for gate in self._gates:
            gate.open()
        for future in self._sent:
            future.exception(PATIENCE_S)
        wait_until("nothing waits", lambda: not self.waiting())
        self.is_used = False
        if self.is_worn or set(self.pids()) != self.first_pids:
            self.site.forget(self)  # what it has learnt or lost would show in the next test


def _counted(state: Any) -> list[dict[str, int]]:
    """What only grows, of a state."""
    if state is None:
        return [{} for _ in range(len(COUNTERS) + 1)]
    return [*(state["counters"][name] for name in COUNTERS), state["batches"]]


class TritonSite(Site):
    """A Triton; its models stay for a while, since workers take their time to load."""

    name = "triton"

    def __init__(self, process: Any, archives: Any, folder: Path) -> None:
        super().__init__(_Server(process), archives, folder)
        self.host = process.host
        self._kept: dict[Any, TritonModel] = {}
        self._copies: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    @property
    def parent(self) -> int:
        return os.getpid()

    @property
    def runtime(self) -> Path:
        return Path(self.host.page.path.parent)

    def status(self) -> Any:
        return self.page_status()

    def metrics(self) -> str:
        port = int(self.server.process.addresses["metrics"].split(":")[2].split("/")[0])
        return call(port, "GET", "/metrics").text

    def is_healthy(self) -> bool:
        return self.inference("GET", "/v2/health/ready").status == 200

    def add(
        self,
        name: str = "",
        *,
        config: Mapping[str, Any] | None = None,
        handler: str = "echo",
        profile: Mapping[tuple[int, int], float] | None = None,
        batch_size: int = 1,
        max_batch_delay: int = 0,
        initial_workers: int = 1,
    ) -> TritonModel:
        config = {"batchSize": batch_size, "maxBatchDelay": max_batch_delay, **(config or {})}
        key = json.dumps([name, config, handler, initial_workers, bool(profile)])
        while key in self._kept and self._kept[key].is_used:
            key += " and another"
        if key not in self._kept:
            for idle in [each for each in self._kept.values() if not each.is_used][:-KEPT]:
                self.forget(idle)
            self._kept[key] = self._load(name, config, handler, initial_workers, profile)
        model = self._kept[key] = self._kept.pop(key)  # the one that was used last goes last
        return model.begin()

    def _load(
        self,
        name: str,
        config: dict[str, Any],
        handler: str,
        workers: int,
        profile: Mapping[tuple[int, int], float] | None,
    ) -> TritonModel:
        title = f"{name or 'm'}-{next(self._copies[name])}"
        model = TritonModel(self, title, "1.0", self.folder / title)
        section = dict(config.get("shunter", {}))
        section["environment"] = {**model.variables, **section.get("environment", {})}
        archive = self.archives.add(model.name, handler, config={**config, "shunter": section})
        if profile is not None:
            self.archives.add_profile(archive, profile)
        self.host.load(archive, model.name, workers=workers)
        wait_until("its settings are in force", lambda: self._obeys(model, NAMED.get(name)))
        return model

    def _obeys(self, model: TritonModel, settings: Mapping[str, Any] | None) -> bool:
        found = model.served.policy
        return self.commands(model) is not None and found is not None and all(
            IN_FORCE[key](found, value) for key, value in (settings or {}).items()
        )

    def forget(self, model: TritonModel) -> None:
        self._kept = {key: each for key, each in self._kept.items() if each is not model}
        with contextlib.suppress(HostError):
            self.host.unload(model.name)


@contextlib.contextmanager
def running(archives: Any, folder: Path, shunter_config: Path) -> Iterator[TritonSite]:
    """A started Triton as a site."""
    settings = {"http-header-forward-pattern": "(?i)x-shunter.*"}
    settings["shunter_config"] = str(shunter_config)
    process = hosts.process_of(
        archives.folder, [], settings=settings, folder=folder / "server", name=hosts.TRITON
    )
    own = {"SHUNTER_CORE_CLAIMS": str(folder / "cores")}  # whatever else is served on this host
    with mock.patch.dict(os.environ, own):
        yield from _started(process, archives, folder)


def _started(process: Any, archives: Any, folder: Path) -> Iterator[TritonSite]:
    process.start(START_S)
    try:
        site = TritonSite(process, archives, folder)
        try:
            yield site
        finally:
            site.pool.shutdown(cancel_futures=True)
    finally:
        process.drain(0)
