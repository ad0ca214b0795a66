"""The C library of the network front end: where it is, and what to do when it is not there.

It is built by :mod:`shunter.nic_frontend.build`. The front end and its clients stand on it;
:func:`require` says how to get it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
from functools import cache
from pathlib import Path

from shunter.batching.queue import native
from shunter.batching.queue.native import LibraryError
from shunter.nic_frontend import build
from shunter.nic_frontend.wire.layout import digest

logger = logging.getLogger("shunter.native")
PATH = build.HERE / build.LIBRARY
VARIABLE = "SHUNTER_NATIVE"
"""Environment: path of another library, or ``0`` for none."""
ADVICE = (
    "the network front end and its clients need their C library: build it with `make library` "
    "in a checkout, "
    "reinstall shunter where there is a C compiler (Debian: apt-get install gcc libc6-dev), or "
    "install a wheel that carries it"
)


PROCESSOR = "x86_64"
"""Which keeps the order of stores. The C library goes by C11 atomics anywhere; what Python and Java
write to pages that they share with it does not."""


def path() -> Path:
    """Where the library is, or would be."""
    wanted = os.environ.get(VARIABLE, "")
    return Path(wanted) if wanted not in ("", "0") else PATH


@cache
def library() -> ctypes.CDLL | None:
    """The library, None when there is none or it is not wanted."""
    if os.environ.get(VARIABLE) == "0" or not path().exists():
        return None
    try:
        return _load()
    except LibraryError as error:
        logger.warning("%s", error)
        return None


def require() -> ctypes.CDLL:
    """The library. Raises LibraryError, which says how to get it."""
    if os.environ.get(VARIABLE) == "0":
        raise LibraryError(f"{VARIABLE}=0 forbids the C library, and {ADVICE}")
    if not path().exists():
        raise LibraryError(f"there is no {path()}; {ADVICE}")
    try:
        return _load()
    except LibraryError as error:
        raise LibraryError(f"{error}; {ADVICE}") from error


def check_processor() -> None:
    """Raises LibraryError where a front end and its workers cannot share memory."""
    if platform.machine() != PROCESSOR:
        raise LibraryError(
            f"the network front end needs an {PROCESSOR} processor, this one is "
            f"{platform.machine()}, which reorders stores: workers and the front end could see of "
            "each other what is not whole yet. Run it on another host; its clients run here"
        )


def _load() -> ctypes.CDLL:
    if sys.byteorder != "little":
        raise LibraryError("the C library needs a little-endian processor: headers are copied")
    found = native.load(str(path()))
    found.shunter_wire_digest.restype = ctypes.c_uint64
    if found.shunter_wire_digest() != digest():
        raise LibraryError(f"{path()} is of another version")
    return found
