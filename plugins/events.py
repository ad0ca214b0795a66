"""What happened in a server lately, and why. Twin of TorchServe's ``events/Events.java``.

Whoever has something to tell calls :func:`tell`; what the host's own code warns of is told, too.
Nobody has to listen.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VARIABLE = "SHUNTER_EVENT_LOG"
"""Environment: a file that gets a line of JSON for each."""
KEPT = 512
"""So many can be asked for."""
_LOGGER = logging.getLogger("shunter.events")
_LOGGER.propagate = False
_LOGGER.setLevel(logging.INFO)
_LOGGER.addHandler(logging.NullHandler())
LEVELS = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}
LEVELS["CRITICAL"] = logging.ERROR


def tell(level: int, about: str, text: str) -> None:
    """It happened just now. ``about``: a model version, or a part of the server."""
    _LOGGER.log(level, "%s", text, extra={"about": about})


def relay(about: str, line: str) -> None:
    """A line of a log of ours, which begins with its level."""
    level, _, text = line.partition(" ")
    tell(LEVELS.get(level, logging.INFO), about, text if level in LEVELS else line)


class Recorder(logging.Handler):
    """Remembers the last ones, and writes them where the environment says."""

    def __init__(self, file: Path | None) -> None:
        """``file``: None: they are not written."""
        super().__init__(logging.INFO)
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._file, self._count, self._guard = file, 0, threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        level = "error" if record.levelno >= logging.ERROR else record.levelname.lower()
        with self._guard:
            self._count += 1
            told = {
                "number": self._count,
                "unix_ms": int(1000 * record.created),
                "level": level,
                "about": getattr(record, "about", "server"),
                "text": record.getMessage(),
            }
            self._kept.append(told)
            if self._file is not None:  # opened anew each time: it may be moved away
                with contextlib.suppress(OSError), self._file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(told) + "\n")

    def after(self, number: int = 0) -> list[dict[str, Any]]:
        """Those after one of that number, the oldest first."""
        with self._guard:
            return [each for each in self._kept if each["number"] > number]


@contextlib.contextmanager
def recorded(environ: Mapping[str, str] = os.environ) -> Iterator[Recorder]:
    """They are remembered meanwhile, and what code of ours warns of."""
    named = environ.get(VARIABLE)
    recorder = Recorder(Path(named) if named else None)
    warnings = logging.getLogger("shunter")
    # Of the others only what is bad: they are of whoever reads the log.
    recorder.addFilter(lambda each: each.name == _LOGGER.name or each.levelno >= logging.WARNING)
    for logger in (_LOGGER, warnings):
        logger.addHandler(recorder)
    try:
        yield recorder
    finally:
        for logger in (_LOGGER, warnings):
            logger.removeHandler(recorder)


class Tallies:
    """Tells of what is too frequent to be told one by one."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """``texts``: what to say of a counter, after a number of requests."""
        self._texts = texts
        self._before: dict[str, Mapping[str, int]] = {}

    def look(self, about: str, counted: Mapping[str, int]) -> None:
        """Counters as they are now; those that begin anew have counted nothing before."""
        before = self._before.get(about, {})
        for name, text in self._texts.items():
            now, last = counted.get(name, 0), before.get(name, 0)
            more = now - last if now >= last else now
            if more:
                tell(logging.WARNING, about, f"{more} {text}")
        self._before[about] = dict(counted)
