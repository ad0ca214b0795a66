"""Models that come and go while others are asked, and what may become of requests meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import httpx

from pool.callers import RIGHT, Caller, Ends
from pool.models import SEEDS, Packed
from pool.servers import Archived, PoolServer

GONE = ("status 404", "status 503")
"""What a model that is not there, or not yet, is answered with."""
IDEMPOTENT = {"x-shunter-idempotent": "true"}
"""All requests are: those that a stopped worker holds may run once more."""
MOST_PAUSE_S = 1.0
ATTEMPTS = 20


class Churn(threading.Thread):
    """Unregisters and registers some models, one after the other, until ``stop``."""

    def __init__(self, server: PoolServer, models: Sequence[Archived], seed: int = 5) -> None:
        """They are registered now."""
        super().__init__(daemon=True)
        self._server, self._models, self._choose = server, list(models), random.Random(seed)
        self._over = threading.Event()
        self._steps = dict.fromkeys([each.name for each in models], 0)
        """Beginnings and ends of changes: odd while one goes on."""
        self.changes = 0
        self.failed: Counter[str] = Counter()
        """Attempts to register or unregister that were refused, by the answer's status."""

    def steps(self, model: Archived) -> int:
        """To be compared later; 0 for a model that stays."""
        return self._steps.get(model.name, 0)

    def may_be_gone(self, model: Archived, before: int) -> bool:
        """Whether it was changed since then, or was about to be."""
        return bool(before % 2) or self.steps(model) != before

    def run(self) -> None:
        """For the thread."""
        while not self._over.is_set():
            for each in self._choose.sample(self._models, len(self._models)):
                if self._over.wait(self._choose.uniform(0, MOST_PAUSE_S)):
                    return
                self.change(each)

    def change(self, model: Archived) -> None:
        """Once; it is back when this ends."""
        self._steps[model.name] += 1
        self._try(self._server.unregister, model, "404")
        self._over.wait(self._choose.uniform(0, MOST_PAUSE_S))
        self._try(self._server.register, model, "409")
        self._steps[model.name] += 1
        self.changes += 1

    def _try(self, act: Callable[[Archived], None], model: Archived, is_so: str) -> None:
        """Workers are killed meanwhile, also those that load. RuntimeError: it never works."""
        for _ in range(ATTEMPTS):
            try:
                act(model)
            except httpx.HTTPStatusError as error:
                status = str(error.response.status_code)
                if status == is_so:
                    return
                self.failed[status] += 1
            except httpx.HTTPError as error:
                self.failed[type(error).__name__] += 1
            else:
                return
            time.sleep(0.2)
        raise RuntimeError(f"{model.name}: {dict(self.failed)}")

    def stop(self) -> None:
        """All models are there again then."""
        self._over.set()
        self.join()


class Traffic:
    """Threads that ask at random, from the beginning of ``with`` to its end."""

    def __init__(
        self, server: PoolServer, models: Sequence[Packed], churn: Churn, threads: int, rate: float
    ) -> None:
        """``rate``: of all together, per second, at most."""
        self._port, self._models, self._churn = server.port, list(models), churn
        self._pause_s, self._over, self._lock = threads / rate, threading.Event(), threading.Lock()
        self.ends = Ends()
        self.gone = 0
        """Requests for models that were not there, which is what they were told."""
        self.slowest_ms = 0.0
        self.examples: list[str] = []
        """The first requests that were lost, or answered wrongly."""
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(threads)]

    @property
    def lost(self) -> int:
        """Without a right answer, and not because the model was not there."""
        return self.ends.lost - self.gone

    def __enter__(self) -> Traffic:
        self._began = time.monotonic()
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        self.ends.seconds = time.monotonic() - self._began

    def _run(self, seed: int) -> None:
        choose, caller = random.Random(seed), Caller(self._port, headers=IDEMPOTENT)
        while not self._over.is_set():
            model = choose.choice(self._models)
            before, sent = self._churn.steps(model), time.monotonic()
            end = caller.ask(model, choose.randrange(SEEDS))
            ms = (time.monotonic() - sent) * 1e3
            is_gone = end in GONE and self._churn.may_be_gone(model, before)
            with self._lock:
                self.ends.add(model.name, end, ms)
                self.gone += is_gone
                self.slowest_ms = max(self.slowest_ms, ms)
                if end != RIGHT and not is_gone and len(self.examples) < 20:
                    at = round(sent - self._began, 2)
                    self.examples.append(f"{at} s: {model.name}: {end} after {ms:.0f} ms")
            self._over.wait(choose.expovariate(1 / self._pause_s))
        caller.close()
