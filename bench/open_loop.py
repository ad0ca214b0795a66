"""A Poisson client inside the caller's event loop, for scripts that act on the server meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from http_client import Exchange, Pool, Timeouts, prebuilt
from precise_timer import send_all


@dataclass
class Outcome:
    """What became of the requests of one phase."""

    statuses: Counter[str] = field(default_factory=Counter)
    """By status; ``unanswered`` for none."""
    latencies_ms: list[float] = field(default_factory=list)
    """Of answers with status 200, from the scheduled time of sending."""
    late_ms: list[float] = field(default_factory=list)
    """How late the client itself sent; large values mean that the client was the limit."""

    @property
    def sent(self) -> int:
        """All requests."""
        return self.statuses.total()

    def count(self, first_digit: str) -> int:
        """Answers whose status starts with that digit."""
        return sum(n for status, n in self.statuses.items() if status[0] == first_digit)

    def add(self, exchange: Exchange) -> None:
        """Count an exchange that has ended."""
        status = str(exchange.status) if exchange.status > 0 else "unanswered"
        self.statuses[status] += 1
        if exchange.sent:
            self.late_ms.append((exchange.sent - exchange.due) * 1e3)
        if status == "200":
            self.latencies_ms.append((exchange.end - exchange.due) * 1e3)


class Client:
    """Posts one body in open loop, inside the caller's event loop.

    For scripts that act on the server meanwhile; ``load.py`` measures more, in its own process.
    """

    def __init__(self, host: str, port: int, path: str, body: bytes) -> None:
        """Post ``body`` to ``path``."""
        self._pool = Pool(host, port)
        self._request = prebuilt(host, port, path, body)

    async def run(self, rate: float, seconds: float, seed: int, timeout_s: float) -> Outcome:
        """Poisson arrivals at ``rate`` per second; returns when every request has ended."""
        outcome, choose, times = Outcome(), random.Random(seed), []
        due, end = time.monotonic(), time.monotonic() + seconds
        while (due := due + choose.expovariate(rate)) < end:
            times.append(due)
        over = asyncio.Event()
        timeouts = Timeouts(timeout_s)

        def done(exchange: Exchange) -> None:
            outcome.add(exchange)
            if outcome.sent == len(times):
                over.set()

        def send(index: int) -> None:
            exchange = Exchange(self._request, times[index], done)
            timeouts.watch(exchange, self._pool)
            self._pool.submit(exchange)

        await send_all(times, send)
        if times:
            await over.wait()
        timeouts.close()
        return outcome

    def close(self) -> None:
        """Close what is open."""
        self._pool.close()
