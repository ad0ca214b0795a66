"""A budget of private memory for hot weights: pages that are there, in huge ones where allowed.

The kernel fills a fresh page with zeros before it is written, which takes about as long as the copy
into it. So pages are taken once and stay: what one model leaves another gets. To be one range of
addresses again, however they lie, pages are moved in the page table and not copied
(``mremap``), so there is room for a model whenever there are enough bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable

CHUNK = 2 << 20
"""Bytes that are given out at a time: a huge page, whose entry in the page table is moved whole."""
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_MOVE = 1 | 2
"""MREMAP_MAYMOVE, MREMAP_FIXED."""
_HUGE, _DONT_NEED = 14, 4
"""MADV_HUGEPAGE, MADV_DONTNEED."""
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.mremap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class NoRoom(Exception):
    """There are not so many bytes free."""


def chunks_of(size: int) -> int:
    """What ``size`` bytes take.

    >>> [chunks_of(size) for size in (0, 1, 2 << 20, (2 << 20) + 1)]
    [0, 1, 1, 2]
    """
    return -(-size // CHUNK)


class HotMemory:
    """Memory that models get and give back. Any thread may use it."""

    def __init__(self, budget: int) -> None:
        """Of at most ``budget`` bytes, which are taken from the host as they are written first."""
        self._lock = threading.Lock()
        self._fresh = budget // CHUNK
        """Chunks that nobody had yet."""
        self._free: list[int] = []
        """Addresses of the others that nobody has."""
        self._taken: dict[int, int] = {}
        """Address of a range that somebody has -> its chunks."""
        self._kept: list[tuple[int, Callable[[], bool]]] = []
        """Ranges among them that were to be given back, and whether nobody refers to them now."""

    @property
    def free_bytes(self) -> int:
        """What can be had."""
        with self._lock:
            return (self._fresh + len(self._free)) * CHUNK

    def take(self, size: int) -> int:
        """Address of ``size`` bytes in one range; what is in them is not said.

        Raises NoRoom, and OSError when the host has no addresses or maps left.
        """
        count = chunks_of(size)
        with self._lock:
            self._take_back()
            if count > self._fresh + len(self._free):
                raise NoRoom(f"{size} bytes, {(self._fresh + len(self._free)) * CHUNK} are free")
            address = self._run(count)
            if address is None:
                address = self._gathered(count)
            self._taken[address] = count
            return address

    def _run(self, count: int) -> int | None:
        """Free chunks that are one range as they are, such as a model's of the same size."""
        self._free.sort()
        begin = 0
        for end in range(1, len(self._free) + 1):
            if self._free[end - 1] != self._free[begin] + (end - 1 - begin) * CHUNK:
                begin = end - 1
            if end - begin == count:
                found = self._free[begin]
                del self._free[begin:end]
                return found
        return None

    def _gathered(self, count: int) -> int:
        """Free chunks moved to one range of addresses, and fresh ones behind them."""
        address = _aligned_range(count * CHUNK)
        moved = self._free[-count:]
        for number, chunk in enumerate(moved):
            target = address + number * CHUNK
            if _libc.mremap(chunk, CHUNK, CHUNK, _MOVE, target) == _FAILED:
                error = ctypes.get_errno()
                # What was moved is free there; the rest of the range is let go.
                self._free[-len(moved) :] = [
                    *(address + each * CHUNK for each in range(number)), *moved[number:]
                ]  # fmt: skip
                _libc.munmap(target, (count - number) * CHUNK)
                raise OSError(error, os.strerror(error))
        if moved:
            del self._free[-len(moved) :]
        self._fresh -= count - len(moved)
        return address

    def give_back(self, address: int) -> None:
        """Of a range that was taken. Nothing may use it any more."""
        with self._lock:
            self._give_back(address)

    def _give_back(self, address: int) -> None:
        count = self._taken.pop(address)
        self._free += [address + number * CHUNK for number in range(count)]

    def give_back_later(self, address: int, is_unused: Callable[[], bool]) -> None:
        """The same, as soon as nothing uses it."""
        with self._lock:
            self._kept.append((address, is_unused))

    def _take_back(self) -> None:
        for each in list(self._kept):
            address, is_unused = each
            if is_unused():
                self._kept.remove(each)
                self._give_back(address)

    def trim(self) -> None:
        """Let the host have the pages that nobody uses; they are taken again when they are."""
        with self._lock:
            for chunk in self._free:
                _libc.madvise(chunk, CHUNK, _DONT_NEED)

    def close(self) -> None:
        """Unmap all. Nothing may use any of it any more."""
        with self._lock:
            for address, count in self._taken.items():
                _libc.munmap(address, count * CHUNK)
            for chunk in self._free:
                _libc.munmap(chunk, CHUNK)
            self._taken, self._free, self._fresh = {}, [], 0


def _aligned_range(size: int) -> int:
    """Fresh memory at a multiple of a chunk."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found = _libc.mmap(None, size + CHUNK, access, _PRIVATE, -1, 0)
    if found == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    start = -(-found // CHUNK) * CHUNK
    if start > found:
        _libc.munmap(found, start - found)
    if rest := found + CHUNK - start:
        _libc.munmap(start + size, rest)
    _libc.madvise(start, size, _HUGE)  # where huge pages are not allowed, small ones do
    return int(start)
