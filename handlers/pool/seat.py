"""A worker that becomes a seat of a pool process, before it has imported anything large.

A seat is a small program in C (``c/seat.c``); here is where it is, and when a worker is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

POOL, RUNTIME = "SHUNTER_POOL", "SHUNTER_RUNTIME"
PROGRAM = Path(__file__).resolve().parent / "build" / "shunter-seat"
"""It is built with the library of the network front end."""
MOST = 64
"""Pool processes of a server."""


def take_if_wanted(module: str, environ: MutableMapping[str, str]) -> None:
    """Become a seat where the server says so. ``module``: the pool process.

    Comes back where it does not, or there cannot be one: the worker has a process of its own then.
    """
    number = environ.get(POOL)
    if not number:
        return
    why = _why_not(number, environ)
    if not why:
        command = [sys.executable, *sys.orig_argv[1:]]
        try:
            os.execve(PROGRAM, [str(PROGRAM), module, *command], dict(environ))
        except OSError as error:
            why = f"{PROGRAM} cannot be run: {error.strerror}"
    print(f"Model worker has a process of its own: {why}", flush=True)
    del environ[POOL]


def _why_not(number: str, environ: MutableMapping[str, str]) -> str:
    """Empty: there is no reason."""
    if not (number.isascii() and number.isdecimal() and int(number) < MOST):
        return f"{POOL}={number!r}; allowed: 0 to {MOST - 1}"
    if not environ.get(RUNTIME):
        return "it belongs to no server"
    if not sys.executable:
        return "nobody knows which Python this is"
    if not PROGRAM.exists():
        return f"there is no {PROGRAM}; `make library` builds it in a checkout"
    return ""
