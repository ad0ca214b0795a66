"""What an archive says of how its model is served, as numbers. Each raises HostError for others."""

from __future__ import annotations

import math
from typing import Any

from shunter.batching.forming.classes import parse_class
from shunter.batching.forming.spelling import hint
from shunter.plugins.host import HostError
from shunter.plugins.section_keys import SECTION

_WORDS = {"wait": ("adaptive", "company"), "weights": ("shared", "private")}
LOAD_S = 300.0
"""That workers may take to load of an archive that says nothing of it."""
USUAL_BATCH = 1
_MOST = 1e9
"""Of whatever an archive counts, so that its nanoseconds fit."""
DAY_MS = 86_400_000


def _number(name: str, said: Any, least: float = 0) -> float:
    try:
        found = float(said)
    except (TypeError, ValueError):
        found = math.nan
    if not least <= found <= _MOST:
        raise HostError(
            f"{name} {said!r} of the archive; allowed: a number from {least:g} to {_MOST:.0e}"
        )
    return found


def _of_config(model: Any, name: str, default: float, least: float = 0) -> float:
    """``model``: as the runtime unpacked it."""
    said = model.config.get(name)
    return default if said is None else _number(name, said, least)


def check(model: Any) -> None:
    """Whether every key of its section is known, and the words are. Raises HostError."""
    for key in model.section:
        if key not in SECTION:
            known = ", ".join(SECTION) + hint(str(key), SECTION)
            raise HostError(f"shunter.{key} is not known; allowed: {known}")
    for key, words in _WORDS.items():
        if (said := model.section.get(key, words[0])) not in words:
            raise HostError(
                f'shunter.{key}: "{said}"; allowed: {", ".join(words)}{hint(str(said), words)}'
            )
    try:
        parse_class(str(model.section.get("class", "strict")))
    except ValueError as error:
        raise HostError(f"shunter.class: {error}") from error


def batch_of(model: Any) -> int:
    """The largest one."""
    return int(_of_config(model, "batchSize", USUAL_BATCH, 1))


def capacity_of(model: Any) -> int:
    """How many requests may wait; 0: any number."""
    return int(_of_config(model, "jobQueueSize", 0, 1))


def load_s(model: Any) -> float:
    """So long its workers may take to load."""
    return _of_config(model, "startupTimeout", LOAD_S, 1)


def max_wait_ms(model: Any) -> int:
    """Longest deliberate wait."""
    return int(_of_config(model, "maxBatchDelay", 0))


def response_timeout_s(model: Any) -> int:
    """A batch may run so long; 0: as long as it wants."""
    return math.ceil(_of_config(model, "responseTimeout", 120))


def client_timeout_ns(model: Any) -> int:
    """Latest deadline of all requests; 0: none. What is longer than a day is none, as behind
    TorchServe."""
    said_ms = _of_config(model, "clientTimeoutInMills", 0)
    return int(said_ms * 1e6) if said_ms <= DAY_MS else 0


def slo_ns(model: Any) -> int:
    """Deadline of strict requests that name none; 0: none."""
    return int(_number("slo_ms", model.section.get("slo_ms", 0)) * 1e6)
