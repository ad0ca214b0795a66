"""A worker takes its cores for itself, and the kernel gives them back when it ends.

All workers of a user on a host share one file. Holding a CPU is holding one of its bytes by a
POSIX record lock: the kernel lets go of it when the process ends in whatever way, and tells who
holds it. Choosing happens under a lock on the first byte, so that two workers never take the same
core; which ones are chosen is :func:`shunter.allocator.cpus.cores.choose_cores`.

A CPU has several bytes because instances of two generations may share it during a change-over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shunter.allocator.cpus.cores import choose_cores
from shunter.allocator.cpus.topology import Topology

WAIT_S = 5.0
"""Longest time for another process to choose, which takes milliseconds."""
_LOOK_S = 0.001
LANES = 8
"""Instances that may share a CPU, by generations that overlap."""
_CHOOSING = 0
"""The byte of whoever is choosing; those of the CPUs follow."""
_FLOCK = struct.Struct("@hhqqi4x")


def claims_path(environ: Mapping[str, str], uid: int) -> Path:
    """Where a user's workers on this host settle who holds which CPU."""
    # Not in a runtime folder: servers with different ones share the cores all the same.
    return Path(environ.get("SHUNTER_CORE_CLAIMS") or f"/dev/shm/shunter-{uid}-cores")


class CoreClaims:
    """The shared file. Keep the object, and never open the file twice in a process:
    closing any descriptor of it would let go of what this process holds."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises OSError when it belongs to another user."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        if os.fstat(self._descriptor).st_uid != os.geteuid():
            os.close(self._descriptor)
            raise PermissionError(f"{path} belongs to another user")

    def close(self) -> None:
        """Give everything back."""
        os.close(self._descriptor)

    def claim(
        self, topology: Topology, threads: int, share_with: Collection[int] = ()
    ) -> tuple[int, ...] | None:
        """Take CPUs for ``threads`` threads and keep them; None when there are not enough.

        ``share_with``: pids of the workers that this one replaces; their CPUs may be taken too.
        Raises TimeoutError.
        """
        with self._choosing():
            holders = {cpu.id: self.holders(cpu.id) for cpu in topology.cpus}
            foreign = {cpu for cpu, pids in holders.items() if pids - set(share_with)}
            shared = {cpu for cpu, pids in holders.items() if pids} - foreign
            full = {cpu for cpu in shared if len(holders[cpu]) >= LANES}
            cores = choose_cores(topology, threads, foreign | full, shared - full)
            for cpu in cores or ():
                self._take(cpu)
            return cores

    def hold(self, cpus: Collection[int]) -> None:
        """Keep the CPUs that somebody else chose, whoever has them too. Raises TimeoutError."""
        with self._choosing():
            for cpu in cpus:
                self._take(cpu)

    def holders(self, cpu: int) -> set[int]:
        """Pids of other processes that hold a CPU."""
        pids = {self._holder(_byte(cpu, lane)) for lane in range(LANES)}
        return {pid for pid in pids if pid is not None}

    def _take(self, cpu: int) -> None:
        for lane in range(LANES):
            if self._holder(_byte(cpu, lane)) is None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(cpu, lane))
                return

    def _holder(self, byte: int) -> int | None:
        """Who else holds a byte, None for nobody, -1 for a process of another pid namespace."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else (pid or -1)

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """Raises TimeoutError: somebody chooses for seconds, and so has been stopped."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _CHOOSING)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() > end:
                    who = self._holder(_CHOOSING)
                    raise TimeoutError(
                        errno.ETIMEDOUT, f"process {who} has been choosing cores for {WAIT_S:g} s"
                    ) from None
            time.sleep(_LOOK_S)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _CHOOSING)


def _byte(cpu: int, lane: int) -> int:
    return _CHOOSING + 1 + cpu * LANES + lane
