"""The model server of a machine, as a program of its own.

Its standard input says what to serve, in a line of JSON; its standard output says in one where the
server is, or why there is none. When the input ends, because it was closed or because the process
at its other end died, the server answers what it holds and ends: nothing is left behind.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from shunter.plugins import hosts
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostProcess
from shunter.plugins.management import ManagementSocket

DRAIN_S = 30.0
LOOK_S = 0.2
START_S = 600.0


def process_of(told: dict[str, Any], folder: Path) -> HostProcess:
    """The server that was asked for. Raises UserError."""
    store = Path(told["store"])
    if not store.is_dir():
        raise UserError(f"this machine has no model store {store}: copy it there, or mount it")
    models = told["models"]
    if not models:
        models = [f"{path.stem}={path.name}" for path in sorted(store.glob("*.mar"))]
    if not models:
        raise UserError(f"{store} holds no .mar file: make one with `shunter pack`")
    settings = dict(told["settings"])
    if told["shunter_config"]:
        settings["shunter_config"] = told["shunter_config"]
    ports = tuple(told["ports"]) if told["ports"] else None
    return hosts.process_of(
        store,
        models,
        settings=settings | hosts.reachable(told["kind"], told["address"], ports),
        folder=folder,
        ports=ports,
        name=told["kind"],
    )


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _run(told: dict[str, Any], folder: Path, ended: threading.Event) -> None:
    process = process_of(told, folder)
    process.start(START_S)
    try:
        management = ManagementSocket(folder, process.host)
        management.is_open = True
        try:
            _say(inference=process.inference, pid=process.pid, folder=str(folder))
            while process.running and not ended.wait(LOOK_S):
                pass
        finally:
            management.close()
    finally:
        process.drain(DRAIN_S)


def main() -> int:
    """Serve until the input ends. Returns the exit status."""
    for each in (signal.SIGINT, signal.SIGTERM):
        # Who has our input decides. Not SIG_IGN: the server would inherit it, and never drain.
        signal.signal(each, lambda *_: None)
    told = json.loads(sys.stdin.readline())
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, name="input", daemon=True).start()
    try:
        with tempfile.TemporaryDirectory(prefix="shunter-machine-") as folder:
            _run(told, Path(folder), ended)
    except UserError as error:
        _say(refused=str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
