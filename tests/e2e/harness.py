"""A running server under test, its models, and requests whose course a test decides."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from e2e_exchange import PATIENCE_S, START_S, Answer, Gate, Headers, call, wait_until

from shunter.batching.page.control_page import ControlPage
from shunter.plugins.view import page_status


class Site:
    """One server."""

    name = "torchserve"

    def __init__(self, server: Any, archives: Any, folder: Path) -> None:
        self.server = server
        self.archives = archives
        self.folder = folder
        self.pool = ThreadPoolExecutor(256)
        self._models = itertools.count()

    def inference(self, method: str, path: str, *arguments: Any) -> Answer:
        return call(self.server.ports.inference, method, path, *arguments)

    def management(self, method: str, path: str, **query: Any) -> Answer:
        text = f"?{urlencode(query)}" if query else ""
        return call(self.server.ports.management, method, path + text, None, self._key())

    def _key(self) -> dict[str, str]:
        keys = self.server.keys
        return {"Authorization": f"Bearer {keys['management']['key']}"} if keys else {}

    def metrics(self) -> str:
        return call(self.server.ports.metrics, "GET", "/metrics").text

    def status(self) -> Any:
        answer = self.management("GET", "/shunter/status")
        assert answer.status == 200, answer
        return answer.json

    @property
    def parent(self) -> int:
        """Whose children workers are."""
        return int(self.server.pid)

    @property
    def runtime(self) -> Path:
        """The folder with the control page."""
        return Path(self.status()["runtime"])

    def page_status(self) -> Any:
        """What ``shunter status`` shows on the server's own host."""
        return page_status.fetch(self.runtime)

    def is_healthy(self) -> bool:
        answer = self.inference("GET", "/ping")
        return answer.status == 200 and answer["status"] == "Healthy"

    def wait_cycles(self, count: int) -> None:
        """Wait until the controller has looked so many times more."""

        def cycles() -> int:
            with ControlPage.attach(runtime / "control", writable=False) as page:
                return page.header().controller_cycles

        runtime = self.runtime
        enough = cycles() + count
        wait_until("the controller's cycles", lambda: cycles() >= enough)

    def metric(self, name: str, model: Model, **more: str) -> float | None:
        """A sample of a model, None: there is none."""
        wanted = {"model": model.name, "version": model.version, **more}
        for row in self.metrics().splitlines():
            if row.startswith(f"{name}{{"):
                labels, value = row.rsplit("} ", 1)
                if dict(re.findall(r'(\w+)="([^"]*)"', labels)) == wanted:
                    return float(value)
        return None

    def log(self) -> str:
        return self.server.log.read_text(errors="replace")

    def models(self) -> set[str]:
        listed = self.management("GET", "/models", limit=1000)["models"]
        return {model["modelName"] for model in listed}

    def register(self, name: str, archive: str, **query: Any) -> Answer:
        query = {"initial_workers": 1, "synchronous": "true", **query}
        return self.management("POST", "/models", url=archive, model_name=name, **query)

    def add(
        self,
        name: str = "",
        *,
        config: Mapping[str, Any] | None = None,
        handler: str = "echo",
        version: str = "1.0",
        stock: bool = False,
        profile: Mapping[tuple[int, int], float] | None = None,
        **query: Any,
    ) -> Model:
        """Register a model and wait until its workers have loaded.

        ``stock``: Shunter leaves it to TorchServe. ``profile``: latencies in ms by ⟨threads,
        batch⟩ that lie beside the archive as if they had been measured.
        """
        number = next(self._models)
        model = Model(self, name or f"m{number}", version, self.folder / str(number))
        settings = dict(config or {})
        shunter = settings["shunter"] = dict(settings.get("shunter", {}))
        shunter["environment"] = {**model.variables, **shunter.get("environment", {})}
        archive = self.archives.add(model.name, handler, version=version, config=settings)
        if profile is not None:
            self.archives.add_profile(archive, profile)
        answer = self.register(model.name, archive, **query)
        assert answer.status == 200, answer
        if not stock:
            wait_until("the controller sees it", lambda: self.commands(model) is not None)
        return model

    def commands(self, model: Model) -> Any:
        """What the controller wrote for a model, None while it wrote nothing."""
        with ControlPage.attach(self.runtime / "control", writable=False) as page:
            for slot in page.live_slots():
                identity = page.read_identity(slot)
                if (identity.model_name, identity.model_version) == (model.name, model.version):
                    return page.read_commands(slot)
        return None


class Model:
    """A registered model version.

    What servers call otherwise: a status, and how a request is sent.
    """

    LATE, FORBIDDEN, FAILED, KILLED = 504, 403, 503, 507
    """Statuses of who came too late, may not do so, whose handler failed and whose worker was
    killed."""
    HAS_LIMIT = True
    """Whether its queue takes ``jobQueueSize`` requests and no more."""
    tells_more = True
    """Whether it says what TorchServe alone does: numbers of retries, of restarts."""

    def __init__(self, site: Site, name: str, version: str, folder: Path) -> None:
        folder.mkdir()
        self.site = site
        self.name = name
        self.version = version
        self.record = folder / "ran"
        self.no_load = folder / "no-load"
        """While it exists, workers fail to load."""
        self.slow_load = folder / "slow-load"
        """While it exists, workers do not finish loading."""
        self.variables = {
            "ECHO_RECORD": str(self.record),
            "ECHO_NO_LOAD": str(self.no_load),
            "ECHO_SLOW_LOAD": str(self.slow_load),
        }
        self._folder = folder
        self._requests = itertools.count()
        self._gates: list[Gate] = []
        self._sent: list[Future[Answer]] = []

    def moved(self, site: Site) -> Model:
        """The same model on another server."""
        moved = copy.copy(self)
        moved.site = site
        return moved

    @property
    def address(self) -> str:
        """Where requests are sent, by REST v1 to the default version."""
        return f"/predictions/{self.name}"

    def wrap(self, body: Mapping[str, Any]) -> str:
        """A request."""
        return json.dumps(body)

    def unwrap(self, answer: Answer) -> Answer:
        """What the handler answered, or an error with its message."""
        return answer

    def is_whole(self) -> bool:
        """Whether all its workers serve."""
        workers = self.state()["groups"][0]["workers"]
        return all(worker["state"] == "READY" for worker in workers)

    def gate(self) -> Gate:
        gate = Gate(self._folder / f"gate{len(self._gates)}")
        self._gates.append(gate)
        return gate

    def ask(
        self, request: str = "", *, path: str = "", headers: Headers | None = None, **body: Any
    ) -> Answer:
        """Send a request, to ``address`` if there is no ``path``."""
        body["id"] = request or f"r{next(self._requests)}"
        sent = {"Content-Type": "application/json", **(headers or {})}
        return self.unwrap(
            self.site.inference("POST", path or self.address, self.wrap(body), sent)
        )

    def send(self, request: str = "", **arguments: Any) -> Future[Answer]:
        """Like ask, in the background."""
        future = self.site.pool.submit(self.ask, request, **arguments)
        self._sent.append(future)
        return future

    def queue(self, request: str, **arguments: Any) -> Future[Answer]:
        """Send, and come back when it waits in the queue."""
        before = self.waiting()
        future = self.send(request, **arguments)
        wait_until(f"{request} waits", lambda: self.waiting() == before + 1)
        return future

    def hold(self, *requests: str, **arguments: Any) -> tuple[Gate, list[Future[Answer]]]:
        """Keep a worker busy per request, until the gate is opened."""
        gate = self.gate()
        futures = []
        for request in requests or ("held",):
            futures.append(self.send(request, **gate.mark, **arguments))
            gate.wait_reached(request)
        return gate, futures

    def state(self) -> Any:
        answer = self.site.management("GET", f"/shunter/models/{self.name}/{self.version}")
        assert answer.status == 200, answer
        return answer.json

    def configuration(self) -> Any:
        path = f"/shunter/models/{self.name}/{self.version}/configuration"
        return self.site.management("GET", path).json

    def waiting(self) -> int:
        queue = self.state()["queue"]
        return queue["strict"] + queue["best_effort"]

    def count(self, counter: str) -> int:
        value = self.state()["counters"][counter]
        return value if isinstance(value, int) else sum(value.values())

    def ran(self) -> list[dict[str, Any]]:
        """What was executed, in order: id, pid, size and number of the batch."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [json.loads(line) for line in lines]

    def order(self) -> list[str]:
        return [row["id"] for row in self.ran()]

    def describe(self) -> Any:
        return self.site.management("GET", f"/models/{self.name}/{self.version}")[0]

    def pids(self) -> list[int]:
        """All its workers, those that drain and those of the network front end included."""
        state = self.site.management("GET", f"/shunter/models/{self.name}/{self.version}")
        if state.status != 200:  # left to TorchServe, or without workers
            return [worker["pid"] for worker in self.describe()["workers"]]
        groups = [g for g in state["groups"] if g["state"] == "serving"]
        workers = [worker for group in groups for worker in group["workers"]]
        return [worker["pid"] for worker in workers + state["draining"]]

    def scale(self, low: int, high: int | None = None, *, wait: bool = True) -> Answer:
        counts = {"min_worker": low, "max_worker": low if high is None else high}
        path = f"/models/{self.name}/{self.version}"
        return self.site.management("PUT", path, **counts, synchronous=str(wait).lower())

    def configure(self, **query: Any) -> Answer:
        path = f"/shunter/models/{self.name}/{self.version}/configuration"
        return self.site.management("PUT", path, **query)

    def begin_change(self, configuration: str = "") -> None:
        """Begin another generation, as an operator does; without one, of the same shape."""
        query = {"configuration": configuration} if configuration else {"restart": "true"}
        answer = self.configure(**query)
        assert (answer.status, answer["state"]) == (202, "changing"), answer

    def wait_slow_load(self, count: int = 1) -> None:
        """Wait until so many workers load while ``slow_load`` exists."""
        found = self.slow_load.parent
        wait_until("workers load", lambda: len(list(found.glob("slow-load.*"))) == count)

    def loading(self) -> list[int]:
        """Pids of the workers that loaded, or began to, while ``slow_load`` existed."""
        return [int(path.suffix[1:]) for path in self.slow_load.parent.glob("slow-load.*")]

    def changed(self) -> Any:
        """The state after the change under way."""
        wait_until("the change ends", lambda: self.state()["state"] == "serving")
        return self.state()

    def end(self) -> None:
        """Let everything run to its end and unregister."""
        for gate in self._gates:
            gate.open()
        for future in self._sent:
            future.exception(PATIENCE_S)
        self.site.management("DELETE", f"/models/{self.name}/{self.version}")


@contextlib.contextmanager
def running(
    server: Any, archives: Any, folder: Path, *, patience_s: float = 0
) -> Iterator[Site]:
    """A started server as a site; at the end it is killed, or given so long to end by itself."""
    server.start(START_S)
    try:
        site = Site(server, archives, folder)
        try:
            yield site
        finally:
            site.pool.shutdown(cancel_futures=True)
    finally:
        server.stop(patience_s)
