"""Steady requests to the model that adds numbers; every answer is compared with the sums.

For scripts that do things to a server meanwhile and want to know what was lost: a few threads, each
with a connection of its own. What is no right answer is counted as lost, whatever the reason.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

THREADS = 4
TIMEOUT_S = 60.0


class CheckedLoad:
    """Load while a block runs."""

    def __init__(self, port: int, models: Sequence[str], rate: float) -> None:
        """``rate``: of all models together, per second."""
        self.outcomes: Counter[str] = Counter()
        """Answers by what they were."""
        self.latencies_ms: list[float] = []
        self._port, self._models = port, list(models)
        self._pause_s = THREADS / rate
        self._over, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(THREADS)]

    @property
    def sent(self) -> int:
        """All requests that ended."""
        return self.outcomes.total()

    @property
    def lost(self) -> int:
        """Those without a right answer."""
        return self.sent - self.outcomes["right"]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _run(self, seed: int) -> None:
        choose = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        while not self._over.is_set():
            model = choose.choice(self._models)
            began = time.monotonic()
            outcome = self._ask(connection, model, choose)
            took_ms = (time.monotonic() - began) * 1e3
            with self._lock:
                self.outcomes[outcome] += 1
                self.latencies_ms.append(took_ms)
            self._over.wait(choose.expovariate(1 / self._pause_s))
        connection.close()

    def _ask(
        self, connection: http.client.HTTPConnection, model: str, choose: random.Random
    ) -> str:
        numbers = [choose.randrange(100) for _ in range(16)]
        headers = {"Content-Type": "application/json"}
        try:
            connection.request("POST", f"/predictions/{model}", json.dumps({"x": numbers}), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return type(error).__name__
        if answer.status != 200:
            return f"status {answer.status}: {body[:120]!r}"
        sums = [sum(numbers[i : i + 4]) for i in range(0, 16, 4)]
        return "right" if json.loads(body) == sums else "wrong"
