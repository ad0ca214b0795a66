"""Which models share worker processes: as the settings and their archives say."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shunter.batching.forming.spelling import hint
from shunter.plugins.host import HostError
from shunter.plugins.reading import content

SHARED, DEDICATED = "shared", "dedicated"
_ELSEWHERE = ("cores", "device", "groups")
"""Keys of a section that say where its workers run, and how."""


@dataclass(frozen=True)
class Pools:
    """Processes with workers of several models."""

    all: bool = False
    """Whether models that say nothing are in them."""
    workers: int = 1
    hot_mb: int = 0
    threads: int = 0
    cores: str = ""
    """Divided among the processes; auto: each chooses some; empty: they run everywhere."""

    def variables(self, number: int) -> dict[str, str]:
        """What worker ``number`` of a model gets."""
        return {
            "SHUNTER_POOL": str(number % self.workers),
            "SHUNTER_POOL_WORKERS": str(self.workers),
            "SHUNTER_POOL_HOT_MB": str(self.hot_mb),
            "SHUNTER_POOL_THREADS": str(self.threads),
            "SHUNTER_POOL_CORES": self.cores,
        }

    def has(self, section: Mapping[str, Any]) -> bool:
        """Whether a model is in them, by what its archive says. Raises HostError."""
        said = section.get("pool")
        elsewhere = [key for key in _ELSEWHERE if section.get(key)]
        if said not in (None, SHARED, DEDICATED):
            near = hint(str(said), (SHARED, DEDICATED))
            raise HostError(f"pool {said!r} of the archive; allowed: {SHARED}, {DEDICATED}{near}")
        if said == SHARED and elsewhere:
            raise HostError(
                f"pool: {SHARED} is not possible together with {elsewhere[0]}: the workers run "
                "where other models do"
            )
        return said == SHARED or (said is None and self.all and not elsewhere)


def pools_of(settings: str | None) -> Pools:
    """What the settings say, which ``plugins/control/settings.py`` finds; else the environment.

    What is wrong with them the controller says.
    """
    named = settings or os.environ.get("SHUNTER_CONFIG") or "shunter.toml"
    text = ""
    with contextlib.suppress(OSError):
        text = content(Path(named)).decode("latin-1")
    if "pool" in text:  # to ask costs the start of a Python
        command = [sys.executable, "-P", "-m", "shunter.plugins.control.settings"]
        command += ["--config", settings] if settings else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            *numbers, cores = done.stdout.split()
            shared, *others = map(int, numbers)
            return Pools(bool(shared), *others, cores="" if cores == "-" else cores)
    names = ("WORKERS", "HOT_MB", "THREADS")
    texts = (os.environ.get(f"SHUNTER_POOL_{each}", "") for each in names)
    workers, hot_mb, threads = (int(each) if each.isdecimal() else 0 for each in texts)
    cores = os.environ.get("SHUNTER_POOL_CORES", "")
    return Pools(False, min(max(1, workers), 64), hot_mb, threads, cores)
