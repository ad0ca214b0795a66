"""A small, cheap HTTP/1.1 client on asyncio: prebuilt requests, a pool of kept connections.

One request is outstanding per connection. Of an answer only the status and the length are read.
Every exchange ends exactly once: with an HTTP status, or with a negative reason for no answer.
All times are seconds of ``time.monotonic()``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

from http_parser import Malformed, Parser

MAX_CONNECTIONS = 256

TIMEOUT, BROKEN, REFUSED = -1, -2, -3
UNANSWERED = {TIMEOUT: "timeout", BROKEN: "broken", REFUSED: "refused"}
"""Why a request was not answered: in time not at all; the connection broke or carried nonsense;
no connection could be made."""

_SWEEP_S = 0.02
"""How often timeouts are looked for; they may come that much late."""


def prebuilt(
    host: str,
    port: int,
    path: str,
    body: bytes,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes of one POST request."""
    fields = {"Host": f"{host}:{port}", "Content-Type": content_type, **(headers or {})}
    fields["Content-Length"] = str(len(body))
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header or path contains a line break")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Exchange:
    """One request and what becomes of it."""

    __slots__ = ("body", "done", "due", "end", "sent", "status", "stream", "taken")

    def __init__(
        self, body: bytes, due: float, done: Callable[[Exchange], None], stream: int = 0
    ) -> None:
        self.body = body
        """All bytes of the request."""
        self.due = due
        """When it was to be sent."""
        self.taken = 0.0
        """When the client's loop came to it."""
        self.sent = 0.0
        """When it was written to a connection; 0: never."""
        self.end = 0.0
        self.status = 0
        """0 while it goes on, then an HTTP status or a key of ``UNANSWERED``."""
        self.done = done
        self.stream = stream

    def finish(self, status: int) -> None:
        """End it, unless it has ended."""
        if self.status == 0:
            self.status, self.end = status, time.monotonic()
            self.done(self)


class _Connection(asyncio.Protocol):
    """One connection of a pool."""

    __slots__ = ("_lost", "_parser", "_pool", "_transport", "exchange")

    def __init__(self, pool: Pool) -> None:
        self._pool, self._parser, self._lost = pool, Parser(), False
        self._transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._pool.connected(self)

    def send(self, exchange: Exchange) -> None:
        """Write a request; none may be outstanding."""
        self.exchange = exchange
        exchange.sent = time.monotonic()
        self._transport.write(exchange.body)

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:  # nothing was asked
            self.abort()
            return
        try:
            if not self._parser.feed(data):
                return
        except Malformed:
            self.abort()
            return
        exchange, status, keep = self.exchange, self._parser.status, self._parser.keep
        self.exchange = None
        self._parser.reset()
        exchange.finish(status)
        if keep and not self._lost:
            self._pool.free(self)
        else:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.abort(complete=error is None and self._parser.closed())

    def abort(self, complete: bool = False) -> None:
        """Close the connection and end what was outstanding."""
        if self._lost:
            return
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.finish(self._parser.status if complete else BROKEN)
        self._pool.lost(self)


class Pool:
    """Connections to one address; what finds none free waits in order."""

    def __init__(self, host: str, port: int, limit: int = MAX_CONNECTIONS) -> None:
        """Keep at most ``limit`` connections open."""
        self._address, self._limit = (host, port), limit
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._waiting: deque[Exchange] = deque()
        self._dialing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open(self) -> int:
        """Connections open now."""
        return len(self._all)

    def submit(self, exchange: Exchange) -> None:
        """Send now, or as soon as a connection is free."""
        exchange.taken = time.monotonic()
        if self._idle and not self._waiting:
            self._idle.pop().send(exchange)
        else:
            self._waiting.append(exchange)
            self._dial()

    def connected(self, connection: _Connection) -> None:
        """A connection was made."""
        self._all.add(connection)
        self.free(connection)

    def free(self, connection: _Connection) -> None:
        """A connection can take the next request."""
        if self._closed:
            connection.abort()
            return
        while self._waiting:
            exchange = self._waiting.popleft()
            if exchange.status == 0:
                connection.send(exchange)
                return
        self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._dial()

    def _dial(self) -> None:
        """Open as many connections as there are requests without one, within the limit."""
        if self._closed:
            return
        wanted = min(len(self._waiting), self._limit - len(self._all))
        for _ in range(wanted - len(self._dialing)):
            task = asyncio.get_running_loop().create_task(self._connect())
            self._dialing.add(task)
            task.add_done_callback(self._dialed)

    def _dialed(self, task: asyncio.Task[None]) -> None:
        self._dialing.discard(task)
        self._dial()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Connection(self), *self._address)
        except OSError:
            # One attempt, one request: under a dead server each ends soon, and none is lost.
            if self._waiting:
                self._waiting.popleft().finish(REFUSED)

    def cancel(self, exchange: Exchange, status: int) -> None:
        """End an exchange; its connection is of no more use."""
        exchange.finish(status)
        if self._waiting and self._waiting[0] is exchange:
            self._waiting.popleft()
            return
        for connection in self._all:
            if connection.exchange is exchange:
                connection.abort()
                break

    def close(self) -> None:
        """Close all connections; what is outstanding ends as broken."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().finish(BROKEN)
        for connection in list(self._all):
            connection.abort()
        for task in self._dialing:
            task.cancel()


class Timeouts:
    """Ends exchanges that take longer than ``timeout_s`` from their scheduled time."""

    def __init__(self, timeout_s: float) -> None:
        """All exchanges have the same limit."""
        self._timeout_s = timeout_s
        self._watched: deque[tuple[Exchange, Pool]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, exchange: Exchange, pool: Pool) -> None:
        """Watch an exchange; to be called in the order of their scheduled times."""
        self._watched.append((exchange, pool))
        if self._timer is None:
            self._sweep()

    def _sweep(self) -> None:
        watched, limit = self._watched, time.monotonic() - self._timeout_s
        while watched and (watched[0][0].status or watched[0][0].due <= limit):
            exchange, pool = watched.popleft()
            if exchange.status == 0:
                pool.cancel(exchange, TIMEOUT)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SWEEP_S, self._sweep) if watched else None

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
