"""Request classes, and the terms a request states about itself.

A request says its class and its deadline by two keys: HTTP headers on REST, entries of the
``input`` map on gRPC. ``RequestTerms.java`` is the twin of this file; both are held to
``tests/golden/classes.json``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shunter.batching.forming.spelling import hint

CLASS_KEY = "x-shunter-class"
DEADLINE_KEY = "x-shunter-deadline-ms"
IDEMPOTENT_KEY = "x-shunter-idempotent"
STRICT_KEY = "x-shunter-strict-key"
"""The operator's secret, which some need to say that they are strict: no term, read elsewhere."""
PREFIX = "x-shunter-"
MAX_DEADLINE_MS = 86_400_000
"""One day: longer deadlines are mistakes of unit."""


class RequestClass(enum.IntEnum):
    """What a request asks for; the value is its index in every per-class field of the page."""

    STRICT = 0
    """Has a latency target and goes first (PROTEAN: strict; REEF: real-time)."""
    BEST_EFFORT = 1
    """Takes what strict requests leave."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request stated; None leaves it to the defaults of its model."""

    request_class: RequestClass | None = None
    deadline_ns: int | None = None
    """Nanoseconds after arrival."""
    idempotent: bool | None = None
    """Whether it may run twice."""


_CLASSES = {
    "strict": RequestClass.STRICT,
    "best-effort": RequestClass.BEST_EFFORT,
    "best_effort": RequestClass.BEST_EFFORT,
}
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
# Unicode knows more spaces and more letters that fold to ASCII, and languages differ on them.
_SPACES = " \t"


def parse_class(text: str) -> RequestClass:
    """Class of that name, in any case, with a hyphen or an underscore.

    >>> parse_class(" Best-Effort ").name
    'BEST_EFFORT'

    Raises ValueError naming the key, the value and what is allowed.
    """
    found = _CLASSES.get(text.strip(_SPACES).lower()) if text.isascii() else None
    if found is None:
        told = f'{CLASS_KEY}: "{text}" is not a class; allowed: strict, best-effort'
        raise ValueError(told + hint(text, ("strict", "best-effort")))
    return found


def parse_deadline_ns(text: str) -> int:
    """Nanoseconds of a deadline stated in milliseconds, rounded down, at least 1.

    >>> parse_deadline_ns("40"), parse_deadline_ns("0.25")
    (40000000, 250000)

    Only ASCII digits with an optional fraction, at most nine digits on each side of the point.
    Raises ValueError naming the key, the value and what is allowed.
    """
    number = text.strip(_SPACES)
    milliseconds = float(number) if _DECIMAL.fullmatch(number) else 0.0
    if not 0 < milliseconds <= MAX_DEADLINE_MS:
        raise ValueError(
            f'{DEADLINE_KEY}: "{text}" is not a deadline; '
            f"allowed: a number of milliseconds above 0 and at most {MAX_DEADLINE_MS}"
        )
    return max(1, int(milliseconds * 1e6))


def parse_idempotent(text: str) -> bool:
    """Whether a request says that it may run twice.

    Raises ValueError naming the key, the value and what is allowed.
    """
    stated = text.strip(_SPACES).lower()
    if stated not in ("true", "false"):
        raise ValueError(f'{IDEMPOTENT_KEY}: "{text}" is not known; allowed: true, false')
    return stated == "true"


KEYS = {
    CLASS_KEY: parse_class,
    DEADLINE_KEY: parse_deadline_ns,
    IDEMPOTENT_KEY: parse_idempotent,
}


def parse_terms(entries: Iterable[tuple[str, str]]) -> Terms:
    """Terms in headers or map entries. Keys are compared without case; a repeated key: last wins.

    Raises ValueError for a bad value and for an unknown key of ours; others are not looked at.
    """
    stated: dict[str, str] = {}
    for key, value in entries:
        name = key.lower()
        if name in KEYS:
            stated[name] = value
        elif name.startswith(PREFIX) and name != STRICT_KEY:
            known = (*KEYS, STRICT_KEY)
            told = f'"{key}" is unknown; allowed: {", ".join(known)}'
            raise ValueError(told + hint(key, known))
    return Terms(*(parse(stated[key]) if key in stated else None for key, parse in KEYS.items()))
