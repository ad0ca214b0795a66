"""Linux cpu lists such as ``0-3,8``, as in ``/sys``, ``taskset`` and ``docker --cpuset-cpus``."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Linux is built for at most 8192 CPUs; without a bound `0-999999999` would fill the memory.
MAX_CPU = 8191

_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)


class CpuListError(ValueError):
    """The text is not a cpu list, or names a CPU that cannot be."""


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPU numbers of a Linux cpu list such as ``0-3,8``, ascending and distinct."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise CpuListError(
                f"cpu list {text!r}: {part!r} is neither a CPU number nor a range such as 0-3"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise CpuListError(f"cpu list {text!r}: the range {part!r} runs backwards")
        if last > MAX_CPU:
            raise CpuListError(f"cpu list {text!r}: {last} is above the last CPU, {MAX_CPU}")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return ``cpus`` as the shortest cpu list; the inverse of :func:`parse_cpu_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if not 0 <= cpu <= MAX_CPU:
            raise CpuListError(f"CPU {cpu} is outside 0-{MAX_CPU}")
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
