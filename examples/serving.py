"""``shunter serve`` for the time of an example."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SHUNTER = Path(sys.executable).with_name("shunter")
READY = "Ctrl-C drains and stops"


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    http: str
    """Of requests."""
    network: str
    """Of the network front end, for ``shunter.nic_frontend.client``."""
    lines: tuple[str, ...]
    """What it printed."""


def shunter(*arguments: str) -> str:
    """Run a command and show it. What it printed."""
    print("$ shunter", *arguments, flush=True)
    done = subprocess.run(
        [SHUNTER, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=_environment()
    )
    return done.stdout


@contextmanager
def serving(store: Path, *options: str, settings: str = "") -> Iterator[Served]:
    """A server with all archives of a store; ``settings``: of ``shunter.toml``, but ``[nic]``."""
    http, grpc, network = _free_ports(3)
    file = store / "shunter.toml"
    file.write_text(f"[nic]\nenabled = true\nport = {network}\n{settings}", encoding="utf-8")
    command = ["serve", "--store", str(store), "--port", str(http), "--grpc", str(grpc), *options]
    print("$ shunter", *command, flush=True)
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [SHUNTER, *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_environment() | {"SHUNTER_CONFIG": str(file), "COLUMNS": "200"},
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                lines.append(line.rstrip())
                if READY in line:
                    break
            else:
                log.seek(0)
                sys.exit("\n".join([*lines[-20:], log.read()]))
            yield Served(f"http://127.0.0.1:{http}", f"udp://127.0.0.1:{network}", tuple(lines))
        finally:
            # What it prints from now on must not fill the pipe.
            server.send_signal(signal.SIGTERM)
            server.communicate()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "SHUNTER_CONFIG"}


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has, nor the two behind each, which servers take too."""
    found: list[int] = []
    with ExitStack() as taken:  # until all are found: no two of them are the same
        while len(found) < count:
            with suppress(OSError, OverflowError), ExitStack() as three:
                first, *behind = (three.enter_context(socket.socket()) for _ in range(3))
                first.bind(("127.0.0.1", 0))
                port: int = first.getsockname()[1]
                for number, each in enumerate(behind, port + 1):
                    each.bind(("127.0.0.1", number))
                taken.push(three.pop_all())
                found.append(port)
    return found
