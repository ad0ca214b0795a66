"""Callers that compare every answer: which model gave it, and whether its numbers are right.

Closed loops of threads, each with a connection of its own. What is asked for comes from a pattern
that all of them share, so that a sequence is one whoever asks.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from common import Row, percentile

from pool.models import SEEDS, Packed

RIGHT, WRONG = "right", "wrong"
TIMEOUT_S = 120.0
ALPHA = 1.1
Pattern = Iterator[int]


def zipf_weights(count: int, alpha: float = ALPHA) -> list[float]:
    """Shares by rank.

    >>> [round(each, 3) for each in zipf_weights(5)]
    [0.436, 0.203, 0.13, 0.095, 0.074]
    """
    weights = [rank**-alpha for rank in range(1, count + 1)]
    return [each / sum(weights) for each in weights]


def sequential(count: int, seed: int) -> Pattern:
    """One after the other: the worst case of a cache that is too small by one."""
    return itertools.islice(itertools.cycle(range(count)), seed % count, None)


def uniform(count: int, seed: int) -> Pattern:
    """Any of them."""
    choose = random.Random(seed)
    return (choose.randrange(count) for _ in itertools.count())


def zipf(count: int, seed: int) -> Pattern:
    """The first one most."""
    choose, weights = random.Random(seed), zipf_weights(count)
    return (choose.choices(range(count), weights)[0] for _ in itertools.count())


PATTERNS: dict[str, Callable[[int, int], Pattern]] = {
    "sequential": sequential,
    "uniform": uniform,
    "zipf": zipf,
}


class Caller:
    """One connection."""

    def __init__(
        self, port: int, timeout_s: float = TIMEOUT_S, headers: Mapping[str, str] | None = None
    ) -> None:
        """To a server on this host; ``headers``: more of every request."""
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def ask(self, model: Packed, seed: int) -> str:
        """How the request ended: ``right``, ``wrong``, a status, or the name of an error."""
        path, body = f"/predictions/{model.name}", json.dumps({"seed": seed})
        try:
            self._connection.request("POST", path, body, self._headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return type(error).__name__
        if answer.status != 200:
            return f"status {answer.status}"
        try:
            return RIGHT if model.is_right(seed, json.loads(content)) else WRONG
        except (ValueError, KeyError, TypeError):
            return WRONG

    def close(self) -> None:
        """The next request opens another one."""
        self._connection.close()


@dataclass
class Ends:
    """What became of requests."""

    counts: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    """Of right answers."""
    by_model: dict[str, list[float]] = field(default_factory=dict)
    """The same."""
    seconds: float = 0.0

    @property
    def wrong(self) -> int:
        """Answers of another model, or with other numbers."""
        return self.counts[WRONG]

    @property
    def lost(self) -> int:
        """Requests without an answer, or with an error."""
        return self.counts.total() - self.counts[RIGHT] - self.wrong

    def add(self, model: str, end: str, ms: float) -> None:
        """Count a request that has ended."""
        self.counts[end] += 1
        if end == RIGHT:
            self.latencies_ms.append(ms)
            self.by_model.setdefault(model, []).append(ms)

    def row(self) -> Row:
        """As it stands in a result."""
        shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
        found = {name: percentile(self.latencies_ms, share) for name, share in shares.items()}
        # Models differ: the p50 of all of them is that of the one in the middle.
        p50s = [percentile(each, 0.5) for each in self.by_model.values()]
        found["model_p50_ms"] = statistics.geometric_mean(p50s) if p50s else float("nan")
        return {
            "requests": self.counts.total(),
            "rate": self.counts[RIGHT] / self.seconds if self.seconds else 0.0,
            **found,
            "wrong": self.wrong,
            "lost": self.lost,
            "ends": dict(self.counts),
        }


def closed_loop(
    port: int,
    models: Sequence[Packed],
    pattern: Pattern,
    clients: int,
    seconds: float,
    *,
    around: Callable[[Packed], AbstractContextManager[object]] | None = None,
) -> Ends:
    """Clients without think time. ``around`` a request, within its latency: what must be done
    before it can be asked, and after it."""
    ends, lock = Ends(), threading.Lock()
    began = time.monotonic()
    over = began + seconds

    def run(number: int) -> None:
        caller, choose = Caller(port), random.Random(number)
        while time.monotonic() < over:
            with lock:
                model = models[next(pattern)]
            sent = time.monotonic()
            with around(model) if around else contextlib.nullcontext():
                end = caller.ask(model, choose.randrange(SEEDS))
            ms = (time.monotonic() - sent) * 1e3
            with lock:
                ends.add(model.name, end, ms)
        caller.close()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    ends.seconds = time.monotonic() - began
    return ends


def ask_each(port: int, models: Sequence[Packed]) -> Ends:
    """Every model with every input once."""
    ends, caller, began = Ends(), Caller(port), time.monotonic()
    for seed in range(SEEDS):
        for model in models:
            sent = time.monotonic()
            end = caller.ask(model, seed)
            ends.add(model.name, end, (time.monotonic() - sent) * 1e3)
    caller.close()
    ends.seconds = time.monotonic() - began
    return ends
