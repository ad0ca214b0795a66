"""Files of weights in a folder: each is made once, for all, and named by its content.

Who maps a file holds a shared lock on it as long as the mapping lives; a file that nobody holds may
be swept. Who makes one holds a lock of that name: others wait for it, and when it dies the next one
begins anew. What is mapped was checked from the first byte to the last.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import math
import mmap
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shunter.handlers.weights.layout import LayoutError, Record, header, header_bytes, parsed

logger = logging.getLogger("shunter.weights")
SUFFIX = ".safetensors"
_DRAFT, _LOCK = ".draft", ".lock"
_DIGEST = "sha256"
_OURS = re.compile(rf"[0-9a-f]{{64}}(?:{re.escape(SUFFIX)}|{re.escape(_LOCK)})")
"""The folder may be one that an operator has named, with files of others in it."""
WAIT_S = 60.0
"""Longest time for another worker to make a file."""
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class WeightFile:
    """A file that is mapped: copy on write, so that nobody who writes harms another."""

    path: Path
    records: tuple[Record, ...]
    content: mmap.mmap
    """It has a descriptor of its own, with the lock: while it lives the file is held."""
    data_offset: int


def digest_of(records: Sequence[Record], parts: Iterable[memoryview | bytes]) -> str:
    """Of names, types, shapes and data; ``parts`` are the data of the records."""
    found = hashlib.sha256(repr([(r.name, r.dtype, r.shape) for r in records]).encode())
    for part in parts:
        found.update(part)
    return found.hexdigest()


def obtain(
    folder: Path,
    records: Sequence[Record],
    parts: Callable[[], Iterable[memoryview | bytes]],
    free_bytes: float = math.inf,
) -> WeightFile:
    """The file with this content, made if there is none. ``free_bytes``: of the host's memory.

    Raises OSError: there is no room, the folder is not there, or who makes it does not go on.
    """
    digest = digest_of(records, parts())
    final, lock = folder / f"{digest}{SUFFIX}", folder / f"{digest}{_LOCK}"
    while True:
        if (found := attach(final, digest)) is not None:
            return found
        # Not the draft itself: that is mapped, and so held, from the moment it is complete.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            _wait_for(descriptor, lock)
            if _is(lock, descriptor):  # else whoever had it has finished the file
                if not final.exists():
                    _write(final, records, parts(), digest, free_bytes)
                lock.unlink()
        finally:
            os.close(descriptor)


def _wait_for(descriptor: int, lock: Path) -> None:
    """Raises TimeoutError: who has the lock may have been stopped."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"{lock.name} is held by another process for {WAIT_S:g} s"
                ) from None
        time.sleep(0.01)


def _write(
    final: Path,
    records: Sequence[Record],
    parts: Iterable[memoryview | bytes],
    digest: str,
    free_bytes: float,
) -> None:
    """Write the file whole before it has its name; what cannot be written leaves nothing."""
    head = header(records, {_DIGEST: digest})
    size = len(head) + records[-1].end
    if size > free_bytes:  # where the folder is memory the kernel would end whoever is in its way
        raise OSError(errno.ENOMEM, f"there is no memory for {size} bytes of weights")
    draft = final.with_suffix(_DRAFT)
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)  # a full disk is an error now and no SIGBUS later
        _write_at(descriptor, head, 0)
        for record, part in zip(records, parts, strict=True):
            _write_at(descriptor, part, len(head) + record.begin)
        draft.rename(final)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, part: memoryview | bytes, offset: int) -> None:
    left = memoryview(part).cast("B")
    while left:
        done = os.pwrite(descriptor, left, offset)
        left, offset = left[done:], offset + done


def attach(path: Path, digest: str) -> WeightFile | None:
    """Map a file, if it is there and right; one that is not is removed. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        there = os.fstat(descriptor)
        if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{path} is not a file of this user")
        if not _is(path, descriptor):
            return None  # swept before it was locked
        try:
            return _checked(path, descriptor, there.st_size, digest)
        except LayoutError as error:
            logger.warning("%s is made again: %s", path.name, error)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return None
    finally:
        os.close(descriptor)


def _checked(path: Path, descriptor: int, size: int, digest: str) -> WeightFile:
    head = os.pread(descriptor, header_bytes(os.pread(descriptor, 8, 0)), 0)
    records, said = parsed(head, size)
    if said.get(_DIGEST) != digest:
        raise LayoutError(f"it says that its content is {said.get(_DIGEST)}")
    content = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    with memoryview(content) as view:
        start = len(head)
        parts = (view[start + record.begin : start + record.end] for record in records)
        found = digest_of(records, parts)
    if found != digest:
        raise LayoutError("its content is damaged")
    return WeightFile(path, records, content, len(head))


def _is(path: Path, descriptor: int) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def sweep(folder: Path) -> int:
    """Remove files that nobody maps, and those that nobody makes any more; how many.

    Whatever has another name or another owner stays. Raises OSError: there is a folder, but it
    cannot be read.
    """
    gone = 0
    with contextlib.suppress(FileNotFoundError):
        for path in list(folder.iterdir()):
            if _OURS.fullmatch(path.name):
                gone += _removed_if_unused(path)
    return gone


def _removed_if_unused(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = _is(path, descriptor) and os.fstat(descriptor).st_uid == os.geteuid()
        if is_there:
            if path.suffix == _LOCK:
                path.with_suffix(_DRAFT).unlink(missing_ok=True)
            path.unlink()
        return is_there
    except OSError:
        return False  # somebody holds it, or was faster
    finally:
        os.close(descriptor)
