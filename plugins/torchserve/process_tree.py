"""A program that was started and every process below it, so that none of them is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable

import psutil

GRACE_S = 5
"""How long processes may take that end by themselves once the first one has."""
LOOK_S = 0.01
_WORKER_PROGRAMS = ("model_service_worker.py", "shunter.handlers.torchserve.worker")


class ProcessTree:
    """One launched program. It must lead a session of its own (``start_new_session``)."""

    def __init__(self, launcher: subprocess.Popen[bytes]) -> None:
        """Follow ``launcher``."""
        self._launcher = launcher
        self._seen: set[psutil.Process] = set()

    @property
    def launcher(self) -> psutil.Process:
        """The program itself; it exists until :meth:`end`, at least as a zombie."""
        return psutil.Process(self._launcher.pid)

    @property
    def running(self) -> bool:
        """Whether the program has not ended."""
        # Left unreaped until end(), so that nobody else can get its process id meanwhile.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._launcher.pid, look) is None

    def below(self) -> list[psutil.Process]:
        """Processes below it. They are remembered: orphans must be ended too."""
        try:
            found = self.launcher.children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self._seen.update(found)
        return found

    def right_below(self) -> list[psutil.Process]:
        """Those of :meth:`below` that the program has started itself."""
        found = []
        for process in self.below():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.ppid() == self._launcher.pid:
                    found.append(process)
        return found

    def end(self, first: Iterable[psutil.Process], timeout_s: float) -> bool:
        """SIGTERM for ``first``, SIGKILL for all that is left; whether it ended by itself in time.

        Those below may take ``GRACE_S`` after the program's own end.
        """
        self.below()
        for process in first:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        try:
            self._launcher.wait(timeout_s)
            in_time = True
        except subprocess.TimeoutExpired:
            in_time = False
        left = _left(self._seen, GRACE_S if in_time else 0)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()
        _left(left, GRACE_S)
        return in_time


def _left(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that have not ended in time. Orphans that nobody has buried yet have."""
    end = time.monotonic() + timeout_s
    while (left := [each for each in processes if _runs(each)]) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_worker(process: psutil.Process) -> bool:
    """Whether it is a model worker, ours or TorchServe's own."""
    try:
        return any(part.endswith(_WORKER_PROGRAMS) for part in process.cmdline())
    except psutil.Error:
        return False


def listens_at(process: psutil.Process, port: int) -> bool:
    """Whether it has this TCP port."""
    with contextlib.suppress(psutil.Error):
        # Before psutil 6 it has the other name.
        connections = getattr(process, "net_connections", None) or process.connections
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port
            for each in connections("tcp")
        )
    return False
