"""What a server and its host need of the machine: ports, one log for both, an end."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shunter.plugins.record import LivingProcess

_FORM = "shunter %(levelname)s %(asctime)s %(message)s"


def end(process: subprocess.Popen[bytes] | LivingProcess, timeout_s: float) -> bool:
    """Let a server answer what it holds, and end; whether it has in time, else it is killed."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


@contextlib.contextmanager
def logged_in(log: Path) -> Iterator[None]:
    """What this program logs stands there, too: the server's log says all that became of it."""
    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORM))
    logger = logging.getLogger("shunter")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
