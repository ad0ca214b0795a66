"""The private folder of a running server, and how other programs find it.

``${SHUNTER_RUNTIME_DIR:-${XDG_RUNTIME_DIR:-/dev/shm}}/shunter-<uid>-<jvm pid>/``, made by the
server with mode 0700. It holds a lock file that the server keeps locked while it lives: that lock,
and not the pid in the name, says whether the server is there, because containers that share the
parent folder have pids of their own. A server in
Java has a writer of its own, ``RuntimeFolder.java``.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shunter.batching.page.processes import is_locked, try_lock

CONTROL = "control"
LOCK = "lock"
_NEW_S = 60
_NAME = re.compile(r"shunter-(\d+)-(\d+)(?:-\d+)?", re.ASCII)


class RuntimeFolderError(Exception):
    """No folder, or no single folder, of a running server; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RuntimeFolder:
    """A running server's folder."""

    path: Path
    pid: int
    """The server's pid as it sees itself."""

    @property
    def control(self) -> Path:
        """Path of the control page."""
        return self.path / CONTROL


class OwnFolder:
    """The folder of a server that this process is, from now until :meth:`close`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Make it; those of servers that are gone are swept away. Raises OSError."""
        sweep(environ)
        name = parent(environ).resolve() / f"shunter-{os.geteuid()}-{os.getpid()}"
        numbers = (f"-{number}" for number in range(2, 100))
        path = next(each for end in ("", *numbers) if not (each := Path(f"{name}{end}")).exists())
        path.mkdir(mode=0o700)
        self.folder = RuntimeFolder(path, os.getpid())
        draft = path / f"{LOCK}.new"
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try_lock(self._lock, 0, 0)
        # It appears locked: another starting server must not take the folder for a dead one's.
        draft.rename(path / LOCK)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder.path, ignore_errors=True)
        os.close(self._lock)


def sweep(environ: Mapping[str, str]) -> None:
    """Remove the folders of this user's servers that are gone."""
    for path in parent(environ).glob(f"shunter-{os.geteuid()}-*"):
        try:
            there = os.lstat(path)
            is_ours = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()
            # Without a lock it is being made at this moment, or its maker died doing so.
            is_new = not (path / LOCK).exists() and time.time() - there.st_mtime < _NEW_S
        except OSError:
            continue  # somebody else has removed it
        if is_ours and _NAME.fullmatch(path.name) and not is_new and not _server_lives(path):
            shutil.rmtree(path, ignore_errors=True)


def parent(environ: Mapping[str, str]) -> Path:
    """Where runtime folders lie; an empty variable counts as not set."""
    named = environ.get("SHUNTER_RUNTIME_DIR") or environ.get("XDG_RUNTIME_DIR")
    return Path(named or "/dev/shm")


def live(environ: Mapping[str, str]) -> list[RuntimeFolder]:
    """Folders of this user's running servers, in the order of their names."""
    where = parent(environ)
    try:
        names = sorted(os.listdir(where))
    except OSError:
        return []
    found = (where / name for name in names if _NAME.fullmatch(name))
    return [RuntimeFolder(path, _pid(path)) for path in found if _fault(path) is None]


def only_live(
    runtime_dir: Path | None = None, environ: Mapping[str, str] = os.environ
) -> RuntimeFolder:
    """The folder named, or the only running server's.

    Raises RuntimeFolderError when the named one is not a running server's, or when there is none
    or more than one to choose from.
    """
    if runtime_dir is not None:
        fault = _fault(runtime_dir)
        if fault:
            raise RuntimeFolderError(f"{runtime_dir} {fault}")
        return RuntimeFolder(runtime_dir, _pid(runtime_dir))
    folders = live(environ)
    if len(folders) == 1:
        return folders[0]
    if folders:
        names = ", ".join(str(folder.path) for folder in folders)
        raise RuntimeFolderError(f"several servers are running, name one with --runtime: {names}")
    raise RuntimeFolderError(
        f"no running server with Shunter in {parent(environ)}; start one with "
        "`shunter serve`, or set SHUNTER_RUNTIME_DIR to what the server has"
    )


def _pid(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[2]) if match else 0


def _fault(path: Path) -> str | None:
    """Why this is not a running server's folder of ours, or None."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, this program is {os.geteuid()}"
    # Below a setgid folder, such as a Kubernetes volume with fsGroup, the bit is inherited.
    if status.st_mode & 0o777 != 0o700:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}, a runtime folder has 0700"
    if not _server_lives(path):
        return "is not the folder of a running server"
    return None


def _server_lives(path: Path) -> bool:
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_locked(descriptor, 0, 0)
    finally:
        os.close(descriptor)
