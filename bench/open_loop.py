"""Open-loop HTTP load: requests leave when they are due, whatever the server does.

Latency counts from the scheduled time of sending, so a stall of the server shows in every request
that was due meanwhile. Each request ends in exactly one outcome: a status, or ``unanswered``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

MAX_CONNECTIONS = 256


@dataclass
class Outcome:
    """What became of the requests of one phase."""

    statuses: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    """Of answers with status 200."""
    late_ms: list[float] = field(default_factory=list)
    """How late the client itself sent; large values mean that the client was the limit."""

    @property
    def sent(self) -> int:
        """All requests."""
        return self.statuses.total()

    def count(self, first_digit: str) -> int:
        """Answers whose status starts with that digit."""
        return sum(n for status, n in self.statuses.items() if status[0] == first_digit)


class Client:
    """Keeps connections open and posts one body at scheduled times."""

    def __init__(self, host: str, port: int, path: str, body: bytes) -> None:
        """Post ``body`` to ``path``."""
        self._address = host, port
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def run(self, rate: float, seconds: float, seed: int, timeout_s: float) -> Outcome:
        """Poisson arrivals at ``rate`` per second; returns when every request has ended."""
        outcome, tasks = Outcome(), []
        choose, start = random.Random(seed), time.monotonic()
        due = start
        while (due := due + choose.expovariate(rate)) < start + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self._one(due, outcome, timeout_s)))
        await asyncio.gather(*tasks)
        return outcome

    async def _one(self, due: float, outcome: Outcome, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                outcome.late_ms.append((time.monotonic() - due) * 1e3)
                status = await self._exchange()
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            status = "unanswered"
        outcome.statuses[status] += 1
        if status == "200":
            outcome.latencies_ms.append((time.monotonic() - due) * 1e3)

    async def _exchange(self) -> str:
        reader, writer = await self._connection()
        try:
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            fields = head.lower().split(b"\r\n")
            length = next(int(f[15:]) for f in fields if f.startswith(b"content-length:"))
            await reader.readexactly(length)
        except BaseException:
            writer.close()
            raise
        if b"connection: close" in fields:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return head[9:12].decode()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(*self._address)

    def close(self) -> None:
        """Close what is open."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
