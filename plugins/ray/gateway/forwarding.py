"""What a gateway does with a request and with what became of it. Pure.

A request gets one answer. Where it certainly did not run it is tried on another machine; where it
may have run, only if it may run twice; never once a part of its answer has been passed on.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

CLASS, DEADLINE, IDEMPOTENT = "x-shunter-class", "x-shunter-deadline-ms", "x-shunter-idempotent"
TRIES = 4
"""Machines that a request is sent to at most: a request that ends servers must not end all."""
HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    )
)
"""Of one connection, RFC 9110; ``expect`` was answered by the gateway."""
_OF_THE_MESSAGE = frozenset(("host", "content-length"))
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
Headers = list[tuple[str, str]]


class Outcome(Enum):
    """What became of a request at a machine, where it was no answer."""

    NOT_SENT = "not sent"
    """No connection, or not all of it left."""
    REFUSED = "refused"
    """503: it waited or did not, but never ran."""
    LOST = "lost"
    """The connection or the machine ended while it may have run."""
    ANSWER_CUT = "answer cut"
    """The same when a part of its answer has been passed on."""


@dataclass(frozen=True)
class Terms:
    """What a request says of itself."""

    model: str
    """``NAME`` or ``NAME/VERSION``."""
    is_strict: bool | None = None
    """None: as the model says."""
    deadline_s: float = math.inf
    may_repeat: bool | None = None


def target(path: str) -> str | None:
    """The model of a path of an inference API, or None: it is none.

    >>> target("/predictions/digits/1.0"), target("/v2/models/resnet/infer"), target("/ping")
    ('digits/1.0', 'resnet', None)
    """
    parts = [unquote(each) for each in path.strip("/").split("/")]
    match parts:
        case ["predictions" | "explanations", name, *rest] if len(rest) <= 1:
            return _named(name, *rest)
        case ["v1", "models", name] if name:
            return _named(name.partition(":")[0])
        case ["v2", "models", name, "versions", version, *_]:
            return _named(name, version)
        case ["v2", "models", name, *_]:
            return _named(name)
    return None


def _named(name: str, version: str = "") -> str | None:
    if not name:
        return None
    return f"{name}/{version}" if version else name


def terms(model: str, headers: Mapping[str, str]) -> Terms:
    """What the headers say; what is wrong in them counts as not said: the server answers 400."""
    says = {"strict": True, "best-effort": False, "best_effort": False}
    truth = {"true": True, "false": False}
    return Terms(
        model,
        says.get(headers.get(CLASS, "").strip().lower()),
        _deadline_s(headers.get(DEADLINE)),
        truth.get(headers.get(IDEMPOTENT, "").strip().lower()),
    )


def _deadline_s(text: str | None) -> float:
    """Infinite for what the server would not take as one."""
    if text is None or not _DECIMAL.fullmatch(text.strip()):
        return math.inf
    return float(text) / 1e3 or math.inf


def may_try_again(outcome: Outcome, *, may_repeat: bool, tried: int, left_s: float) -> bool:
    """Whether another machine is asked. ``tried``: machines so far; ``left_s``: of its time."""
    if tried >= TRIES or left_s <= 0:
        return False
    if outcome is Outcome.LOST:
        return may_repeat
    return outcome in (Outcome.NOT_SENT, Outcome.REFUSED)


def passed_on(headers: Iterable[tuple[str, str]], *, spent_s: float = 0.0) -> Headers:
    """Headers of a request for the machine: those of the connection are gone, and its deadline is
    nearer by what has passed."""
    found = _end_to_end(headers, _OF_THE_MESSAGE)
    return [
        (name, _nearer(value, spent_s)) if name.lower() == DEADLINE else (name, value)
        for name, value in found
    ]


def passed_back(headers: Iterable[tuple[str, str]]) -> Headers:
    """Headers of an answer for the client."""
    return _end_to_end(headers, frozenset())


def _end_to_end(headers: Iterable[tuple[str, str]], other: frozenset[str]) -> Headers:
    pairs = list(headers)
    named = {
        each.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for each in value.split(",")
    }
    gone = HOP_BY_HOP | other | named
    return [(name, value) for name, value in pairs if name.lower() not in gone]


def _nearer(value: str, spent_s: float) -> str:
    left_s = _deadline_s(value) - spent_s
    # What is no number is passed on as it came, for the server to refuse.
    return value if math.isinf(left_s) else f"{max(left_s * 1e3, 0.001):.3f}"


def is_refusal(body: bytes) -> bool:
    """Whether the body of a 503 is a server's own, so that the request did not run: a handler may
    answer 503, too.

    >>> is_refusal(b'{"type": "ServiceUnavailableException"}'), is_refusal(b"busy")
    (True, False)
    """
    try:
        told = json.loads(body)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("type") == "ServiceUnavailableException"
