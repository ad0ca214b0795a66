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
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import arrivals
import generator
import http_client
from accounting import Result
from load_spec import Closed, Spec, Stream


class LoadFailed(Exception):
    """The generator's process ended without a result; the message is what it said."""


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
        try:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )
        except BaseException:
            self._remove()
            raise
        try:
            line = self._process.stdout.readline() if self._process.stdout else ""
        except BaseException:
            self.close()
            raise
        if not line:
            self._fail()
        self.started = float(line)
        """``time.monotonic()`` of the run's start."""

    @property
    def pid(self) -> int:
        """Of its process, or of what a wrapper made of that."""
        return self._process.pid

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
        self._remove()

    def _remove(self) -> None:
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
        import ceiling  # which loads this module

        print(json.dumps(ceiling.null_ceiling(), indent=1))
        return
    if (args.spec is None) == (args.url is None):
        parser.error("give either a SPEC.json or --url")
    announce = functools.partial(print, flush=True) if args.announce else lambda started: None
    try:
        result = generator.generate(_spec_of(args), announce)
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
