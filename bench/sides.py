"""One TorchServe with a sample model registered in several settings, for benchmarks."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import load
import numpy as np
import psutil
from common import pack_sums

from shunter.model_store.minilm.archive import pack_minilm
from shunter.model_store.resnet50.archive import pack_resnet50
from shunter.model_store.resnet50.archive import sample as photograph
from shunter.plugins.control.settings import load as load_settings
from shunter.plugins.profiling.profiles import profile_path
from shunter.plugins.torchserve.build import ensure
from shunter.plugins.torchserve.server import Server

SLO_MS = 100.0
_WORDS = """
    the a this that every some river house engine train music letter doctor student garden
    window market teacher morning winter bridge cloud paper question answer city village mountain
    walks reads writes opens closes finds loses builds paints carries follows watches remembers
    slowly quickly quietly often never always under over behind beside before after without with
    red green old young bright heavy early late small large and but because while in on at to of
""".split()  # noqa: SIM905 - a text of words reads better than a list of them


def sentences(count: int = 256, seed: int = 7) -> list[str]:
    """Texts of 6 to 18 words, always the same."""
    choose = random.Random(seed)
    return [" ".join(choose.choices(_WORDS, k=choose.randint(6, 18))) for _ in range(count)]


BODIES = [json.dumps({"text": text}).encode() for text in sentences()]


@dataclass(frozen=True)
class Workload:
    """A model and what is asked of it."""

    name: str
    pack: Callable[..., Path]
    bodies: Sequence[bytes]
    content_type: str
    is_answer: Callable[[Any], bool]
    """Whether the JSON of an answer is one."""
    section: dict[str, Any]
    """What its ``shunter:`` section always says."""

    @property
    def requests(self) -> dict[str, Any]:
        """For a stream of them."""
        return {"bodies": self.bodies, "content_type": self.content_type}


SENTENCES = Workload(
    "minilm",
    pack_minilm,
    BODIES,
    "application/json",
    lambda answer: abs(sum(x * x for x in answer["embedding"]) - 1) < 1e-3,
    {"sample": "sample.txt"},
)
PHOTOGRAPHS = Workload(
    "resnet50",
    pack_resnet50,
    (photograph(),),
    "image/jpeg",
    lambda answer: len(answer["classes"]) == 5,
    {"sample": "sample.jpg"},
)


@dataclass(frozen=True)
class Setting:
    """How a model is registered."""

    batch: int = 32
    delay_ms: int = 1
    workers: int = 2
    threads: int = 1
    queue: int = 100
    """Requests that may wait."""
    drop_ms: int = 0
    """``clientTimeoutInMills``: what waited longer is dropped; 0: never."""

    @property
    def name(self) -> str:
        """Under which it is registered."""
        return "m-" + "-".join(str(value) for value in vars(self).values())

    @property
    def configuration(self) -> str:
        """As Shunter writes it."""
        return f"{self.workers}x{self.threads}x{self.batch}"

    def row(self) -> dict[str, Any]:
        """As it stands in a result."""
        return asdict(self)


class Side:
    """A running server, stock or with Shunter; a context manager."""

    def __init__(
        self,
        store: Path,
        *,
        shunter: bool,
        settings: str = "",
        workload: Workload = SENTENCES,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Serve from ``store``; ``settings`` is the text of shunter.toml.

        ``variables``: more of the server's environment.
        """
        self.shunter = shunter
        self.workload = workload
        self._store = store
        self._known: set[str] = set()
        file = store / "shunter.toml"
        file.write_text(settings, encoding="utf-8")
        load_settings(file)  # a server serves on without one that it can't use
        env = {"SHUNTER_CONFIG": str(file), **(variables or {})}
        self.server = Server(model_store=store, plugins=ensure() if shunter else None, env=env)

    def __enter__(self) -> Self:
        self.server.start()
        try:
            self._warm_up_jvm()
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def add(
        self, setting: Setting, section: dict[str, Any] | None = None, *, name: str | None = None
    ) -> str:
        """Register, wait for the workers, warm up; returns the URL of predictions.

        ``section`` is more of the ``shunter:`` section of the model's configuration.
        """
        name = name or setting.name
        if name not in self._known:
            self._register(name, setting, {**self.workload.section, **(section or {})})
            self._known.add(name)
            self.warm_up(name)
        return self.url(name)

    def _warm_up_jvm(self, seconds: float = 4) -> None:
        """Let Java compile what every request runs through.

        A real model answers so few requests that this would go on for a minute, on the cores that
        the workers need. A trivial model is done with it in seconds.
        """
        query = {"url": pack_sums(self._store), "batch_size": "8", "max_batch_delay": "1"}
        query |= {"initial_workers": "1", "synchronous": "true"}
        models = f"{self.server.management}/models"
        httpx.post(models, params=query, timeout=120).raise_for_status()
        body = json.dumps([1.0] * 16).encode()
        closed_loop(self.url("sums"), 32, seconds, bodies=[body], deadline_ms=1000)
        httpx.delete(f"{models}/sums", timeout=120)  # stock answers 500 now and then

    def url(self, name: str) -> str:
        """Where predictions are asked for."""
        return f"{self.server.inference}/predictions/{name}"

    def archive(self, name: str, setting: Setting, section: dict[str, Any]) -> Path:
        """Pack the model as it is to be registered."""
        if "groups" not in section:
            section = {"configuration": setting.configuration, **section}
        config = {
            "batchSize": setting.batch,
            "maxBatchDelay": setting.delay_ms,
            "minWorkers": setting.workers,
            "maxWorkers": setting.workers,
            "jobQueueSize": setting.queue,
            "clientTimeoutInMills": setting.drop_ms or None,
            "handler": {"threads": setting.threads or None},
            "shunter": section if self.shunter else None,
        }
        return self.workload.pack(self._store, name=name, config=config)

    def _register(self, name: str, setting: Setting, section: dict[str, Any]) -> None:
        archive = self._store / f"{name}.mar"
        if not archive.exists():
            self.archive(name, setting, section)
        query = {"url": archive.name, "model_name": name, "synchronous": "true"}
        query["initial_workers"] = str(setting.workers)
        answer = httpx.post(f"{self.server.management}/models", params=query, timeout=120)
        answer.raise_for_status()
        if not profile_path(archive).exists():
            archive.unlink()

    def warm_up(self, name: str, seconds: float = 1.5) -> None:
        """Every worker has run batches of several sizes; what is answered is an answer."""
        for clients in (1, 24):
            closed_loop(self.url(name), clients, seconds / 2, **self.workload.requests)
        headers = {"Content-Type": self.workload.content_type}
        body = self.workload.bodies[0]
        answer = httpx.post(self.url(name), content=body, headers=headers, timeout=30)
        if not self.workload.is_answer(answer.json()):
            raise RuntimeError(f"{name}: {answer.text[:200]}")

    def remove(self, setting: Setting) -> None:
        """Unregister. Stock answers 500 now and then although its workers have ended."""
        answer = httpx.delete(f"{self.server.management}/models/{setting.name}", timeout=120)
        if answer.status_code != 200:
            print(f"unregistering {setting.name}: {answer.status_code}", file=sys.stderr)
        self._known.discard(setting.name)

    def status(self, name: str) -> dict[str, Any]:
        """What Shunter says of a model."""
        url = f"{self.server.management}/shunter/models/{name}"
        return httpx.get(url, timeout=30).json()

    def runtime(self) -> str:
        """The server's runtime folder."""
        return httpx.get(f"{self.server.management}/shunter/status", timeout=30).json()["runtime"]

    def configure(self, name: str, **query: str) -> None:
        """Ask Shunter for another configuration."""
        url = f"{self.server.management}/shunter/models/{name}/configuration"
        httpx.put(url, params=query, timeout=30).raise_for_status()

    def set_auto(self, name: str, value: bool) -> None:
        """Whether Shunter may change the configuration by itself."""
        self.configure(name, auto=str(value).lower())

    def pids(self) -> dict[str, list[int]]:
        """The JVM and its workers."""
        jvm = psutil.Process(self.server.pid)
        workers = [p.pid for p in jvm.children() if "--sock-name" in p.cmdline()]
        return {"jvm": [jvm.pid], "workers": workers}


def stream(name: str, url: str, rate: float, seconds: float, seed: int, **more: Any) -> load.Stream:
    """Poisson arrivals of sentences."""
    given = {
        "arrivals": {"kind": "poisson", "rate": rate, "seconds": seconds, "seed": seed},
        "bodies": BODIES,
        "slo_ms": SLO_MS,
        "seed": seed,
    }
    return load.Stream(name, url, **{**given, **more})


def closed_loop(url: str, clients: int, seconds: float, **more: Any) -> dict[str, Any]:
    """Clients without think time; sums of what they got."""
    closed = load.Closed(clients, seconds)
    one = load.Stream("closed", url, closed=closed, **{"bodies": BODIES, **more})
    return load.run(load.Spec([one], timeout_s=120))["closed"]


LEAD_IN_S, CYCLES = 1.0, 2
"""Of clients without think time: caches and clocks are then this side's; fewest requests of each
that count."""


def answered_per_s(url: str, clients: int, seconds: float, **more: Any) -> float:
    """Requests per second of clients without think time. All must be answered."""
    closed = load.Closed(clients, LEAD_IN_S + seconds)
    one = load.Stream("closed", url, closed=closed, **{"bodies": BODIES, **more})
    found = load.run(load.Spec([one], timeout_s=120))
    if found["closed"]["ok"] != found["closed"]["sent"]:
        raise RuntimeError(f"{url}: {found['closed']['statuses']}")
    samples = found.of("closed")
    rate = closed_rate(samples.due_s, samples.latency_s, clients)
    return rate or answered_per_s(url, clients, 2 * seconds, **more)


def closed_rate(sent_s: np.ndarray, latency_s: np.ndarray, clients: int) -> float | None:
    """By Little's law: clients by the mean latency, of all but each client's first request.

    Also left out is what was sent in the first :data:`LEAD_IN_S`. Answers come in batches, so that
    counting them between two moments gains or loses one at either end. None: fewer than
    :data:`CYCLES` for each client.
    """
    order = np.argsort(sent_s, kind="stable")
    first = max(clients, int(np.searchsorted(sent_s[order], LEAD_IN_S)))
    counted = latency_s[order][first:]
    if len(counted) < CYCLES * clients:
        return None
    return clients / float(counted.mean())


def open_loop(
    url: str,
    rate: float,
    seconds: float,
    seed: int,
    pids: dict[str, Sequence[int]] | None = None,
    **more: Any,
) -> load.Result:
    """One stream; the first second is not counted. Stock drops without an answer: no request waits
    for the connection of one."""
    one = stream("load", url, rate, seconds + 1, seed, **more)
    spec = load.Spec([one], timeout_s=5, warmup_s=1, cpu_pids=pids or {}, connections=1000)
    return load.run(spec)
