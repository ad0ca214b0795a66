"""What a run of the load generator is: its streams, and the JSON they are written in."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import http_client
import numpy as np


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


def check(spec: Spec) -> None:
    """Raises ``ValueError`` for what cannot be run."""
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
