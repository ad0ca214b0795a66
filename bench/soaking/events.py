"""What happens to the server, one thing at a time, while requests flow."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import httpx
from common import Row
from faults import scale
from pool.churn import Churn

from shunter.nic_frontend.client import InferenceError
from shunter.plugins.torchserve.grpc_client import METHOD, predictions_request
from soaking.askers import Network
from soaking.bed import Bed, lives
from soaking.targets import BATCH, OTHER_BATCH, Target

STOPPED_S = (1.0, 8.0)
BURST = 16
"""Requests that are begun and not waited for, by each protocol."""
CHANGE_S = 120.0
SCALED, WORKERS = "sums", 2
"""The model that is scaled (see ``faults.scale``), and the workers that it has."""

FAULTS = (
    "configure a model",
    "scale a model",
    "register a model again",
    "kill a worker",
    "kill a pool process",
    "kill the controller",
    "kill the front end",
    "stop a worker",
    "stop a pool process",
    "cancel a burst",
)


class Events:
    """All that can happen. Each leaves as many workers as there were."""

    def __init__(
        self, bed: Bed, churn: Churn, choose: random.Random, wanted: Sequence[str] = FAULTS
    ) -> None:
        """``wanted``: of those in FAULTS."""
        self._bed, self._churn, self._choose = bed, churn, choose
        self._wanted, self._left = list(wanted), list[str]()
        does: tuple[Callable[[], Row], ...] = (
            self.configure,
            self.scale,
            self.register,
            self.kill_worker,
            self.kill_pool,
            lambda: self._kill_part("controller"),
            lambda: self._kill_part("front_end"),
            lambda: self._stop(self._bed.workers()),
            lambda: self._stop(self._bed.pools()),
            self.burst,
        )
        self._does = dict(zip(FAULTS, does, strict=True))

    def next(self) -> str:
        """The name of one: at random, and all have come before one comes again."""
        if not self._left:
            self._left = self._choose.sample(self._wanted, len(self._wanted))
        return self._left.pop()

    def happen(self, name: str) -> Row:
        """Do it, and wait until everything is as before."""
        with self._bed.disturbed():
            row: Row = {"fault": name}
            try:
                row |= self._does[name]()
            except (httpx.HTTPError, OSError, RuntimeError, ValueError, LookupError) as error:
                row["problem"] = f"{type(error).__name__}: {error}"[:300]
            began = row.pop("began", time.monotonic())
            row["ready"] = self._bed.wait_until_whole(row.pop("gone", ()))
            row["until_ready_s"] = round(time.monotonic() - began, 2)
        return row

    # ---- changes

    def configure(self) -> Row:
        """Another batch size, and back, with new processes."""
        target = self._choose.choice([each for each in self._bed.targets if each.configuration])
        other = target.configuration.removesuffix(str(BATCH)) + str(OTHER_BATCH)
        began = time.monotonic()
        self._configure(target, configuration=other)
        self._configure(target, configuration=target.configuration, restart="true")
        return {"model": target.name, "began": began}

    def _configure(self, target: Target, **query: str) -> None:
        """Returns when it is so."""
        url = f"{self._bed.management}/shunter/models/{target.name}/configuration"
        before = self._get(url)["generation"]
        httpx.put(url, params=query, timeout=60).raise_for_status()
        end = time.monotonic() + CHANGE_S
        while time.monotonic() < end:
            now = self._get(url)
            is_new = now["generation"] != before or "restart" not in query
            is_so = is_new and now["configuration"] == query["configuration"]
            if is_so and now["state"] == "serving":
                return
            time.sleep(0.1)
        raise RuntimeError(f"{target.name} is not {query}: {now['last_change']}")

    @staticmethod
    def _get(url: str) -> Any:
        return httpx.get(url, timeout=60).raise_for_status().json()

    def scale(self) -> Row:
        """One worker more, and back."""
        began = time.monotonic()
        scale(WORKERS + 1)(self._bed.server.server)
        up = self._bed.wait_until_whole()
        scale(WORKERS)(self._bed.server.server)
        return {"model": SCALED, "began": began, "scaled_up": up}

    def register(self) -> Row:
        """A model goes, and comes back."""
        target = self._choose.choice([each for each in self._bed.targets if each.changing])
        began = time.monotonic()
        self._churn.change(target)
        return {"model": target.name, "began": began}

    # ---- kills

    def kill_worker(self) -> Row:
        """kill -9 of a worker of any model, behind HTTP or the front end, or of a seat."""
        return self._kill(self._choose.choice(self._bed.workers()))

    def kill_pool(self) -> Row:
        """kill -9 of a process that models share."""
        return self._kill(self._choose.choice(self._bed.pools()))

    def _kill_part(self, part: str) -> Row:
        """kill -9 of the controller or of the network front end."""
        return self._kill(self._bed.status()[part]["pid"])

    @staticmethod
    def _kill(pid: int) -> Row:
        if not lives(pid):
            raise RuntimeError(f"there is no process {pid}")
        os.kill(pid, signal.SIGKILL)
        return {"gone": (pid,), "began": time.monotonic()}

    def _stop(self, pids: Sequence[int]) -> Row:
        """SIGSTOP for some seconds; who is replaced meanwhile does not go on."""
        pid, seconds = self._choose.choice(pids), self._choose.uniform(*STOPPED_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            replaced = not lives(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return {"stopped_s": round(seconds, 1), "replaced": replaced, "began": time.monotonic()}

    # ---- clients that go away

    def burst(self) -> Row:
        """Requests by every protocol that nobody waits for."""
        steady = [each for each in self._bed.targets if not each.changing]
        target = self._choose.choice(steady)
        seconds = self._choose.uniform(0.001, 0.03)
        ports = self._bed.server.server.ports
        _leave_http(ports.inference, target, seconds)
        _leave_grpc(ports.grpc_inference, target, seconds)
        if target.by_network:
            asker = self._bed.clients()["udp"]()
            assert isinstance(asker, Network)
            _leave_network(asker, target, seconds)
        return {"model": target.name}


def _leave_http(port: int, target: Target, seconds: float) -> None:
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(BURST)]
    headers = {"Content-Type": target.questions[0].content_type}
    for each in connections:
        each.request("POST", f"/predictions/{target.name}", target.questions[0].body, headers)
    time.sleep(seconds)
    for each in connections:
        each.close()


def _leave_grpc(port: int, target: Target, seconds: float) -> None:
    question = target.questions[0]
    message = predictions_request(target.name, {question.key: question.body}).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)
        begun = [call.future(message, timeout=30) for _ in range(BURST)]
        time.sleep(seconds)
        for each in begun:
            each.cancel()


def _leave_network(asker: Network, target: Target, seconds: float) -> None:
    tensor = target.questions[0].tensor
    assert tensor is not None
    with contextlib.closing(asker), contextlib.suppress(InferenceError):
        asker.session(target).infer_many([[tensor]] * BURST, timeout_s=seconds)
