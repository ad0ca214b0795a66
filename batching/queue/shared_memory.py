"""Memory in a sealed memfd, which two processes map: neither can pull it from under the other."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os

PAGE = mmap.PAGESIZE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PUNCH = 1 | 2
"""FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE."""
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def sealed_memory(name: str, size: int, free_bytes: float = math.inf) -> int:
    """Descriptor of ``size`` bytes of zeros that nobody can make shorter or longer.

    ``free_bytes``: what the host has free. Raises OSError when there is no room: the blocks are
    taken now, so that touching them later cannot fail.
    """
    if size > free_bytes:  # the kernel would try, and end whoever is in its way
        raise OSError(errno.ENOMEM, f"there is no memory for {size} bytes of {name}")
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_only(descriptor: int) -> int:
    """Another descriptor of the same memory, through which it can only be read."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def punch(descriptor: int, offset: int, size: int) -> None:
    """Let the host have this part; it is zeros from now on. Raises OSError."""
    if _libc.fallocate(descriptor, _PUNCH, offset, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_sealed(descriptor: int, size: int) -> bool:
    """Whether touching the first ``size`` bytes can never fail."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return bool(seals & fcntl.F_SEAL_SHRINK) and os.fstat(descriptor).st_size >= size


class Mapping:
    """A mapping of ``size`` bytes."""

    def __init__(self, descriptor: int, size: int, *, writable: bool = True) -> None:
        """Map a descriptor, which may be closed afterwards.

        Raises OSError when it cannot be mapped.
        """
        self.size = size
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.address = _mapped(size, access, descriptor)
        self.bytes = (ctypes.c_ubyte * size).from_address(self.address)
        """As ctypes array: for views. It does not keep the memory mapped."""

    def close(self) -> None:
        """Unmap. No view may be used afterwards."""
        if self.address:
            _libc.munmap(self.address, self.size)
            self.address = 0

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mapped(size: int, access: int, descriptor: int) -> int:
    found = _libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
    if found == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {size} bytes: {os.strerror(number)}")
    assert found is not None
    return int(found)
