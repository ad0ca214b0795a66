"""What a pool process says of its memory, for its server and for people: ``pool.K.json``.

It is written at most once a second, and only when something has changed; whole, before it has its
name.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shunter.handlers.pool.models import PooledModels

INTERVAL_S = 1.0


class Report:
    """The file of one process."""

    def __init__(self, folder: Path, number: int, models: PooledModels[Any]) -> None:
        """``folder``: of the server; ``number``: of the process."""
        self._path = folder / f"pool.{number}.json"
        self._number, self._models = number, models
        self._written, self._next = "", 0.0

    def look(self, titles: Mapping[str, str]) -> float | None:
        """Write it, if it is due. ``titles``: of the models, by their names.

        Returns in how many seconds to look again; None: when something has happened.
        """
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        text, self._next = self._text(titles), now + INTERVAL_S
        if text == self._written:
            return None
        self._written = text
        draft = self._path.with_suffix(".json.new")
        with contextlib.suppress(OSError):  # the folder goes with the server
            draft.write_text(text, encoding="utf-8")
            draft.replace(self._path)
        return INTERVAL_S

    def _text(self, titles: Mapping[str, str]) -> str:
        counts, (used, budget) = self._models.weights.counts, self._models.used
        hot = [titles[name] for name in self._models.by_use if name in titles]
        return json.dumps(
            {
                "pool": self._number,
                "pid": os.getpid(),
                "models": list(titles.values()),
                "hot": hot,
                "bytes": used,
                "budget": budget,
                "hits": counts.hits,
                "misses": counts.misses,
                "swap_ms": round(counts.swap_s * 1e3, 3),
                "evictions": counts.evictions,
            }
        )

    def remove(self) -> None:
        """The process ends."""
        with contextlib.suppress(OSError):
            self._path.unlink()
