"""``shunter trace``: an access log as spans of OpenTelemetry."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_LOOK_S = 0.5
_NS_PER_MS = 1_000_000


def trace(
    log: Annotated[Path, typer.Argument(help="What SHUNTER_ACCESS_LOG names.")],
    endpoint: Annotated[
        str, typer.Option(help="Where OTLP is taken by HTTP.")
    ] = "http://127.0.0.1:4318/v1/traces",
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on with what comes, until Ctrl-C.")
    ] = True,
    every: Annotated[
        bool, typer.Option("--every", help="Also requests without a traceparent.")
    ] = False,
) -> None:
    """Send a span for each request of an access log, with its wait and its batch below it.

    A request that brings the header traceparent becomes part of that trace. The server itself only
    writes the log; this program does the rest.

    Examples:

      SHUNTER_ACCESS_LOG=/var/log/shunter/access.jsonl torchserve --start ...

      shunter trace /var/log/shunter/access.jsonl --endpoint http://collector:4318/v1/traces
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is missing: pip install 'shunter[trace]'") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "shunter"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    tracer, sent = provider.get_tracer("shunter"), 0
    try:
        for told in lines_of(log, follow=follow):
            if every or "traceparent" in told:
                spans_of(told, tracer)
                sent += 1
    except KeyboardInterrupt:
        pass
    finally:
        provider.shutdown()
    print(f"{sent} requests sent to {endpoint}")


def lines_of(log: Path, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Requests of a log, from its beginning; with ``follow`` also those to come, and those of the
    file that takes its place when it is moved away. What is no request is passed over."""
    file, rest = _open(log), ""
    try:
        while True:
            if part := file.read(1 << 16):
                *whole, rest = (rest + part).split("\n")
                yield from filter(None, map(_parsed, whole))
                continue
            if not follow:
                return
            try:
                moved = log.stat().st_ino != _inode(file)
            except FileNotFoundError:
                moved = False  # a new one has not begun
            if moved:
                file.close()
                file, rest = _open(log), ""
            else:
                time.sleep(_LOOK_S)
    finally:
        file.close()


def spans_of(told: dict[str, Any], tracer: Tracer) -> None:
    """A request, and below it its wait and its batch."""
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    begun = int(told["arrived_unix_ms"] * _NS_PER_MS)
    ran = begun + int(told["waited_ms"] * _NS_PER_MS)
    ended = ran + int(told["ran_ms"] * _NS_PER_MS)
    parent = TraceContextTextMapPropagator().extract({"traceparent": told.get("traceparent", "")})
    attributes = {
        "shunter.request_id": str(told["id"]),
        "shunter.model": told["model"],
        "shunter.class": told["class"],
        "shunter.batch_size": told["batch"],
        "shunter.in_time": told["in_time"],
        "http.response.status_code": told["status"],
    }
    if told["deadline_ms"] is not None:
        attributes["shunter.deadline_ms"] = told["deadline_ms"]
    whole = tracer.start_span(
        f"infer {told['model']}",
        context=parent,
        kind=SpanKind.SERVER,
        attributes=attributes,
        start_time=begun,
    )
    if told["why"]:
        whole.set_status(Status(StatusCode.ERROR, told["why"]))
    within = set_span_in_context(whole)
    tracer.start_span("queue", context=within, start_time=begun).end(ran)
    if told["group"] is not None:
        batch = {"shunter.worker_group": told["group"], "shunter.batch_size": told["batch"]}
        tracer.start_span("batch", context=within, attributes=batch, start_time=ran).end(ended)
    whole.end(ended)


def _open(log: Path) -> Any:
    try:
        return log.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{log} cannot be read: {error.strerror}") from error


def _inode(file: Any) -> int:
    return os.fstat(file.fileno()).st_ino


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) and "arrived_unix_ms" in told else None
