"""A small, cheap HTTP/1.1 client on asyncio: prebuilt requests, a pool of kept connections.

One request is outstanding per connection. Of an answer only the status and the length are read.
Every exchange ends exactly once: with an HTTP status, or with a negative reason for no answer.
All times are seconds of ``time.monotonic()``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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


class Malformed(ValueError):
    """An answer is no HTTP/1.1."""


_HEAD, _LENGTH, _UNTIL_CLOSE, _SIZE, _CHUNK, _TRAILER = range(6)


class Parser:
    """Finds the end of one answer after the other.

    >>> parser = Parser()
    >>> parser.feed(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\no"), parser.feed(b"k")
    (False, True)
    >>> parser.status, parser.keep
    (200, True)
    """

    __slots__ = ("_left", "_part", "_state", "keep", "started", "status")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Expect the next answer."""
        self._state, self._part, self._left = _HEAD, b"", 0
        self.status, self.keep, self.started = 0, True, False

    def feed(self, data: bytes) -> bool:
        """Whether the answer is complete. Raises ``Malformed``."""
        self.started = True
        if self._part:
            data, self._part = self._part + data, b""
        while True:
            if self._state == _HEAD:
                end = data.find(b"\r\n\r\n")
                if end < 0:
                    return self._keep_part(data, 1 << 16)
                head, data = data[:end], data[end + 4 :]
                if self._head(head):
                    return self._over(data)
            elif self._state == _LENGTH:
                self._left -= len(data)
                return self._left <= 0 and self._over(data[len(data) + self._left :])
            elif self._state == _UNTIL_CLOSE:
                return False
            elif self._state == _CHUNK:
                if len(data) < self._left:
                    self._left -= len(data)
                    return False
                data, self._state = data[self._left :], _SIZE
            else:
                line, mark, data = data.partition(b"\r\n")
                if not mark:
                    return self._keep_part(line, 1 << 12)
                if self._state == _SIZE:
                    self._size(line)
                elif not line:
                    return self._over(data)

    def closed(self) -> bool:
        """Whether the end of the connection completes the answer."""
        return self._state == _UNTIL_CLOSE

    def _keep_part(self, data: bytes, limit: int) -> bool:
        if len(data) > limit:
            raise Malformed("a line or head is too long")
        self._part = data
        return False

    def _over(self, rest: bytes) -> bool:
        # Nothing was asked for that could be answered by more.
        self.keep = self.keep and not rest
        return True

    def _size(self, line: bytes) -> None:
        try:
            size = int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise Malformed(f"chunk size {line[:20]!r}") from error
        # Two more bytes: the line break after the chunk.
        self._state, self._left = (_CHUNK, size + 2) if size else (_TRAILER, 0)

    def _head(self, head: bytes) -> bool:
        """Whether the answer ends with its head."""
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise Malformed(f"status line {head[:20]!r}")
        self.status = int(head[9:12])
        if self.status < 200:  # interim: the answer itself follows
            return False
        lower = head.lower()
        self.keep = head[7:8] == b"1" and b"\r\nconnection: close" not in lower
        if self.status in (204, 304):
            return True
        if b"\r\ntransfer-encoding:" in lower:
            self._state = _SIZE
            return False
        at = lower.find(b"\r\ncontent-length:")
        if at < 0:
            self._state, self.keep = _UNTIL_CLOSE, False
            return False
        text = lower[at + 17 :].split(b"\r\n", 1)[0].strip()
        if not text.isdigit():
            raise Malformed(f"content-length {text[:20]!r}")
        self._state, self._left = _LENGTH, int(text)
        return self._left == 0


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


class PreciseTimer:
    """Calls back at given times, to some ten microseconds.

    The timers of event loops have steps of 1 ms, so that a request due now would wait half of one
    on average; Linux's timer descriptors have no such steps.
    """

    _MONOTONIC, _ABSOLUTE, _NONBLOCK = 1, 1, 0o4000

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Call ``call`` in ``loop`` at each time set."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(self._MONOTONIC, self._NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop, self._call = loop, call
        self._value = (ctypes.c_long * 4)()  # interval s, ns; next s, ns
        loop.add_reader(self._fd, self._fire)

    def set(self, when: float) -> None:
        """Call back once at ``when``; a time that has passed means at once."""
        nanoseconds = max(1, int(when * 1e9))
        self._value[2], self._value[3] = divmod(nanoseconds, 1_000_000_000)
        self._libc.timerfd_settime(self._fd, self._ABSOLUTE, self._value, None)

    def _fire(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew meanwhile
            return
        self._call()

    def close(self) -> None:
        """Stop."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


async def send_all(times: Sequence[float], send: Callable[[int], None]) -> None:
    """Call ``send(i)`` when ``times[i]`` has come; sorted, monotonic seconds."""
    loop = asyncio.get_running_loop()
    over, position, total = loop.create_future(), 0, len(times)

    def tick() -> None:
        nonlocal position
        try:
            now = time.monotonic()
            while position < total and times[position] <= now:
                send(position)
                position += 1
        except Exception as error:
            if not over.done():
                over.set_exception(error)
            return
        if position < total:
            timer.set(times[position])
        elif not over.done():
            over.set_result(None)

    timer = PreciseTimer(loop, tick)
    try:
        tick()
        await over
    finally:
        timer.close()


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
