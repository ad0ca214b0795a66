"""The load generator's own process: it sends what is due, whatever the server does."""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import accounting
import arrivals
import http_client
import numpy as np
from accounting import Result, Samples
from cpu_use import CpuUse
from http_client import Exchange
from load_spec import Closed, Spec, Stream, check
from precise_timer import send_all

_START_DELAY_S = 0.1
_CPU_STEP_S = 1.0
_AFTER_NO_ANSWER_S = 0.01
"""How long a closed-loop client waits then."""


class _Generator:
    """One run inside this process."""

    def __init__(self, spec: Spec) -> None:
        check(spec)
        self._spec = spec
        self._schedules = [_schedule(stream) for stream in spec.streams]
        self._seconds = max(schedule.seconds for schedule in self._schedules)
        for stream, schedule in zip(spec.streams, self._schedules, strict=True):
            first, last = self._counted(schedule.seconds)
            if first >= last:
                raise ValueError(f"stream {stream.name!r}: warm-up and cool-down leave nothing")
        self._requests = [_requests(stream) for stream in spec.streams]
        self._rows: list[tuple[float, float, float, float, int, int]] = []
        self._cpu = CpuUse(spec.cpu_pids)
        self._open = 0
        self._planned = True
        self._start = 0.0

    async def run(self, announce: Callable[[float], None]) -> None:
        """All requests, until each has ended."""
        self._over = asyncio.Event()
        self._timeouts = http_client.Timeouts(self._spec.timeout_s)
        self._targets()
        times, streams, bodies = self._merged()
        # What exists now stays; nothing made later needs a collection within one run.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._start = time.monotonic() + _START_DELAY_S
        due = (times + self._start).tolist()
        announce(self._start)
        tasks = [asyncio.create_task(self._watch_cpu()), *self._closed_clients()]

        def send(index: int) -> None:
            stream = streams[index]
            self._send(stream, self._requests[stream][bodies[index]], due[index], self._done)

        await send_all(due, send)
        await asyncio.gather(*tasks)
        self._planned = False
        if self._open:
            await self._over.wait()
        await self._close()
        gc.enable()

    def result(self) -> Result:
        """After the end."""
        rows = np.array(self._rows, dtype=float).reshape(-1, 6)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        due, taken, sent, end, status, stream = rows.T
        samples = Samples(
            due_s=due - self._start,
            late_s=np.maximum(0.0, taken - due),
            wait_s=np.where(sent > 0, sent - taken, np.nan),
            latency_s=end - due,
            status=status.astype(np.int16),
            stream=stream.astype(np.int16),
        )
        first, last = self._counted(self._seconds)
        client = accounting.client_summary(self._open_loop(samples).between(first, last))
        client["cores"] = self._cpu.own_cores()
        client["loop"] = "uvloop" if _uvloop() else "asyncio"
        return Result(
            streams={each.name: self._summary(i, samples) for i, each in enumerate(self._streams)},
            client=client,
            cpu_cores=self._cpu.cores(),
            started=self._start,
            counted_s=(first, last),
            samples=samples,
        )

    @property
    def _streams(self) -> list[Stream]:
        return self._spec.streams

    def _summary(self, number: int, samples: Samples) -> dict[str, Any]:
        stream, seconds = self._streams[number], self._schedules[number].seconds
        first, last = self._counted(seconds)
        counted = samples.of(number).between(first, last)
        found = accounting.summary(counted, last - first, stream.slo_ms)
        found |= {"class": stream.request_class, "deadline_ms": stream.deadline_ms}
        return found | {"slo_ms": stream.slo_ms, "schedule_s": seconds}

    def _counted(self, seconds: float) -> tuple[float, float]:
        return self._spec.warmup_s, min(seconds, self._seconds - self._spec.cooldown_s)

    def _open_loop(self, samples: Samples) -> Samples:
        closed = [i for i, each in enumerate(self._streams) if each.closed is not None]
        return samples.where(~np.isin(samples.stream, closed))

    def _merged(self) -> tuple[np.ndarray, list[int], list[int]]:
        """Times of all open-loop streams in order, with each one's stream and body."""
        parts = [schedule.times for schedule in self._schedules]
        times = np.concatenate(parts)
        order = np.argsort(times, kind="stable")
        streams = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        bodies = np.concatenate(
            [_body_order(s, len(p)) for s, p in zip(self._streams, parts, strict=True)]
        )
        return times[order], streams[order].tolist(), bodies[order].tolist()

    def _targets(self) -> None:
        """What each stream submits to; streams of one address share connections."""
        parts = [urlsplit(stream.url) for stream in self._streams]
        addresses = {(part.scheme, part.netloc) for part in parts}
        http = sum(scheme == "http" for scheme, _ in addresses)
        self._pools = {
            netloc: http_client.Pool(*_host_port(netloc), max(1, self._spec.connections // http))
            for scheme, netloc in addresses
            if scheme == "http"
        }
        self._grpc = {
            netloc: self._grpc_target(netloc) for scheme, netloc in addresses if scheme == "grpc"
        }
        self._submits = [
            functools.partial(self._submit_http, self._pools[part.netloc])
            if part.scheme == "http"
            else self._grpc[part.netloc].submit
            for part in parts
        ]

    def _grpc_target(self, netloc: str) -> Any:
        from grpc_load import GrpcTarget  # only here: gRPC need not be installed for REST

        return GrpcTarget(netloc, self._spec.channels, self._spec.timeout_s)

    def _submit_http(self, pool: http_client.Pool, exchange: Exchange) -> None:
        self._timeouts.watch(exchange, pool)
        pool.submit(exchange)

    def _send(self, stream: int, body: bytes, due: float, done: Callable[[Exchange], None]) -> None:
        self._open += 1
        self._submits[stream](Exchange(body, due, done, stream))

    def _done(self, exchange: Exchange) -> None:
        self._rows.append(
            (
                exchange.due,
                exchange.taken,
                exchange.sent,
                exchange.end,
                exchange.status,
                exchange.stream,
            )
        )
        self._open -= 1
        if self._open == 0 and not self._planned:
            self._over.set()

    def _closed_clients(self) -> Iterator[asyncio.Task[None]]:
        for number, stream in enumerate(self._streams):
            if stream.closed is None:
                continue
            order = _body_order(stream, 1000).tolist()
            for client in range(stream.closed.clients):
                # Clients begin at different bodies.
                bodies = order[client % len(order) :] + order[: client % len(order)]
                yield asyncio.create_task(self._closed_client(number, stream.closed, bodies))

    async def _closed_client(self, stream: int, closed: Closed, bodies: list[int]) -> None:
        await asyncio.sleep(max(0.0, self._start - time.monotonic()))
        end, sent, loop = self._start + closed.seconds, 0, asyncio.get_running_loop()
        while (now := time.monotonic()) < end:
            answered = loop.create_future()

            def done(exchange: Exchange, answered: asyncio.Future[int] = answered) -> None:
                self._done(exchange)
                answered.set_result(exchange.status)

            self._send(stream, self._requests[stream][bodies[sent % len(bodies)]], now, done)
            status = await answered
            sent += 1
            # A dead server is not asked as fast as it can refuse.
            pause = closed.think_s if status > 0 else max(closed.think_s, _AFTER_NO_ANSWER_S)
            if pause:
                await asyncio.sleep(pause)

    async def _watch_cpu(self) -> None:
        first, last = self._counted(self._seconds)
        await asyncio.sleep(max(0.0, self._start + first - time.monotonic()))
        self._cpu.begin()
        while (left := self._start + last - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _CPU_STEP_S))
            self._cpu.look()
        self._cpu.end()

    async def _close(self) -> None:
        self._timeouts.close()
        for pool in self._pools.values():
            pool.close()
        for target in self._grpc.values():
            await target.close()


def _schedule(stream: Stream) -> arrivals.Schedule:
    if stream.closed is not None:
        return arrivals.Schedule(np.empty(0), stream.closed.seconds)
    if isinstance(stream.arrivals, Mapping):
        return arrivals.make({"seed": stream.seed, **stream.arrivals})
    return arrivals.make({"kind": "times", "times": stream.arrivals})


def _requests(stream: Stream) -> list[bytes]:
    """What is sent for each body."""
    part, terms = urlsplit(stream.url), _terms(stream)
    if part.scheme == "http":
        path = (part.path or "/") + (f"?{part.query}" if part.query else "")
        headers = {**stream.headers, **terms}
        address = _host_port(part.netloc)
        return [
            http_client.prebuilt(*address, path, body, stream.content_type, headers)
            for body in stream.bodies
        ]
    import grpc_load  # only here: gRPC need not be installed for REST

    model, _, version = part.path.strip("/").partition("/")
    extra = {name: value.encode() for name, value in terms.items()}
    return [
        grpc_load.prebuilt(model, version, {stream.grpc_key: body, **extra})
        for body in stream.bodies
    ]


def _terms(stream: Stream) -> dict[str, str]:
    """Shunter's headers, or entries of a gRPC input map."""
    terms = {}
    if stream.request_class is not None:
        terms["x-shunter-class"] = stream.request_class
    if stream.deadline_ms is not None:
        terms["x-shunter-deadline-ms"] = f"{stream.deadline_ms:.10g}"
    return terms


def _body_order(stream: Stream, count: int) -> np.ndarray:
    if stream.choose == "cycle":
        return np.arange(count) % len(stream.bodies)
    return np.random.default_rng(stream.seed).integers(len(stream.bodies), size=count)


def _host_port(netloc: str) -> tuple[str, int]:
    part = urlsplit(f"//{netloc}")
    if part.hostname is None:
        raise ValueError(f"no host in {netloc!r}")
    return part.hostname, part.port or 80


def _uvloop() -> Any:
    """The faster event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop


def generate(spec: Spec, announce: Callable[[float], None] = lambda started: None) -> Result:
    """Run in this process, which then does nothing else."""
    generator, uvloop = _Generator(spec), _uvloop()
    factory = uvloop.new_event_loop if uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(generator.run(announce))
    return generator.result()
