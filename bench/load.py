"""Load generator: open-loop and closed-loop streams against TorchServe's REST and gRPC APIs.

A run has one or more streams, each with its own arrivals, bodies, request class, deadline and SLO.
Requests leave when they are due, whatever the server does; latency counts from the scheduled
time, and each request ends in exactly one outcome.

Examples:
    python bench/load.py --url http://127.0.0.1:8080/predictions/m --rate 200 --seconds 10 \\
        --body '{"text": "x"}' --slo-ms 100
    python bench/load.py --url http://127.0.0.1:8080/predictions/m --preset twitter --rate 300 \\
        --seconds 60 --class strict --deadline-ms 100 --out run.json
    python bench/load.py --url http://127.0.0.1:8080/predictions/m --trace REAL.json --task vgg19_rt
    python bench/load.py --url grpc://127.0.0.1:7070/m --clients 8 --seconds 10
    python bench/load.py spec.json --out run.json      # several streams; samples in run.npz
    python bench/load.py --null-ceiling                # what this client can do on this machine
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import gc
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import accounting
import arrivals
import http_client
import numpy as np
import psutil
from accounting import Samples
from http_client import Exchange

_START_DELAY_S = 0.1
_CPU_STEP_S = 1.0
_AFTER_NO_ANSWER_S = 0.01
"""How long a closed-loop client waits then."""


class LoadFailed(Exception):
    """The generator's process ended without a result; the message is what it said."""


@dataclass
class Closed:
    """Clients that send their next request ``think_s`` after an answer, for ``seconds``."""

    clients: int
    seconds: float
    think_s: float = 0.0


@dataclass
class Stream:
    """Requests of one kind. Exactly one of ``arrivals`` and ``closed`` is given."""

    name: str
    url: str
    """``http://host:port/path`` or ``grpc://host:port/model[/version]``."""
    arrivals: Mapping[str, Any] | Sequence[float] | np.ndarray | None = None
    """What ``arrivals.make`` takes, or times in seconds from the start."""
    closed: Closed | None = None
    bodies: Sequence[bytes] = (b"{}",)
    choose: str = "cycle"
    """How a body is chosen: ``cycle`` or ``random`` (by ``seed``)."""
    content_type: str = "application/json"
    request_class: str | None = None
    """``strict``, ``best_effort`` or nothing."""
    deadline_ms: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    slo_ms: float | None = None
    """From the scheduled time of sending; only for the accounting."""
    seed: int = 0
    grpc_key: str = "data"
    """Under which key of the input map a gRPC body stands."""


@dataclass
class Spec:
    """A run."""

    streams: list[Stream]
    timeout_s: float = 30.0
    """From the scheduled time; then a request counts as unanswered."""
    connections: int = http_client.MAX_CONNECTIONS
    """At most this many for the run, shared evenly by its addresses."""
    channels: int = 4
    """gRPC channels for each address."""
    warmup_s: float = 0.0
    """Requests scheduled earlier are sent, but not counted."""
    cooldown_s: float = 0.0
    """Likewise those of the last seconds."""
    cpu_pids: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Processes whose use of processors is measured, by a name for their sum."""

    def to_json(self) -> str:
        """What ``from_json`` reads."""
        return json.dumps(asdict(self), default=_plain)

    @classmethod
    def from_json(cls, text: str, folder: Path = Path()) -> Self:
        """Parse; paths of bodies and traces are relative to ``folder``. Raises ``ValueError``."""
        content = json.loads(text)
        try:
            streams = [_stream(given, folder) for given in content.pop("streams")]
            return cls(streams=streams, **content)
        except (KeyError, TypeError, AttributeError, OSError) as error:
            raise ValueError(f"bad spec: {type(error).__name__}: {error}") from error


def _plain(value: Any) -> Any:
    """What JSON does not know: bytes become base64, arrays lists."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot stand in a spec")


def _stream(given: Mapping[str, Any], folder: Path) -> Stream:
    stream = Stream(**given)
    if stream.closed is not None:
        stream.closed = Closed(**stream.closed)  # type: ignore[arg-type]
    if isinstance(stream.arrivals, Mapping) and "path" in stream.arrivals:
        stream.arrivals = {**stream.arrivals, "path": str(folder / stream.arrivals["path"])}
    stream.bodies = [_body(body, folder) for body in stream.bodies]
    return stream


def _body(given: Any, folder: Path) -> bytes:
    """A text, {"base64": ...}, {"file": path}, {"json": anything} or bytes."""
    match given:
        case bytes():
            return given
        case str():
            return given.encode()
        case {"base64": text}:
            return base64.b64decode(text)
        case {"file": path}:
            return (folder / path).read_bytes()
        case {"json": value}:
            return json.dumps(value).encode()
    raise ValueError(f"no body: {given!r}")


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    streams: dict[str, dict[str, Any]]
    """Sums by name, see ``accounting.summary``."""
    client: dict[str, Any]
    """How late the client was, its cores, its event loop."""
    cpu_cores: dict[str, float]
    """Of ``Spec.cpu_pids``, mean of the counted time."""
    started: float
    """``time.monotonic()`` of the run's start; the same in every process of the machine."""
    counted_s: tuple[float, float]
    """What was counted, in seconds from the start."""
    samples: Samples
    """All requests, trimmed ones too."""

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Sums of one stream."""
        return self.streams[name]

    def of(self, name: str) -> Samples:
        """The requests of one stream, trimmed ones too."""
        return self.samples.of(list(self.streams).index(name))

    def windows(self, name: str, width_s: float = 0.25) -> dict[str, list[float | None]]:
        """A time series of one stream, see ``accounting.windows``."""
        slo_ms = self.streams[name]["slo_ms"]
        seconds = self.streams[name]["schedule_s"]
        return accounting.windows(self.of(name), seconds, width_s=width_s, slo_ms=slo_ms)

    def save(self, path: Path) -> None:
        """Write JSON, and the samples beside it as .npz."""
        content = {name: value for name, value in vars(self).items() if name != "samples"}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self.samples.save(path.with_suffix(".npz"))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        content["counted_s"] = tuple(content["counted_s"])
        return cls(**content, samples=Samples.read(path.with_suffix(".npz")))


class Running:
    """A run that goes on in its own process; a context manager that ends it."""

    def __init__(self, spec: Spec, out: Path | None = None, wrapper: Sequence[str] = ()) -> None:
        """Start it; returns once the first request is about to leave."""
        self._folder = tempfile.TemporaryDirectory(prefix="shunter-load-")
        folder = Path(self._folder.name)
        self._out = out or folder / "result.json"
        (folder / "spec.json").write_text(spec.to_json(), encoding="utf-8")
        self._errors = (folder / "errors").open("w+", encoding="utf-8")
        command = [*wrapper, sys.executable, str(Path(__file__).resolve()), "--announce"]
        command += [str(folder / "spec.json"), "--out", str(self._out), "--paths-from", "."]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        try:
            line = self._process.stdout.readline() if self._process.stdout else ""
        except BaseException:
            self.close()
            raise
        if not line:
            self._fail()
        self.started = float(line)
        """``time.monotonic()`` of the run's start."""

    def result(self) -> Result:
        """Wait for the end."""
        if self._process.wait() != 0:
            self._fail()
        found = Result.read(self._out)
        self.close()
        return found

    def close(self) -> None:
        """End the run if it goes on, and remove its files."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()
        self._folder.cleanup()

    def _fail(self) -> None:
        self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().strip()
        code = self._process.returncode
        self.close()
        raise LoadFailed(text or f"the load generator ended with {code}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(spec: Spec, out: Path | None = None, wrapper: Sequence[str] = ()) -> Running:
    """Start a run; ``wrapper`` is a command before the generator's, such as taskset."""
    return Running(spec, out, wrapper)


def run(spec: Spec, out: Path | None = None, wrapper: Sequence[str] = ()) -> Result:
    """Run in a process of its own and wait for the end."""
    with start(spec, out, wrapper) as running:
        return running.result()


# What follows happens in the generator's process.


class _Cpu:
    """Processor seconds of this process and of others, between two moments."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._processes = {name: _processes(group) for name, group in pids.items()}
        self._first: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, float] = {}
        self._began = self._ended = 0.0
        self._own = 0.0

    def begin(self) -> None:
        """The counted time begins."""
        self._began, self._own = time.monotonic(), time.process_time()
        self.look()
        self._first = dict(self._last)

    def end(self) -> None:
        """The counted time ends."""
        if self._began and not self._ended:
            self.look()
            self._ended, self._own = time.monotonic(), time.process_time() - self._own

    def look(self) -> None:
        """Note how much they used so far: of a process that ends, the last look counts."""
        for process in (each for group in self._processes.values() for each in group):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._last[process] = times.user + times.system

    def cores(self) -> dict[str, float]:
        """Mean number of cores in use, by name."""
        wall = self._ended - self._began
        return {
            name: round(sum(self._used(process) for process in group) / wall, 4)
            for name, group in self._processes.items()
        }

    def own_cores(self) -> float:
        """Of this process."""
        return round(self._own / (self._ended - self._began), 4)

    def _used(self, process: psutil.Process) -> float:
        return self._last.get(process, 0.0) - self._first.get(process, 0.0)


def _processes(pids: Sequence[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


class _Generator:
    """One run inside this process."""

    def __init__(self, spec: Spec) -> None:
        _check(spec)
        self._spec = spec
        self._schedules = [_schedule(stream) for stream in spec.streams]
        self._seconds = max(schedule.seconds for schedule in self._schedules)
        for stream, schedule in zip(spec.streams, self._schedules, strict=True):
            first, last = self._counted(schedule.seconds)
            if first >= last:
                raise ValueError(f"stream {stream.name!r}: warm-up and cool-down leave nothing")
        self._requests = [_requests(stream) for stream in spec.streams]
        self._rows: list[tuple[float, float, float, float, int, int]] = []
        self._cpu = _Cpu(spec.cpu_pids)
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

        await http_client.send_all(due, send)
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


def _check(spec: Spec) -> None:
    if not spec.streams:
        raise ValueError("a run needs at least one stream")
    names = [stream.name for stream in spec.streams]
    if len(set(names)) < len(names):
        raise ValueError(f"streams must have different names: {names}")
    for stream in spec.streams:
        if (stream.arrivals is None) == (stream.closed is None):
            raise ValueError(f"stream {stream.name!r}: give either arrivals or closed")
        if not stream.bodies or stream.choose not in ("cycle", "random"):
            raise ValueError(f"stream {stream.name!r}: needs bodies, and choose cycle or random")
        if urlsplit(stream.url).scheme not in ("http", "grpc"):
            raise ValueError(f"stream {stream.name!r}: url must begin with http:// or grpc://")
    if spec.timeout_s <= 0 or spec.connections < 1 or spec.channels < 1:
        raise ValueError("timeout_s must be above 0, connections and channels at least 1")
    if spec.warmup_s < 0 or spec.cooldown_s < 0:
        raise ValueError("warmup_s and cooldown_s must be >= 0")


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


# The ceiling of the client itself.


@contextlib.contextmanager
def null_server() -> Iterator[str]:
    """A server that answers at once, in its own process; yields its URL."""
    command = [sys.executable, str(Path(__file__).with_name("null_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/predictions/null"
        finally:
            process.send_signal(signal.SIGTERM)


def null_ceiling(
    rate: float = 500.0, seconds: float = 1.0, body: bytes = b"{}", limit_s: float = 18.0
) -> dict[str, Any]:
    """What this client can do on this machine, against a server that does nothing.

    ``ceiling_per_s`` is the highest rate at which it sends 99 % within 2 ms of their time and at
    least 99 % are answered within the schedule; ``added_*`` are latencies at ``rate``, all of them
    the client's, the kernel's and the null server's.
    """
    end, passed, failed = time.monotonic() + limit_s, 0.0, float("inf")
    probes: list[dict[str, float]] = []
    with null_server() as url:
        quiet = _probe(url, rate, seconds, body)
        probed = 2000.0
        while time.monotonic() + seconds + 1 < end and failed / max(passed, 1) > 1.1:
            probe = _probe(url, probed, seconds, body)
            probes.append(probe)
            if probe["late_p99_ms"] < 2 and probe["achieved"] >= 0.99:
                passed = probed
            else:
                failed = probed
            probed = probed * 2 if failed == float("inf") else _between(passed, failed)
    added = {f"added_{name}": quiet[name] for name in ("p50_ms", "p99_ms")}
    return {"ceiling_per_s": passed, "at_rate": rate, **added, "quiet": quiet, "probes": probes}


def _between(passed: float, failed: float) -> float:
    return (passed * failed) ** 0.5 if passed else failed / 2


def _probe(url: str, rate: float, seconds: float, body: bytes) -> dict[str, float]:
    warmup = 0.3  # connections are opened
    plan = {"kind": "poisson", "rate": rate, "seconds": seconds + warmup}
    stream = Stream("null", url, arrivals=plan, bodies=[body])
    found = run(Spec([stream], timeout_s=2, warmup_s=warmup))
    samples = found.of("null").between(*found.counted_s)
    in_time = samples.due_s + samples.latency_s <= found.counted_s[1] + 0.002
    answered = np.count_nonzero(in_time & (samples.status == 200))
    return {
        "rate": round(rate, 1),
        "achieved": round(float(answered / max(1, len(samples))), 4),
        **{name: found["null"][name] for name in ("p50_ms", "p99_ms")},
        **{name: found.client[name] for name in ("late_p50_ms", "late_p99_ms", "cores")},
    }


# The command line.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("what to run: a SPEC, or one stream by hand")
    what.add_argument("spec", nargs="?", type=Path, metavar="SPEC.json")
    what.add_argument("--url", help="http://host:port/path or grpc://host:port/model[/version]")
    what.add_argument("--null-ceiling", action="store_true", help="measure the client, under 20 s")
    when = parser.add_argument_group("when")
    when.add_argument("--rate", type=float, help="requests/s; with --preset the mean")
    when.add_argument("--seconds", type=float, default=10, help="default 10")
    when.add_argument("--uniform", action="store_true", help="equal distances, else Poisson")
    when.add_argument("--preset", choices=sorted(arrivals.PRESETS), help="rates like a known trace")
    when.add_argument("--trace", type=Path, help="DISB JSON, Azure CSV or counts per second")
    when.add_argument("--task", help="task of a DISB file, default all open-loop ones")
    when.add_argument("--time-scale", type=float, default=1, help="stretch a trace, default 1")
    when.add_argument("--rate-scale", type=float, default=1, help="multiply a trace, default 1")
    when.add_argument("--clients", type=int, help="closed loop with so many clients instead")
    when.add_argument("--think-s", type=float, default=0, help="pause of a closed-loop client")
    when.add_argument("--seed", type=int, default=0)
    sent = parser.add_argument_group("what is sent")
    sent.add_argument("--body", default="{}", help="default {}")
    sent.add_argument("--body-file", type=Path)
    sent.add_argument("--content-type", default="application/json")
    sent.add_argument("--class", dest="request_class", help="strict or best_effort")
    sent.add_argument("--deadline-ms", type=float)
    counted = parser.add_argument_group("what is counted")
    counted.add_argument("--slo-ms", type=float, help="limit of a good answer's latency")
    counted.add_argument("--timeout-s", type=float, default=30, help="default 30")
    counted.add_argument("--warmup-s", type=float, default=0, help="not counted, default 0")
    counted.add_argument("--connections", type=int, default=http_client.MAX_CONNECTIONS)
    counted.add_argument("--pid", type=int, action="append", default=[], help="measure its cores")
    parser.add_argument("--out", type=Path, help="write the result here, samples beside it")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--announce", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--paths-from", type=Path, help=argparse.SUPPRESS)
    return parser


def _spec_of(args: argparse.Namespace) -> Spec:
    if args.spec is not None:
        folder = args.paths_from or args.spec.parent
        return Spec.from_json(args.spec.read_text(encoding="utf-8"), folder)
    body = args.body_file.read_bytes() if args.body_file else args.body.encode()
    stream = Stream(
        name="load",
        url=args.url,
        bodies=[body],
        content_type=args.content_type,
        request_class=args.request_class,
        deadline_ms=args.deadline_ms,
        slo_ms=args.slo_ms,
        seed=args.seed,
    )
    if args.clients is not None:
        stream.closed = Closed(args.clients, args.seconds, args.think_s)
    else:
        stream.arrivals = _arrivals_of(args)
    pids = {"given": args.pid} if args.pid else {}
    return Spec(
        [stream],
        timeout_s=args.timeout_s,
        connections=args.connections,
        warmup_s=args.warmup_s,
        cpu_pids=pids,
    )


def _arrivals_of(args: argparse.Namespace) -> dict[str, Any]:
    if args.trace is not None:
        given = {"kind": "trace", "path": str(args.trace), "time_scale": args.time_scale}
        given |= {"rate_scale": args.rate_scale}
        return given | ({"task": args.task} if args.task else {})
    if args.preset is not None:
        given = {"kind": "preset", "name": args.preset, "seconds": int(args.seconds)}
        return given | ({"mean": args.rate} if args.rate is not None else {})
    if args.rate is None:
        raise ValueError("give --rate, --preset, --trace or --clients")
    kind = "uniform" if args.uniform else "poisson"
    return {"kind": kind, "rate": args.rate, "seconds": args.seconds}


def _print(result: Result) -> None:
    for name, found in result.streams.items():
        print(
            f"{name}: sent {found['sent']} in {found['seconds']} s, {found['statuses']}\n"
            f"  ok {found['ok_per_s']}/s, good {found['goodput_per_s']}/s, attainment "
            f"{found['attainment']}, unanswered {found['unanswered']}\n"
            f"  p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms, "
            f"p99.9 {found['p999_ms']} ms, worst {found['max_ms']} ms"
        )
    print(f"client: {json.dumps(result.client)}")
    if result.cpu_cores:
        print(f"cores: {json.dumps(result.cpu_cores)}")


def main() -> None:
    """Run what the command line says."""
    parser = _parser()
    args = parser.parse_args()
    if args.null_ceiling:
        print(json.dumps(null_ceiling(), indent=1))
        return
    if (args.spec is None) == (args.url is None):
        parser.error("give either a SPEC.json or --url")
    announce = functools.partial(print, flush=True) if args.announce else lambda started: None
    try:
        result = generate(_spec_of(args), announce)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if args.out is not None:
        result.save(args.out)
    if args.json:
        print(json.dumps({k: v for k, v in vars(result).items() if k != "samples"}, indent=1))
    elif not args.announce:
        _print(result)


if __name__ == "__main__":
    main()
