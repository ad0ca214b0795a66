"""What a host leaves in its folder for the next one: which server it started, with which models."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shunter.batching.page.processes import try_lock
from shunter.plugins.host import HostError

NAME = "serving.json"
VERSION = 1
"""Of the file; those of earlier programs say none, and are the same."""
LOCK = "lock"


@dataclass(frozen=True)
class RecordedModel:
    """How a model version was loaded, and what serves it."""

    archive: str
    name: str
    batch: int
    configuration: str
    cores: Sequence[str]
    auto: bool | None = None
    """Whether the controller may change its configuration; None: as its archive says."""


@dataclass(frozen=True)
class Record:
    """A server and its models."""

    pid: int
    started: int
    """When, in ticks since boot: another process may have its number one day."""
    ports: Sequence[int]
    models: Sequence[RecordedModel] = field(default_factory=tuple)

    def write(self, folder: Path) -> None:
        """Replace what stands there."""
        draft = folder / f"{NAME}.new"
        draft.write_text(json.dumps({"version": VERSION} | asdict(self)), encoding="utf-8")
        draft.replace(folder / NAME)


def read(folder: Path) -> Record | None:
    """What the last host of a folder has left, if its server still runs. Raises HostError: a newer
    program has written it."""
    try:
        told = json.loads((folder / NAME).read_text(encoding="utf-8"))
        version, pid = told.pop("version", VERSION), told["pid"]
        if version > VERSION and started(pid) == told["started"]:
            raise HostError(
                f"{folder / NAME} is of version {version}, this Shunter knows {VERSION}: a newer "
                f"one has started the server, process {pid}; use that one, or end the process first"
            )
        models = tuple(RecordedModel(**each) for each in told.pop("models"))
        record = Record(**told, models=models)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return record if record.started and started(record.pid) == record.started else None


def started(pid: int) -> int:
    """When a process was started, in ticks since boot; 0: there is none that runs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def hold(folder: Path) -> int:
    """Be the only host of a folder, until the descriptor is closed. Raises HostError."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not try_lock(descriptor, 0, 0):
        os.close(descriptor)
        raise HostError(f"another `shunter serve` has {folder}: end it, or give another folder")
    return descriptor


class LivingProcess:
    """A process that another one started, as far as it is like ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError."""
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while it runs."""
        return 0 if select.select([self._descriptor], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended. Raises subprocess.TimeoutExpired."""
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return 0

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """End it now."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Look at it no more."""
        os.close(self._descriptor)
