"""``weights:`` of a model's ``shunter:`` section, and where the files of weights lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEY = "weights"
SHARED, PRIVATE = "shared", "private"
FOLDER = "SHUNTER_WEIGHTS"
"""Environment: the folder of the files, on a disk for example; else it is in that of the server."""
RUNTIME = "SHUNTER_RUNTIME"
"""Environment: the folder of the server, which goes with it."""


class WeightsConfigError(ValueError):
    """``weights:`` of a model is wrong; the message says what is allowed."""


def wants_shared(section: Mapping[str, Any]) -> bool:
    """What a model's ``shunter:`` section says. Raises WeightsConfigError."""
    found = section.get(KEY, PRIVATE)
    if found not in (SHARED, PRIVATE):
        raise WeightsConfigError(f"{KEY}: {found!r}; allowed: {SHARED}, {PRIVATE}")
    return bool(found == SHARED)


def folder_of(environ: Mapping[str, str]) -> Path | None:
    """Where files of weights lie; None: this worker belongs to no server."""
    if named := environ.get(FOLDER):
        return Path(named)
    runtime = environ.get(RUNTIME)
    return Path(runtime) / "weights" if runtime else None
