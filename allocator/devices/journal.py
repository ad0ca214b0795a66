"""What is being done to the instances of a GPU, in a file that outlives whoever does it.

It is written before each step, so that after a ``kill -9`` the next one knows what was wanted and
what was there before. What is there now it reads from the GPU, and not here. When nothing is being
done the file says what Shunter made, which no GPU remembers when the machine starts again.
"""

from __future__ import annotations

import enum
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import Layout, Placement

SYSTEM_FOLDER = Path("/var/lib/shunter/devices")


class Phase(enum.StrEnum):
    """How far a change has come."""

    SETTLED = "settled"
    """Nothing is being done; ``wanted`` is what Shunter made."""
    DRAINING = "draining"
    """Processes are asked to leave; no instance was touched."""
    FORWARD = "forward"
    """Instances are destroyed and created."""
    BACK = "back"
    """Something failed, the ones of before are created again."""


@dataclass(frozen=True)
class Record:
    """What the file says."""

    phase: Phase
    before: Layout
    wanted: Layout
    step: str = ""
    """What is being tried; for people."""


VERSION = 1
"""Of the files; those of earlier programs say none, and are the same."""


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the files lie: a place that is still there after the machine has started again."""
    if named := environ.get("SHUNTER_STATE_DIR"):
        return Path(named) / "devices"
    if os.geteuid() == 0:
        return SYSTEM_FOLDER
    home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/")) / ".local/state"
    return Path(home) / "shunter/devices"


class Journal:
    """The file of one GPU."""

    def __init__(self, folder: Path, gpu: str) -> None:
        self.path = folder / f"{gpu}.json"
        self._gpu = gpu

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes this GPU's instances meanwhile; raises DeviceError if one does."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # No buffer: what a full disk did not take would be tried again when it is closed.
            lock = self.path.with_suffix(".lock").open("a+b", buffering=0)
        except OSError as error:
            raise self._unusable(error) from error
        with lock:
            try:
                # The kernel lets go of it when the process ends, in whatever way.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                who = lock.read().decode(errors="replace").strip() or "another process"
                raise DeviceError(
                    f"the instances of {self._gpu} are being changed by {who}: wait until it is "
                    "done, and let one controller only change a GPU"
                ) from None
            with suppress(OSError):  # Where the disk is full others are not told who it is.
                lock.truncate(0)
                lock.write(b"pid %d" % os.getpid())
            yield

    def read(self) -> Record | None:
        """What was written last; None when nothing ever was."""
        try:
            known = json.loads(self.path.read_text("utf-8"))
            if (version := known.get("version", VERSION)) != VERSION:
                raise ValueError(f"version {version}, this Shunter knows {VERSION}")
            return Record(
                Phase(known["phase"]),
                _layout(known["before"]),
                _layout(known["wanted"]),
                str(known["step"]),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DeviceError(
                f"{self.path} cannot be understood ({error}): look at the instances with "
                "`shunter devices`, then delete the file"
            ) from error

    def write(self, record: Record) -> None:
        """Say what is tried next; it is on the disk when this returns."""
        text = json.dumps(
            {
                "version": VERSION,
                "gpu": self._gpu,
                "phase": record.phase,
                "before": [_numbers(each) for each in sorted(record.before)],
                "wanted": [_numbers(each) for each in sorted(record.wanted)],
                "step": record.step,
            }
        )
        new = self.path.with_suffix(".new")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> DeviceError:
        return DeviceError(
            f"{self.path} cannot be used: {error.strerror}; set SHUNTER_STATE_DIR to a folder "
            "that this user may write and that outlives a reboot"
        )


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _numbers(each: Placement) -> list[int]:
    return [each.profile, each.start, each.size]


def _layout(known: Any) -> Layout:
    return frozenset(Placement(start, size, profile) for profile, start, size in known)
