"""``shunter demo``: two models, an unmodified TorchServe with the plugin, real requests.

The held-out images of the digits data set go to the server by REST, by gRPC and by UDP, as strict
and as best-effort requests at the same time, and every answer is compared with the true label. UDP
is the network front end's, which the server starts because shunter.toml says so. Beside
digits the same server embeds sentences, if the weights are installed (demo_embeddings.py). Then the
same archive is served by Triton, if there is one (demo_triton.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from shunter.model_store.digits import data
from shunter.model_store.digits.archive import Packed, pack_digits
from shunter.nic_frontend.client import Client, InferenceError
from shunter.plugins import hosts
from shunter.plugins.cli import demo_embeddings, demo_triton
from shunter.plugins.control.settings import VARIABLE
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostProcess
from shunter.plugins.view import status

CONNECTIONS = 4
"""Requests under way per protocol and class: enough for batches to form."""
WARM_UP = 200
DEADLINE_MS = "5000"
"""Generous: the demo shows that the header works, not how fast the machine is."""
UDP_S = 30
STOP_S = 30
MARGIN = 0.02
CLASSES = ("strict", "best-effort")

WHY = (
    "REST and gRPC requests pass TorchServe's front end and become Python objects in the handler; "
    "tensors by UDP go straight into the batch, in a front end and workers of their own, and so do "
    "Triton's, which come as JSON. The "
    "clients are threads of one Python program, whose time is in all of these latencies."
)
Send = Callable[[np.ndarray, str], int]
"""Send one image as a class and return the label; an exception is a failed request."""
Connect = Callable[[HostProcess], AbstractContextManager[Send]]


@dataclass
class Tally:
    """What came back for one protocol and class."""

    protocol: str
    request_class: str
    correct: int = 0
    failures: list[str] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Requests sent."""
        return len(self.latencies_ms) + len(self.failures)


def run(console: Console) -> int:
    """The whole demo. Returns the exit status: 0 when the answers are as good as they should be."""
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch)
        packed = _pack(store, console)
        embeddings = demo_embeddings.pack(store, console)
        settings = store / "shunter.toml"
        settings.write_text("[nic]\nenabled = true\nport = 0\n", encoding="utf-8")
        server = hosts.process_of(
            store,
            [f"digits={packed.path.name}", *embeddings],
            settings={"job_queue_size": "1000"},
            variables={VARIABLE: str(settings)},
        )
        try:
            with console.status(f"starting {server.name} with the plugin"):
                server.start()
            console.print(f"{server.name.lower()} with the plugin is up, pid {server.pid}")
            tallies = _send_all(server, PROTOCOLS, console)
            triples = demo_embeddings.compare(server) if embeddings else []
            seen = server.host.status()
        finally:
            with console.status("stopping"):
                server.drain(STOP_S)
        with demo_triton.serving(store, packed.path.name, console) as triton:
            if triton is not None:
                tallies += _send_all(triton, {"Triton": _triton}, console)
    console.print(table_of(tallies))
    console.print(WHY, soft_wrap=True)
    if triples:
        console.print(demo_embeddings.table_of(triples))
    for model in seen["models"]:
        console.print(f"batches by size, {model['name']}: {status.batch_sizes(model['batches'])}")
    problems = problems_of(tallies, packed.metadata["test_accuracy"])
    return _verdict(problems + demo_embeddings.problems_of(triples), console)


def table_of(tallies: Sequence[Tally]) -> Table:
    """One row for each protocol and class."""
    table = Table(title="real answers of the digits model", title_justify="left")
    table.add_column("protocol")
    table.add_column("class")
    for name in ("requests", "correct", "failed", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for tally in tallies:
        table.add_row(
            tally.protocol,
            tally.request_class,
            str(tally.requests),
            str(tally.correct),
            str(len(tally.failures)),
            f"{percentile(tally.latencies_ms, 50):.1f}",
            f"{percentile(tally.latencies_ms, 99):.1f}",
        )
    return table


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed; NaN for no values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def problems_of(tallies: Sequence[Tally], accuracy: float) -> list[str]:
    """What is wrong with the answers; empty when nothing is."""
    problems = []
    for tally in tallies:
        who = f"{tally.protocol} {tally.request_class}"
        if tally.failures:
            problems.append(
                f"{who}: {len(tally.failures)} failed, the first with {tally.failures[0]}"
            )
        elif tally.correct / tally.requests < accuracy - MARGIN:
            share = tally.correct / tally.requests
            problems.append(f"{who}: {share:.1%} of the labels agree, expected {accuracy:.1%}")
    return problems


def _pack(store: Path, console: Console) -> Packed:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("training digits", total=None)
        packed = pack_digits(
            store,
            network="1x1x32",
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    known = packed.metadata
    console.print(
        f"digits: trained on {known['train_images']} images, "
        f"{known['test_accuracy']:.1%} right on {known['test_images']} held-out ones"
    )
    return packed


def _send_all(
    server: HostProcess, protocols: Mapping[str, Connect], console: Console
) -> list[Tally]:
    split = data.load()
    warm_up = list(zip(split.train_images, split.train_labels, strict=True))[:WARM_UP]
    measured = list(zip(split.test_images, split.test_labels, strict=True))
    tallies: list[Tally] = []
    with Progress(console=console, transient=True) as progress:
        for protocol, connect in protocols.items():
            with connect(server) as send:
                _send(send, [Tally(protocol, CLASSES[0])], warm_up)
                pair = [Tally(protocol, each) for each in CLASSES]
                task = progress.add_task(protocol, total=len(pair) * len(measured))
                _send(send, pair, measured, lambda task=task: progress.advance(task))
                tallies += pair
    return tallies


def _send(
    send: Send,
    tallies: list[Tally],
    images: Sequence[tuple[np.ndarray, int]],
    done: Callable[[], None] = lambda: None,
) -> None:
    """Each image once for each tally, the classes mixed, ``CONNECTIONS`` under way for each."""

    def one(job: tuple[np.ndarray, int, Tally]) -> None:
        image, label, tally = job
        begin = time.perf_counter()
        try:
            correct = send(image, tally.request_class) == label
        except (httpx.HTTPError, grpc.RpcError, InferenceError, ValueError, KeyError) as error:
            tally.failures.append(_reason(error))
        else:
            tally.latencies_ms.append((time.perf_counter() - begin) * 1000)
            tally.correct += int(correct)
        done()

    jobs = [(image, label, tally) for image, label in images for tally in tallies]
    with ThreadPoolExecutor(CONNECTIONS * len(tallies)) as threads:
        list(threads.map(one, jobs))


def _terms(request_class: str) -> dict[str, str]:
    terms = {"x-shunter-class": request_class}
    if request_class == "strict":
        terms["x-shunter-deadline-ms"] = DEADLINE_MS
    return terms


@contextlib.contextmanager
def _rest(server: HostProcess) -> Iterator[Send]:
    url = f"{server.inference}/predictions/digits"
    limits = httpx.Limits(max_connections=4 * CONNECTIONS)
    with httpx.Client(limits=limits, timeout=60, trust_env=False) as client:

        def send(image: np.ndarray, request_class: str) -> int:
            answer = client.post(url, json={"image": image.tolist()}, headers=_terms(request_class))
            answer.raise_for_status()
            return answer.json()["label"]

        yield send


@contextlib.contextmanager
def _grpc(server: HostProcess) -> Iterator[Send]:
    with server.grpc_client() as client:

        def send(image: np.ndarray, request_class: str) -> int:
            terms = {key: value.encode() for key, value in _terms(request_class).items()}
            body = image.astype(np.uint8).tobytes()
            return json.loads(client.predict("digits", {"data": body, **terms}))["label"]

        yield send


@contextlib.contextmanager
def _udp(server: HostProcess) -> Iterator[Send]:
    with Client(f"udp://127.0.0.1:{_udp_port(server)}", timeout_s=60) as client:
        deadline_ms = float(DEADLINE_MS)

        def send(image: np.ndarray, request_class: str) -> int:
            terms: dict[str, Any] = {"best_effort": request_class == "best-effort"}
            if not terms["best_effort"]:
                terms["deadline_ms"] = deadline_ms
            return int(client.infer("digits", image.astype(np.float32), **terms).argmax())

        yield send


def _triton(server: HostProcess) -> AbstractContextManager[Send]:
    return demo_triton.connect(server, 4 * CONNECTIONS, DEADLINE_MS)


PROTOCOLS: Mapping[str, Connect] = {"REST": _rest, "gRPC": _grpc, "UDP": _udp}
"""Of TorchServe."""


def _udp_port(server: HostProcess) -> int:
    """The front end's, which is started when the controller has read the settings."""
    deadline = time.monotonic() + UDP_S
    while time.monotonic() < deadline:
        if port := server.host.status()["front_end"]["port"]:
            return int(port)
        time.sleep(0.1)
    raise UserError(f"the network front end was not there within {UDP_S} s")


def _reason(error: Any) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}: {' '.join(error.response.text.split())}"
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def _verdict(problems: Sequence[str], console: Console) -> int:
    for problem in problems:
        console.print(f"[red]wrong[/] {problem}", soft_wrap=True)
    if not problems:
        console.print("every request was answered, and as correctly as the models can")
    return 1 if problems else 0
