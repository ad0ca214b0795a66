"""Memory of a worker's tensors: what a batch frees is kept for the next one.

glibc gives every freed block above 32 MB back to the kernel, which has to fill it with zeros, page
by page, for the next batch. The activations of an image model are such blocks: with ResNet-50 and
batches of 32, a third of the time goes there (``bench/allocation.py``). The C library reads its
settings once, when a process starts, so the worker starts itself anew with them.

A worker then holds the memory of its largest batch, which it needs for the next such batch anyway;
what loading left over is given back. ``SHUNTER_KEEP_MEMORY=0`` leaves everything as it was, and so
does a library of another allocator (``LD_PRELOAD``) and any setting of glibc's by the user.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

VARIABLE = "SHUNTER_KEEP_MEMORY"
TUNABLES = "GLIBC_TUNABLES"
SETTINGS = ":".join(
    (
        "glibc.malloc.mmap_max=0",  # large blocks come from the heap too
        "glibc.malloc.trim_threshold=1099511627776",  # and stay in it
        "glibc.malloc.top_pad=67108864",  # which grows by as much
        "glibc.malloc.hugetlb=1",  # in huge pages where the kernel lets one ask for them
    )
)
_OTHERS = ("LD_PRELOAD", TUNABLES)


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the worker shall start anew: nobody said anything about its memory."""
    if environ.get(VARIABLE, "1") == "0" or any(environ.get(name) for name in _OTHERS):
        return False
    return not any(name.startswith("MALLOC_") for name in environ)


def start_anew_if_wanted() -> None:
    """Replace this process by itself with the settings; returns if it has them or shall not."""
    if is_wanted(os.environ):
        environ = {**os.environ, TUNABLES: SETTINGS}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)


def give_back() -> None:
    """Give back what is free now: loading needs more than serving does."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # another C library has none
    if trim is not None and os.environ.get(TUNABLES) == SETTINGS:
        trim(0)
