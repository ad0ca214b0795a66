"""Regions of shared memory that a client on this host names, as Triton's clients do.

The regions are mapped by the client itself, in the user's own process; no server is told of them.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")
"""Where POSIX shared memory is."""


class RegionError(ValueError):
    """There is no such region, or it is not as large as was said; the message names it."""


@dataclass(frozen=True)
class Region:
    """Bytes ``offset`` to ``offset + byte_size`` of a shared memory object."""

    name: str
    key: str
    offset: int
    byte_size: int
    view: memoryview


class Regions:
    """Registered regions by name."""

    def __init__(self) -> None:
        """None is registered."""
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, byte_size: int, offset: int = 0) -> None:
        """Map a region of the object ``key``, such as ``/input``. Raises RegionError."""
        if name in self._regions:
            raise RegionError(f"shared memory region '{name}' is already registered")
        stem = key.removeprefix("/")
        if not stem or "/" in stem or stem in (".", ".."):
            raise RegionError(f"'{key}' is not a key of shared memory, such as /input")
        try:
            descriptor = os.open(FOLDER / stem, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RegionError(f"shared memory '{key}': {error.strerror}") from error
        try:
            size = os.fstat(descriptor).st_size
            if byte_size < 1 or offset < 0 or offset + byte_size > size:
                raise RegionError(
                    f"bytes {offset} to {offset + byte_size} of '{key}', which has {size}"
                )
            whole = memoryview(mmap.mmap(descriptor, size))
        finally:
            os.close(descriptor)
        view = whole[offset : offset + byte_size]
        self._regions[name] = Region(name, key, offset, byte_size, view)

    def unregister(self, name: str = "") -> None:
        """Forget one, or all. What still uses its memory keeps it mapped."""
        if not name:
            self._regions.clear()
        elif self._regions.pop(name, None) is None:
            raise RegionError(f"no shared memory region '{name}' is registered")

    def find(self, name: str = "") -> list[Region]:
        """One, or all. Raises RegionError."""
        if name and name not in self._regions:
            raise RegionError(f"no shared memory region '{name}' is registered")
        return [self._regions[name]] if name else list(self._regions.values())

    def view(self, name: str, byte_size: int, offset: int = 0) -> memoryview:
        """Bytes of a region, counted from its own beginning. Raises RegionError."""
        [region] = self.find(name)
        if byte_size < 0 or offset < 0 or offset + byte_size > region.byte_size:
            raise RegionError(
                f"bytes {offset} to {offset + byte_size} of region '{name}', which has "
                f"{region.byte_size}"
            )
        return region.view[offset : offset + byte_size]
