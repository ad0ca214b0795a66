"""Where this worker runs: cores, threads and scheduling class, from its environment.

The JVM decides and sets, per worker:

``SHUNTER_CORES``
    CPUs as a Linux cpu list, such as ``0-3,8``.
``SHUNTER_THREADS``
    Threads one operator may use, a positive integer.
``SHUNTER_SCHED``
    ``idle`` for a best-effort worker that must only take what others leave (``SCHED_IDLE``),
    ``other`` for the usual class.

An absent or empty variable leaves that part as it is. Everything here happens before torch is
imported, because OpenMP and MKL read their variables once and start threads that inherit the
affinity and the scheduling class. A GPU or a slice of one comes by ``CUDA_VISIBLE_DEVICES``,
which needs no help.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CORES_VARIABLE = "SHUNTER_CORES"
THREADS_VARIABLE = "SHUNTER_THREADS"
SCHED_VARIABLE = "SHUNTER_SCHED"

# Every numeric library of a worker must agree, or one of them starts a thread per core.
LIBRARY_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# Linux is built for at most 8192 CPUs; without a bound `0-999999999` would fill the memory.
MAX_CPU = 8191
MAX_THREADS = MAX_CPU + 1

_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
_SCHEDULING = ("idle", "other")


class PlacementError(ValueError):
    """The placement asked for is malformed, or this machine cannot give it."""


@dataclass(frozen=True)
class Placement:
    """Where one worker runs; ``None`` leaves that part as it is."""

    cores: tuple[int, ...] | None = None
    """CPU numbers, ascending."""
    threads: int | None = None
    """Threads of one operator."""
    scheduling: str | None = None
    """``idle`` or ``other``."""


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPU numbers of a Linux cpu list such as ``0-3,8``, ascending and distinct."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise PlacementError(
                f"cpu list {text!r}: {part!r} is neither a CPU number nor a range such as 0-3"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise PlacementError(f"cpu list {text!r}: the range {part!r} runs backwards")
        if last > MAX_CPU:
            raise PlacementError(f"cpu list {text!r}: {last} is above the last CPU, {MAX_CPU}")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return ``cpus`` as the shortest cpu list; the inverse of :func:`parse_cpu_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if not 0 <= cpu <= MAX_CPU:
            raise PlacementError(f"CPU {cpu} is outside 0-{MAX_CPU}")
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read_placement(environ: Mapping[str, str]) -> Placement:
    """Return the placement that ``environ`` asks for."""
    cores = environ.get(CORES_VARIABLE)
    threads = environ.get(THREADS_VARIABLE)
    scheduling = environ.get(SCHED_VARIABLE)
    if scheduling and scheduling not in _SCHEDULING:
        raise PlacementError(
            f"{SCHED_VARIABLE}={scheduling!r}: allowed are {' and '.join(_SCHEDULING)}"
        )
    return Placement(
        _read_cores(cores) if cores else None, _read_threads(threads), scheduling or None
    )


def _read_cores(text: str) -> tuple[int, ...]:
    try:
        return parse_cpu_list(text)
    except PlacementError as error:
        raise PlacementError(f"{CORES_VARIABLE}: {error}") from None


def _read_threads(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_THREADS):
        raise PlacementError(
            f"{THREADS_VARIABLE}={text!r}: must be a whole number from 1 to {MAX_THREADS}"
        )
    return int(text)


def apply_placement(placement: Placement) -> None:
    """Move this process to its place. Call it before torch is imported."""
    if placement.cores is not None:
        _pin(placement.cores)
    if placement.threads is not None:
        for name in LIBRARY_VARIABLES:
            os.environ[name] = str(placement.threads)
    if placement.scheduling == "idle":
        _yield_to_others()


def _pin(cores: tuple[int, ...]) -> None:
    wanted = format_cpu_list(cores)
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        granted: set[int] = set()
    else:
        # The kernel drops what a cpuset forbids without a word, so look at what was granted.
        granted = os.sched_getaffinity(0)
    missing = set(cores) - granted
    if missing:
        raise PlacementError(
            f"{CORES_VARIABLE}={wanted}: CPU {format_cpu_list(missing)} is not available to this "
            f"process, which may use {format_cpu_list(os.sched_getaffinity(0))}"
        )


def _yield_to_others() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        raise PlacementError(f"{SCHED_VARIABLE}=idle: the kernel refused it: {error}") from error
