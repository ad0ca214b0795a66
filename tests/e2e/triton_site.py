"""Triton as the server under test: the same models and requests, with what it calls otherwise."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e_exchange import PATIENCE_S, START_S, Answer, wait_until
from e2e_harness import Model, Site

from shunter.plugins import hosts
from shunter.plugins.host import HostError

SETTINGS: dict[str, dict[str, Any]] = {
    "ordered": {"ahead": 0, "ageing_ms": 0},
    "ageing": {"ahead": 0, "ageing_ms": 300},
    "ageing-ahead": {"ageing_ms": 300},
    "mixing": {"ahead": 0, "mix_classes": True},
}
"""What the settings of the other server say of models by their names."""
IN_FORCE = {
    "ahead": lambda policy, value: policy.ahead == value,
    "ageing_ms": lambda policy, value: policy.ageing_ns == value * 1_000_000,
    "mix_classes": lambda policy, value: policy.mixes == int(value),
}
MOST_MODELS = 60
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

    LATE = 503
    tells_more = False
    key: Any = None

    @property
    def address(self) -> str:
        return f"/v2/models/{self.name}/infer"

    def wrap(self, body: Mapping[str, Any]) -> str:
        tensor = {"name": "body", "datatype": "BYTES", "shape": [1, 1], "data": [json.dumps(body)]}
        return json.dumps({"inputs": [tensor]})

    def unwrap(self, answer: Answer) -> Answer:
        if answer.status != 200:
            return replace(answer, body=json.dumps({"message": answer["error"]}).encode())
        return replace(answer, body=answer["outputs"][0]["data"][0].encode())

    def state(self) -> Any:
        listed = self.site.host.status()["models"]
        return next(each for each in listed if each["name"] == self.name)

    def waiting(self) -> int:
        return int(self.state()["queued"])

    def count(self, counter: str) -> int:
        return int(self.state()[counter]) - self.before[counter]

    def pids(self) -> list[int]:
        return list(self.state()["pids"])

    def is_whole(self) -> bool:
        """Whether all its workers serve."""
        return bool(self.state()["ready"] == self.workers)

    def begin(self) -> TritonModel:
        """As if it were new: nothing has run, nothing is counted."""
        self.record.unlink(missing_ok=True)
        wait_until("its workers serve", self.is_whole)
        state = self.state()
        self.before = {key: value for key, value in state.items() if isinstance(value, int)}
        return self

    def end(self) -> None:
        for gate in self._gates:
            gate.open()
        for future in self._sent:
            future.exception(PATIENCE_S)
        wait_until("nothing waits", lambda: not self.waiting())


class TritonSite(Site):
    """A Triton; its models stay for a while, since workers take their time to load."""

    name = "triton"

    def __init__(self, process: Any, archives: Any, folder: Path) -> None:
        super().__init__(_Server(process), archives, folder)
        self.host = process.host
        self._kept: dict[Any, TritonModel] = {}

    def add(
        self,
        name: str = "",
        *,
        config: Mapping[str, Any] | None = None,
        handler: str = "echo",
        batch_size: int = 1,
        max_batch_delay: int = 0,
        initial_workers: int = 1,
    ) -> TritonModel:
        config = {"batchSize": batch_size, "maxBatchDelay": max_batch_delay, **(config or {})}
        key = json.dumps([name, config, handler, initial_workers])
        if key not in self._kept:
            while len(self._kept) >= KEPT:
                self._forget(next(iter(self._kept)))
            self._kept[key] = self._load(name, config, handler, initial_workers)
        model = self._kept[key] = self._kept.pop(key)  # the one that was used last goes last
        return model.begin()

    def _load(
        self, name: str, config: dict[str, Any], handler: str, workers: int
    ) -> TritonModel:
        number = next(self._models)
        model = TritonModel(self, f"{name or 'm'}-{number}", "1.0", self.folder / str(number))
        section = dict(config.get("shunter", {}))
        section["environment"] = {"ECHO_RECORD": str(model.record)}
        archive = self.archives.add(model.name, handler, config={**config, "shunter": section})
        self.host.load(archive, model.name, workers=workers)
        wait_until("its settings are in force", lambda: self._obeys(model.name, SETTINGS.get(name)))
        model.workers = workers
        return model

    def _obeys(self, name: str, settings: Mapping[str, Any] | None) -> bool:
        [served] = [each for each in self.host.served if each.name == name]
        found = served.policy
        return found is not None and all(
            IN_FORCE[key](found, value) for key, value in (settings or {}).items()
        )

    def _forget(self, key: Any) -> None:
        with contextlib.suppress(HostError):
            self.host.unload(self._kept.pop(key).name)


def settings_text() -> str:
    """For the names that models will have."""
    lines = ["[preemption]", "max_hold_ms = 5000"]
    for name, settings in SETTINGS.items():
        for number in range(MOST_MODELS):
            lines.append(f"[models.{name}-{number}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def running(archives: Any, folder: Path) -> Iterator[TritonSite]:
    """A started Triton as a site."""
    settings = {"http-header-forward-pattern": "(?i)x-shunter.*"}
    settings["shunter_config"] = str(folder / "shunter.toml")
    Path(settings["shunter_config"]).write_text(settings_text())
    process = hosts.process_of(
        archives.folder, [], settings=settings, folder=folder / "server", name=hosts.TRITON
    )
    process.start(START_S)
    try:
        site = TritonSite(process, archives, folder)
        try:
            yield site
        finally:
            site.pool.shutdown(cancel_futures=True)
    finally:
        process.drain(0)
