"""What a model worker spends on a request besides the handler: TorchServe's loop and ours.

A process that plays the front end keeps two batches in flight on a Unix socket, as the plugin does
("one ahead"). The worker's side is timed: receive, call a trivial handler, reply, and write the
metric line to a pipe that another process reads. Both sides run the same handler and metrics,
alternating in one run; ratios are medians of the paired rounds with a bootstrap interval.

CPU time per request is the worker's own and hardly depends on the other processes; requests per
second also depend on how fast the (Python) front end of this script is.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import Parser, write_result
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.protocol.otf_message_handler import retrieve_msg
from ts.service import Service

from shunter.handlers.torchserve.connection import answer
from shunter.handlers.torchserve.metrics import LineMetricsCache, use_direct_route
from shunter.handlers.torchserve.output import LINES, LineHandler
from shunter.handlers.torchserve.receive import Receiver

NAME = "worker_receive"
METRICS = """
model_metrics:
  gauge:
    - {name: PredictionTime, unit: ms, dimensions: [ModelName, Level]}
"""
HEADERS = {
    "Host": "127.0.0.1:8080",
    "User-Agent": "python-requests/2.32.3",
    "Accept": "*/*",
    "Content-Length": "80",
    "url_path": "",
    "explain": "False",
}
FLOATS = [0.25 * number for number in range(16)]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    label: str
    batch: int
    content_type: str
    body: bytes
    reply: object
    unique_headers: bool = False
    messages: int = 2000


def cases(quick: bool) -> list[Case]:
    """Return the rows; a quick run takes fewer messages for each."""
    text = json.dumps(FLOATS).encode()
    rows = []
    for batch in (1, 8, 64):
        rows.append(Case("JSON 80 B", batch, "application/json", text, FLOATS[:4]))
        rows.append(Case("bytes 80 B", batch, "application/octet-stream", text, b"0123456789"))
    rows.append(
        Case(
            "bytes 80 B, new headers each time",
            8,
            "application/octet-stream",
            text,
            b"0123456789",
            unique_headers=True,
        )
    )
    rows.append(Case("bytes 600 KB", 1, "application/octet-stream", bytes(600_000), b"0123456789"))
    scale = 4 if quick else 1
    return [
        Case(**{**vars(row), "messages": max(100, 6000 // (row.batch + 5) // scale)})
        for row in rows
    ]


# ---- the front end's side


def field(data: bytes) -> bytes:
    """Return length and bytes."""
    return struct.pack("!i", len(data)) + data


def message(case: Case) -> bytes:
    """Return one inference message with fresh request ids."""
    parts = [b"I"]
    for _ in range(case.batch):
        headers = dict(HEADERS)
        if case.unique_headers:
            headers["traceparent"] = f"00-{uuid.uuid4().hex}-{random.getrandbits(64):016x}-01"
        parts.append(field(str(uuid.uuid4()).encode()))
        parts += [field(k.encode()) + field(v.encode()) for k, v in headers.items()]
        parts += [b"\xff" * 4, field(b"body"), field(case.content_type.encode())]
        parts += [field(case.body), b"\xff" * 4]
    return b"".join([*parts, b"\xff" * 4])


def play_front_end(sock: socket.socket, case: Case, reply_size: int, count: int) -> None:
    """Keep two messages in flight until ``count`` were answered."""
    messages = [message(case) for _ in range(min(count, 64))]
    buffer = bytearray(max(reply_size, 1))
    sock.sendall(messages[0])
    for number in range(1, count + 1):
        if number < count:
            sock.sendall(messages[number % len(messages)])
        view = memoryview(buffer)
        while view:
            view = view[sock.recv_into(view) :]


# ---- the worker's side


def stock_loop(sock: socket.socket, service: Service) -> Callable[[], int]:
    """Return a function that serves one message as TorchServe's worker does."""

    def step() -> int:
        _, received = retrieve_msg(sock)
        reply = service.predict(received)
        sock.sendall(reply)
        return len(reply)

    return step


def our_loop(sock: socket.socket, service: Service) -> Callable[[], int]:
    """Return a function that serves one message as our worker does."""
    receiver = Receiver(sock)

    def step() -> int:
        receiver.command()
        reply = answer(service, receiver.batch())
        sock.sendall(reply)
        return len(reply)

    return step


def make_service(side: str, case: Case, metrics_file: Path) -> Service:
    """Return TorchServe's service around a handler that does nothing."""
    metrics = MetricsCacheYamlImpl(str(metrics_file))
    metrics.initialize_cache()
    if side == "ours":
        metrics = LineMetricsCache.adopt(metrics)
    metrics.model_name = "bench"

    def handle(data: list, context: object) -> list:
        return [case.reply] * len(data)

    return Service("bench", ".", None, handle, None, case.batch, True, metrics)


def set_up_logging(side: str) -> None:
    """Log to the pipe as the side's worker does."""
    root = logging.getLogger()
    root.handlers.clear()
    handler = LineHandler(LINES) if side == "ours" else logging.StreamHandler(sys.stdout)
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[handler])
    if side == "ours":
        use_direct_route(handler)


def warm_up(step: Callable[[], int], front_end: socket.socket, case: Case) -> int:
    """Serve a few messages untimed; return the length of a reply."""
    size = 0
    for _ in range(20):
        feeder = os.fork()  # a long message does not fit into the socket
        if feeder == 0:
            front_end.sendall(message(case))
            os._exit(0)
        size = step()
        os.waitpid(feeder, 0)
        view = memoryview(bytearray(size))
        while view:
            view = view[front_end.recv_into(view) :]
    return size


def measure(side: str, case: Case, metrics_file: Path) -> tuple[float, float]:
    """Return (requests per second, CPU microseconds per request) of one side."""
    set_up_logging(side)
    service = make_service(side, case, metrics_file)
    theirs, mine = socket.socketpair()
    service.set_cl_socket(mine)
    step = (our_loop if side == "ours" else stock_loop)(mine, service)
    size = warm_up(step, theirs, case)
    front_end = os.fork()
    if front_end == 0:
        play_front_end(theirs, case, size, case.messages)
        os._exit(0)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for _ in range(case.messages):
        step()
    wall, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    os.waitpid(front_end, 0)
    theirs.close()
    mine.close()
    requests = case.messages * case.batch
    return requests / wall, cpu / requests * 1e6


# ---- statistics and report


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the bootstrap interval (95 %) of the median of ``ratios``."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def compare(case: Case, rounds: int, metrics_file: Path) -> dict[str, object]:
    """Return one row: both sides in alternating order, ``rounds`` times."""
    rates: dict[str, list[float]] = {"stock": [], "ours": []}
    costs: dict[str, list[float]] = {"stock": [], "ours": []}
    for number in range(rounds):
        for side in ("stock", "ours") if number % 2 else ("ours", "stock"):
            rate, cost = measure(side, case, metrics_file)
            rates[side].append(rate)
            costs[side].append(cost)
    ratios = [a / b for a, b in zip(costs["stock"], costs["ours"], strict=True)]
    return {
        "body": case.label,
        "batch": case.batch,
        "requests": case.messages * case.batch,
        "stock_requests_per_s": round(statistics.median(rates["stock"])),
        "ours_requests_per_s": round(statistics.median(rates["ours"])),
        "stock_cpu_us_per_request": round(statistics.median(costs["stock"]), 2),
        "ours_cpu_us_per_request": round(statistics.median(costs["ours"]), 2),
        "cpu_ratio": round(statistics.median(ratios), 2),
        "cpu_ratio_interval": [round(bound, 2) for bound in interval(ratios)],
    }


def show(rows: list[dict[str, object]]) -> None:
    """Print the rows as a table."""
    print(
        f"{'body':<34}{'batch':>6}{'req/s stock':>13}{'ours':>9}"
        f"{'CPU us/req stock':>18}{'ours':>8}{'ratio':>7}  interval"
    )
    for row in rows:
        low, high = row["cpu_ratio_interval"]
        print(
            f"{row['body']:<34}{row['batch']:>6}{row['stock_requests_per_s']:>13}"
            f"{row['ours_requests_per_s']:>9}{row['stock_cpu_us_per_request']:>18.2f}"
            f"{row['ours_cpu_us_per_request']:>8.2f}{row['cpu_ratio']:>7.2f}"
            f"  {low:.2f}-{high:.2f}"
        )


def main() -> None:
    """Measure, print, and write the result file."""
    parser = Parser(__doc__, rounds=11, quick_rounds=7)
    parser.add_argument("--no-write", action="store_true", help="only print the table")
    args = parser.arguments()

    screen = sys.stdout
    with tempfile.TemporaryDirectory() as folder:
        metrics_file = Path(folder) / "metrics.yaml"
        metrics_file.write_text(METRICS)
        reader = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        sys.stdout = reader.stdin
        try:
            rows = [compare(case, args.rounds, metrics_file) for case in cases(args.quick)]
            LINES.flush()
        finally:
            sys.stdout = screen
            reader.stdin.close()
            reader.wait()
    show(rows)
    if args.no_write:
        return
    headline = {
        f"cpu_ratio, {row['body']}, batch {row['batch']}": row["cpu_ratio"] for row in rows
    }
    write_result(NAME, quick=args.quick, rows=rows, headline=headline)


if __name__ == "__main__":
    main()
