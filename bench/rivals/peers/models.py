"""Inside a peer's process: what is served, as a function of a batch.

Bodies come as bytes (mosec) or parsed by the server (LitServe), and so do the answers go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Batch = Callable[[Sequence[Any]], list[Any]]


def _sums(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[sum(row[i : i + 4]) for i in range(0, 16, 4)] for row in rows]


def _minilm() -> Batch:
    from rivals.hosted import Hosted

    hosted = Hosted()
    return lambda bodies: hosted.answers([body["text"] for body in bodies])


def parsed(name: str) -> Batch:
    """Answers to bodies that were parsed; of minilm they are JSON already."""
    return _minilm() if name == "minilm" else _sums


def raw(name: str) -> Batch:
    """Bytes to bytes."""
    if name == "length":
        return lambda bodies: [b"[%d]" % len(body) for body in bodies]
    answers = parsed(name)
    if name == "minilm":
        return lambda bodies: [each.encode() for each in answers([json.loads(b) for b in bodies])]
    return lambda bodies: [
        json.dumps(each).encode() for each in answers([json.loads(body) for body in bodies])
    ]
