"""The file of the control page: made or attached, mapped, checked, and its lines locked.

Every word is one aligned 8-byte load or store through a ``memoryview`` of format ``q``, which
x86-64 keeps whole and in program order. A processor that reorders stores is refused: it could show
a reader a finished sequence before the data.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Self

from shunter.batching.page.codec import encode
from shunter.batching.page.fields import LINE
from shunter.batching.page.layout import (
    HEADER_FIELDS,
    HEADER_SIZE,
    LAYOUT_VERSION,
    MAGIC,
    PAGE_SIZE,
    SLOT_COUNT,
    SLOT_SIZE,
)
from shunter.batching.page.processes import try_lock, unlock
from shunter.batching.page.records import PageHeader

_FIXED = {
    "magic": MAGIC,
    "layout_version": LAYOUT_VERSION,
    "page_size": PAGE_SIZE,
    "header_size": HEADER_SIZE,
    "slot_size": SLOT_SIZE,
    "slot_count": SLOT_COUNT,
}
_H = {name: placed.offset // 8 for name, placed in HEADER_FIELDS.items()}
_PROCESSOR = "x86_64"


class PageError(Exception):
    """The file is not a control page that this program can use; the message says why."""


class PageFile:
    """A mapped page. Use as a context manager or call :meth:`close`."""

    def __init__(self, descriptor: int, writable: bool) -> None:
        """Map an open file of the right size; use :meth:`attach` or :meth:`create`."""
        self.descriptor = descriptor
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(descriptor, PAGE_SIZE, access=access)
        self._locked: set[int] = set()
        self.words = memoryview(self._map).cast("q")
        """The page as signed 8-byte words, for the modules that own a part of it."""

    @classmethod
    def create(
        cls, path: Path, *, owner_pid: int, created_unix_ns: int, now_ns: int, server: str = ""
    ) -> Self:
        """Make a new page; the path must not exist.

        Raises OSError when it does, or when the file system has no room for the page; PageError
        on another processor.
        """
        _check_processor()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Real blocks: a full file system must be an error here and not a SIGBUS later.
            os.posix_fallocate(descriptor, 0, PAGE_SIZE)
            page = cls(descriptor, True)
        except BaseException:
            os.close(descriptor)
            raise
        for name, value in _FIXED.items():
            page.words[_H[name]] = value
        header = PageHeader(owner_pid, created_unix_ns, now_ns, server=server)
        encode(header, page.words)
        page._signal_ready()
        return page

    @classmethod
    def attach(cls, path: Path, *, writable: bool = True) -> Self:
        """Map an existing page.

        Raises PageError naming what was found and what is expected when it is another's file, not
        a page, of another layout or not complete, and on another processor; OSError when it cannot
        be opened.
        """
        _check_processor()
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags)
        try:
            _check(path, descriptor)
            return cls(descriptor, writable)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Unmap, and let go of every lock taken through this page."""
        if self.descriptor >= 0:
            self.words.release()
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lock(self, offset: int) -> bool:
        """Become the only writer of the line at ``offset``; False when it has one that lives.

        The lock ends with :meth:`unlock`, :meth:`close` or this process.
        """
        # The kernel would grant a line again to the file description that holds it.
        free = offset not in self._locked and try_lock(self.descriptor, offset, LINE)
        if free:
            self._locked.add(offset)
        return free

    def unlock(self, offset: int) -> None:
        """Give a line back."""
        unlock(self.descriptor, offset, LINE)
        self._locked.discard(offset)

    def _signal_ready(self) -> None:
        self.words[_H["ready"]] = 1


def _check_processor() -> None:
    """Every word here is published by the order of stores alone."""
    if (machine := os.uname().machine) != _PROCESSOR:
        raise PageError(
            f"Shunter needs an {_PROCESSOR} processor, this one is {machine}: the shared page "
            "relies on stores that become visible in program order"
        )


def _check(path: Path, descriptor: int) -> None:
    """Compare an open file with what this program knows, before anything of it is mapped."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise PageError(f"{path} is not a regular file")
    if status.st_uid != os.geteuid():
        raise PageError(f"{path} belongs to user {status.st_uid}, this program is {os.geteuid()}")
    start = os.pread(descriptor, HEADER_SIZE, 0).ljust(HEADER_SIZE, b"\0")
    words = memoryview(start).cast("q")
    for name, expected in _FIXED.items():
        if words[_H[name]] != expected:
            raise PageError(f"{path}: {name} is {words[_H[name]]}, this program knows {expected}")
    if status.st_size != PAGE_SIZE:
        raise PageError(f"{path} has {status.st_size} bytes, this program knows {PAGE_SIZE}")
    if words[_H["ready"]] != 1:
        raise PageError(f"{path} is not complete yet")
