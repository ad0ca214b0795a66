"""One MPS daemon for each slice: several processes compute there at the same time.

Without MPS the processes on a GPU or MIG device take turns on all of it. A daemon belongs to one
device, by the UUID in CUDA_VISIBLE_DEVICES, and to one folder for its pipes; processes that have
the same two in their environment are its clients. A daemon outlives whoever started it: the next
controller finds it by its folder.

The share of multiprocessors is a bound of each client, not a reservation, and holds for clients
that start after it was set.
"""

from __future__ import annotations

import enum
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shunter.allocator.devices.advice import DeviceError

PROGRAM = "nvidia-cuda-mps-control"
ANSWER_S = 10.0
"""What a daemon gets to answer before it counts as hung."""
LOOK_EVERY_S = 0.05
LONGEST_SOCKET_PATH = 107
_CONTROL = "control"
_PID_FILE = f"{PROGRAM}.pid"


class MpsHealth(enum.StrEnum):
    """What a daemon does."""

    SERVES = "serves"
    FAULTED = "faulted"
    """A client's fault has stopped its server; it goes on when all clients have ended."""
    HUNG = "hung"
    GONE = "gone"


class MpsDaemon:
    """The daemon of one device. Its clients must be of the same user."""

    def __init__(
        self,
        device: str,
        folder: Path,
        *,
        program: str = PROGRAM,
        environ: Mapping[str, str] = os.environ,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``device``: UUID of a GPU or MIG device; ``folder``: of this daemon alone."""
        self.device, self._folder = device, folder
        self._pipes, self._logs = folder / "pipe", folder / "log"
        self._program, self._environ, self._sleep = program, dict(environ), sleep
        control = self._pipes / _CONTROL
        if len(str(control)) > LONGEST_SOCKET_PATH:
            raise DeviceError(
                f"{control} is too long for a socket ({len(str(control))} characters, at most "
                f"{LONGEST_SOCKET_PATH}): choose a shorter folder for MPS"
            )

    def start(self) -> None:
        """Start it unless it runs; raises DeviceError when it does not come up."""
        if self.health() is MpsHealth.SERVES:
            return
        self.end()
        for folder in (self._pipes, self._logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        done = self._run(["-d"], "")
        if done.returncode != 0:
            raise self._refused("start", done)
        for _ in range(round(ANSWER_S / LOOK_EVERY_S)):
            if self.health() is MpsHealth.SERVES:
                return
            self._sleep(LOOK_EVERY_S)
        raise DeviceError(
            f"MPS of {self.device} was started and does not answer: look at {self._logs}"
        )

    def stop(self) -> None:
        """Ask it to end; clients still there make it wait, then it is killed."""
        with suppress(DeviceError):
            self.ask("quit")
        self.end()

    def end(self) -> None:
        """Kill it if it is there; only a process that is this program is ever killed."""
        for _ in range(2):
            pid = self._pid()
            if pid is None:
                break
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            for _ in range(round(ANSWER_S / LOOK_EVERY_S)):
                if self._pid() is None:
                    break
                self._sleep(LOOK_EVERY_S)
        (self._pipes / _PID_FILE).unlink(missing_ok=True)

    def health(self) -> MpsHealth:
        """What it does now."""
        if self._pid() is None:
            return MpsHealth.GONE
        try:
            states = [self.ask(f"get_server_status {pid}") for pid in self.servers()]
        except MpsHungError:
            return MpsHealth.HUNG
        except DeviceError:
            return MpsHealth.GONE
        return MpsHealth.FAULTED if any("FAULT" in s for s in states) else MpsHealth.SERVES

    def servers(self) -> tuple[int, ...]:
        """Pids of its servers: one for each user with clients, none before the first."""
        return tuple(int(word) for word in self.ask("get_server_list").split() if word.isdigit())

    def clients(self) -> tuple[int, ...]:
        """Pids of the processes that it serves."""
        found = [self.ask(f"get_client_list {pid}").split() for pid in self.servers()]
        return tuple(int(word) for words in found for word in words if word.isdigit())

    def set_share(self, percent: float) -> None:
        """Let each client that starts from now on have at most this share of the SMs."""
        share = _checked_share(percent)
        self.ask(f"set_default_active_thread_percentage {share}")
        for pid in self.servers():
            self.ask(f"set_active_thread_percentage {pid} {share}")

    def client_environ(
        self, percent: float | None = None, memory_bytes: int | None = None
    ) -> dict[str, str]:
        """What a process needs in its environment to be a client, and its own bounds."""
        found = {
            "CUDA_VISIBLE_DEVICES": self.device,
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self._logs),
        }
        if percent is not None:
            found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = _checked_share(percent)
        if memory_bytes is not None:  # In a slice there is one device, the number 0.
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory_bytes >> 20}M"
        return found

    def ask(self, command: str) -> str:
        """Give the daemon a command, and get what it prints."""
        done = self._run([], f"{command}\n")
        if done.returncode != 0:
            raise self._refused(command, done)
        return done.stdout

    def _run(self, arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._program, *arguments],
                input=text,
                env=self._environ | self.client_environ(),
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise DeviceError(
                f"{self._program} is not there: it comes with NVIDIA's driver (package "
                "nvidia-compute-utils); in containers NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise MpsHungError(
                f"MPS of {self.device} does not answer within {ANSWER_S:g} s: look at {self._logs}"
            ) from error

    def _refused(self, command: str, done: subprocess.CompletedProcess[str]) -> DeviceError:
        said = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        return DeviceError(
            f"MPS of {self.device} refuses {command!r}: {said}; look at {self._logs}/control.log"
        )

    def _pid(self) -> int | None:
        """The daemon's, as long as it lives."""
        try:
            pid = int((self._pipes / _PID_FILE).read_text("ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        except (OSError, ValueError, IndexError):
            return None
        # A number may be another process's by now.
        is_ours = Path(self._program).name.encode() in command
        return pid if is_ours and state != "Z" else None


class MpsHungError(DeviceError):
    """A daemon is there and does not answer."""


def _checked_share(percent: float) -> str:
    if not 0 < percent <= 100:
        raise DeviceError(f"a share of {percent:g} % of the SMs; allowed: above 0, at most 100")
    return f"{percent:g}"


@dataclass
class BackOff:
    """When a daemon that ends again and again is started next. Pure."""

    first_s: float = 1.0
    most_s: float = 60.0
    failures: int = 0
    next_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """It was started, or was to be."""
        # More than so many doublings are the longest pause anyway, and soon no number any more.
        self.next_s = now_s + min(self.most_s, self.first_s * 2 ** min(self.failures, 64))
        self.failures += 1

    def was_well(self, now_s: float) -> None:
        """It serves; what was is forgotten when it has done so for the longest pause."""
        if now_s >= self.next_s + self.most_s:
            self.failures = 0


class MpsKeeper:
    """Sees to it that a daemon runs."""

    def __init__(self, daemon: MpsDaemon, back_off: BackOff | None = None) -> None:
        self.daemon, self.back_off = daemon, back_off or BackOff()
        self.restarts, self.problem = 0, ""

    def check(self, now_s: float) -> MpsHealth:
        """To be called every second or so: start it again when it has ended or hangs."""
        health = self.daemon.health()
        if health in (MpsHealth.SERVES, MpsHealth.FAULTED):
            # After a fault only its clients' end helps, and those have died of it.
            self.back_off.was_well(now_s)
            return health
        if now_s < self.back_off.next_s:
            return health
        self.back_off.failed(now_s)
        self.restarts += 1
        try:
            self.daemon.start()
        except DeviceError as error:
            self.problem = str(error)
            return health
        self.problem = ""
        return MpsHealth.SERVES
