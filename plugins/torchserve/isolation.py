"""What one TorchServe must not share with another: ports, folders, environment, log settings."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shunter.batching.page.processes import is_alive, try_lock
from shunter.plugins import ports as free

_SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket path that the kernel takes, without the final zero."""

LOCK = "serve.lock"
"""In a server's folder: the pid of who has it; who that is holds the lock."""
QUIET_LOG = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- Errors only: the default logs cost more than a small model (several lines per request).
     Of what workers print, only lines that belong to an error are kept. -->
<Configuration>
  <Appenders>
    <Console name="STDOUT" target="SYSTEM_OUT">
      <PatternLayout pattern="%d{ISO8601} [%-5p] %t %c - %m%n"/>
    </Console>
  </Appenders>
  <Loggers>
    <Logger name="MODEL_LOG" level="info">
      <RegexFilter regex=".*(Traceback|Error|Exception|ERROR|  File ).*"
                   onMatch="ACCEPT" onMismatch="DENY"/>
    </Logger>
    <Logger name="org.pytorch.serve.ModelServer" level="warn">
      <RegexFilter regex="Invalid model config.*" onMatch="DENY" onMismatch="NEUTRAL"/>
    </Logger>
    <Logger name="org.shunter" level="warn"/>
    <Root level="error">
      <AppenderRef ref="STDOUT"/>
    </Root>
  </Loggers>
</Configuration>
"""


class FolderTaken(Exception):
    """Another server has it."""


@dataclass(frozen=True)
class Ports:
    """The ports of one server. Worker sockets are numbered upwards from ``first_worker``."""

    inference: int
    management: int
    metrics: int
    grpc_inference: int
    grpc_management: int
    first_worker: int


def free_ports() -> Ports:
    """Six that differ and that nobody has now."""
    return Ports(*free.free_ports(6))


def properties(ports: Ports, *, tokens: bool, model_api: bool, extra: Mapping[str, str]) -> str:
    """Text of ``config.properties``; ``extra`` wins over what isolation sets."""
    lines = {
        "inference_address": f"http://127.0.0.1:{ports.inference}",
        "management_address": f"http://127.0.0.1:{ports.management}",
        "metrics_address": f"http://127.0.0.1:{ports.metrics}",
        "grpc_inference_port": str(ports.grpc_inference),
        "grpc_management_port": str(ports.grpc_management),
        "initial_worker_port": str(ports.first_worker),
        "disable_token_authorization": str(not tokens).lower(),
        "enable_model_api": str(model_api).lower(),
        # The collector starts a Python process every minute and wants packages of its own.
        "disable_system_metrics": "true",
        **extra,
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def short_folder() -> Path:
    """A new temporary folder whose path leaves room for worker sockets."""
    folder = Path(tempfile.mkdtemp(prefix="shunter-"))
    if len(os.fsencode(folder / ".ts.sock.65535")) > _SOCKET_PATH_LIMIT:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="shunter-", dir="/tmp"))
    return folder


def lock(folder: Path) -> int:
    """Descriptor of the lock of a folder that is one server's: whoever inherits it holds it, too.

    Raises FolderTaken.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not try_lock(descriptor, 0, 0):
        holder = os.read(descriptor, 20).decode("ascii", "replace")
        os.close(descriptor)
        left = holder.isdecimal() and not is_alive(int(holder))
        more = " has left behind (`shunter status` says its pid)" if left else ""
        which = f"which process {holder}" if left else f"process {holder}"
        raise FolderTaken(f"{folder} is that of another server, {which}{more}")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def shared_memory_folder() -> Path:
    """A new folder in shared memory, or a temporary one where /dev/shm is not usable."""
    shm = Path("/dev/shm")
    usable = shm.is_dir() and os.access(shm, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="shunter-", dir=shm if usable else None))


def environment(
    *, temporary: Path, runtime: Path, logs: Path, extra: Mapping[str, str]
) -> dict[str, str]:
    """This process's environment with everything that two servers would share replaced."""
    own = {key: value for key, value in os.environ.items() if key != "TS_CONFIG_FILE"}
    beside = str(Path(sys.executable).parent)
    return {
        **own,
        "PATH": f"{beside}{os.pathsep}{own.get('PATH', os.defpath)}",
        "TMPDIR": str(temporary),
        "TEMP": str(temporary),
        "LOG_LOCATION": str(logs),
        "METRICS_LOCATION": str(logs),
        "SHUNTER_RUNTIME_DIR": str(runtime),
        **extra,
    }


def torchserve_command() -> str | None:
    """The ``torchserve`` of the running interpreter's environment, else the one on PATH."""
    beside = Path(sys.executable).parent / "torchserve"
    return str(beside) if beside.is_file() else shutil.which("torchserve")
