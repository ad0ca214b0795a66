"""Callers with unchanged tritonclient that check every answer: HTTP, gRPC, asyncio, shared memory.

Each asks one after the other, with requests of one to three rows, and notes how each one ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rpc.models import RpcModel, networks
from triton_sides import TYPES

PATIENCE_S = 60.0
"""A request without an answer for so long is lost."""
MOST_ROWS = 3
KINDS = ("http", "grpc", "asyncio", "shared memory", "cancel")
GONE = ("unknown model", "not ready", "not found", "is not at ready", "unavailable stat")
"""In Triton's words for a model that is not loaded."""
RIGHT, WRONG, CANCELLED, UNLOADED = "right", "wrong", "cancelled", "unloaded"


def modules() -> dict[str, Any]:
    """tritonclient's. Raises ImportError."""
    import tritonclient.grpc
    import tritonclient.grpc.aio
    import tritonclient.http
    from tritonclient.utils import shared_memory

    return {
        "http": tritonclient.http,
        "grpc": tritonclient.grpc,
        "asyncio": tritonclient.grpc.aio,
        "shared memory": shared_memory,
    }


class Questions:
    """Inputs, and what the network answers to them here."""

    def __init__(self, model: RpcModel, count: int = 256) -> None:
        import torch

        (kind, shape), random_ = model.input, np.random.default_rng(11)
        self.inputs = random_.integers(0, 256, (count, *shape), kind)
        with torch.inference_mode():
            self.answers = networks.build(model.network)(torch.from_numpy(self.inputs)).numpy()
        distances = np.abs(self.answers[1:] - self.answers[:-1]).max(axis=1)
        self.tolerance = float(min(1e-3, distances.min() / 4))
        """Answers of two inputs differ by more."""

    def any(self, choose: random.Random) -> tuple[np.ndarray, np.ndarray]:
        """A request of some rows, and its answer."""
        rows = choose.randint(1, MOST_ROWS)
        first = choose.randrange(len(self.inputs) - rows)
        return self.inputs[first : first + rows], self.answers[first : first + rows]

    def is_right(self, found: np.ndarray | None, wanted: np.ndarray) -> bool:
        """Whether it is the answer."""
        if found is None or found.shape != wanted.shape:
            return False
        return bool(np.abs(found - wanted).max() <= self.tolerance)


class Callers:
    """``each`` callers of every kind in threads, from the beginning of ``with`` to its end."""

    def __init__(
        self,
        addresses: tuple[str, str],
        model: RpcModel,
        questions: Questions,
        *,
        each: int = 2,
        pause_s: float = 0.01,
        kinds: tuple[str, ...] = KINDS[:-1],
    ) -> None:
        """``addresses``: of HTTP and gRPC; ``pause_s``: after each answer."""
        self._http, self._grpc = addresses
        self._model, self._questions, self._pause_s = model, questions, pause_s
        self._type, self._over = TYPES[model.input[0]], threading.Event()
        self._modules, self._lock = modules(), threading.Lock()
        self.ends: Counter[str] = Counter()
        """Requests by how they ended."""
        self.slowest_s = 0.0
        self._threads = [
            threading.Thread(target=self._run, args=(kind, number))
            for kind in kinds
            for number in range(each)
        ]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> None:
        """Until so many more were answered. Raises RuntimeError."""
        wanted, end = self.ends[RIGHT] + more, time.monotonic() + 2 * PATIENCE_S
        while self.ends[RIGHT] < wanted:
            if time.monotonic() > end:
                raise RuntimeError(f"no answers any more: {dict(self.ends)}")
            time.sleep(0.02)

    def _run(self, kind: str, number: int) -> None:
        choose = random.Random(f"{kind} {number}")
        if kind == "asyncio":
            asyncio.run(self._run_async(choose))
            return
        opened = {"shared memory": self._shared, "cancel": self._cancelling}.get(kind)
        with opened() if opened else self._plain(kind) as ask:
            while not self._over.is_set():
                self._count(ask, *self._questions.any(choose))
                time.sleep(self._pause_s)

    def _note(self, end: str, began: float) -> None:
        with self._lock:
            self.ends[end] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _count(
        self, ask: Callable[[np.ndarray], np.ndarray | str | None], x: np.ndarray, y: np.ndarray
    ) -> None:
        began = time.monotonic()
        try:
            found = ask(x)
            if not isinstance(found, str):
                found = RIGHT if self._questions.is_right(found, y) else WRONG
        except Exception as error:  # whatever a client may raise: it is counted by its text
            found = end_of(error)
        self._note(found, began)

    # ---- kinds

    def _inputs(self, module: Any, x: np.ndarray) -> list[Any]:
        tensor = module.InferInput("x", list(x.shape), self._type)
        tensor.set_data_from_numpy(x)
        return [tensor]

    @contextlib.contextmanager
    def _plain(self, kind: str) -> Iterator[Callable[[np.ndarray], np.ndarray | None]]:
        module = self._modules[kind]
        with contextlib.closing(self._client(kind)) as client:
            options = {"client_timeout": PATIENCE_S} if kind == "grpc" else {}

            def ask(x: np.ndarray) -> np.ndarray | None:
                inputs = self._inputs(module, x)
                return client.infer(self._model.name, inputs, **options).as_numpy("y")

            yield ask

    def _client(self, kind: str) -> Any:
        if kind == "grpc":
            return self._modules["grpc"].InferenceServerClient(self._grpc)
        return self._modules["http"].InferenceServerClient(
            self._http, network_timeout=PATIENCE_S, connection_timeout=PATIENCE_S
        )

    @contextlib.contextmanager
    def _shared(self) -> Iterator[Callable[[np.ndarray], np.ndarray | None]]:
        """Inputs and outputs in two regions of the client."""
        shm, http = self._modules["shared memory"], self._modules["http"]
        name = f"{os.getpid()}-{threading.get_ident()}"
        sizes = MOST_ROWS * self._model.size, MOST_ROWS * self._model.reply
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(contextlib.closing(self._client("http")))
            regions = []
            for side, size in zip(("in", "out"), sizes, strict=True):
                region = f"{side}-{name}"
                regions.append(shm.create_shared_memory_region(region, f"/{region}", size))
                stack.callback(shm.destroy_shared_memory_region, regions[-1])
                client.register_system_shared_memory(region, f"/{region}", size)
                stack.callback(_quietly, client.unregister_system_shared_memory, region)

            def ask(x: np.ndarray) -> np.ndarray | None:
                shm.set_shared_memory_region(regions[0], [x])
                tensor = http.InferInput("x", list(x.shape), self._type)
                tensor.set_shared_memory(f"in-{name}", x.nbytes)
                wanted = http.InferRequestedOutput("y")
                wanted.set_shared_memory(f"out-{name}", len(x) * self._model.reply)
                client.infer(self._model.name, [tensor], outputs=[wanted])
                kind, shape = self._model.output
                found = shm.get_contents_as_numpy(regions[1], kind, (len(x), *shape))
                return np.array(found)

            yield ask

    @contextlib.contextmanager
    def _cancelling(self) -> Iterator[Callable[[np.ndarray], np.ndarray | str | None]]:
        """Every request is cancelled a little later; it may have been answered before."""
        choose = random.Random(threading.get_ident())
        with contextlib.closing(self._client("grpc")) as client:

            def ask(x: np.ndarray) -> np.ndarray | str | None:
                ended, came = threading.Event(), []

                def done(result: Any, error: Any) -> None:
                    came.append((result, error))
                    ended.set()

                inputs = self._inputs(self._modules["grpc"], x)
                call = client.async_infer(self._model.name, inputs, done)
                time.sleep(choose.uniform(0, 0.002))
                call.cancel()
                if not ended.wait(PATIENCE_S):
                    return "neither cancelled nor answered"
                result, error = came[0]
                return end_of(error) if error else result.as_numpy("y")

            yield ask

    async def _run_async(self, choose: random.Random) -> None:
        module = self._modules["asyncio"]
        async with module.InferenceServerClient(self._grpc) as client:
            while not self._over.is_set():
                x, y = self._questions.any(choose)
                began = time.monotonic()
                try:
                    answer = await client.infer(
                        self._model.name,
                        self._inputs(self._modules["grpc"], x),
                        client_timeout=PATIENCE_S,
                    )
                    end = RIGHT if self._questions.is_right(answer.as_numpy("y"), y) else WRONG
                except Exception as error:  # as above
                    end = end_of(error)
                self._note(end, began)
                await asyncio.sleep(self._pause_s)


def end_of(error: Exception) -> str:
    """What an error counts as: ``cancelled``, ``unloaded``, or its own text."""
    text = f"{type(error).__name__}: {error}"
    if "CANCELLED" in text or "[499]" in text:
        return CANCELLED
    return UNLOADED if any(each in text.lower() for each in GONE) else text[:300]


def _quietly(act: Callable[..., object], *given: object) -> None:
    with contextlib.suppress(Exception):  # the server may have been killed
        act(*given)
