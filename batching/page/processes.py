"""Which processes live, and which bytes of a shared file they hold.

Byte ranges are held by *open file description* locks of Linux: the kernel lets go of them when
the holder ends in whatever way, and they meet the locks of Java's ``FileChannel``. A lock says who
may write; it is never taken on a request's path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_FLOCK = struct.Struct("@hhqqi4x")
"""``struct flock`` on 64-bit Linux: type, whence, start, length, pid."""


def _stat(pid: int) -> list[bytes]:
    """Fields of ``/proc/PID/stat`` from the state on."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The command name stands in parentheses and may hold any byte; the state follows it.
        return stat.read().rpartition(b")")[2].split()


def parent_of(pid: int) -> int | None:
    """The process that started another; None when that is gone or cannot be seen."""
    try:
        return int(_stat(pid)[1])
    except (OSError, IndexError, ValueError):
        return None


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not. Works for processes of other users too."""
    if pid <= 0:
        return False
    try:
        return _stat(pid)[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, IndexError):
        return _answers(pid)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def try_lock(descriptor: int, start: int, length: int) -> bool:
    """Take ``length`` bytes from ``start`` for writing; False when another holds any of them.

    ``descriptor`` must be open for writing; length 0 means to the end of the file.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK, start, length))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(descriptor: int, start: int, length: int) -> None:
    """Let go of bytes; does nothing when they are not held or the descriptor is -1."""
    if descriptor >= 0:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK, start, length))


def is_locked(descriptor: int, start: int, length: int) -> bool:
    """Whether anyone but this descriptor holds one of these bytes."""
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK, start, length))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _request(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
