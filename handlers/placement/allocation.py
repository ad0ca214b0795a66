"""Memory of a worker's tensors: what a batch frees is kept for the next one.

glibc gives every freed block above 32 MB back to the kernel, which has to fill it with zeros, page
by page, for the next batch. The activations of an image model are such blocks: with ResNet-50 and
batches of 32, a fifth of the time goes there (``bench/allocation.py``). The C library reads its
settings once, when a process starts, so the worker starts itself anew with them.

A worker then holds the memory of its largest batch, which it needs for the next such batch anyway;
what loading left over is given back. Programs that a handler starts do not inherit it.
``SHUNTER_KEEP_MEMORY=0`` leaves everything as it was, and so does a library of another allocator
(``LD_PRELOAD``) and any setting of glibc's by the user.
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
_STARTED_ANEW = "started-anew"
"""Value of the variable in the new process: not by the settings, which glibc or a wrapper may
have taken out of the environment, and then it would start anew for ever."""


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the worker shall start anew: nobody said anything about its memory."""
    said = any(environ.get(name) for name in ("LD_PRELOAD", TUNABLES))
    said |= any(name.startswith("MALLOC_") for name in environ)
    return environ.get(VARIABLE, "1") == "1" and not said


def start_anew_if_wanted() -> bool:
    """Replace this process by itself with the settings.

    Returns True in the process that has them, False where they are not wanted or not possible.
    """
    if os.environ.get(VARIABLE) == _STARTED_ANEW:
        del os.environ[VARIABLE]
        return os.environ.pop(TUNABLES, None) == SETTINGS
    if is_wanted(os.environ) and sys.executable:
        environ = {**os.environ, TUNABLES: SETTINGS, VARIABLE: _STARTED_ANEW}
        try:
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
        except OSError as error:
            print(f"The worker gives memory back after each batch: {error}", flush=True)
    return False


def give_back() -> None:
    """Give back what is free now: loading needs more than serving does."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # another C library has none
    if trim is not None:
        trim(0)
