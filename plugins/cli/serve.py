"""``shunter serve``: a server with Shunter, in the foreground until it is told to stop."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from shunter.batching.forming.spelling import hint
from shunter.plugins.cli.files import check_archive
from shunter.plugins.cli.supervisor import Supervisor
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostProcess

LOGGER = logging.getLogger("shunter.serve")
_DRAIN_S = 60
_TOLD_EVERY_S = 5.0


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` options as lines of config.properties."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--config {pair!r}: write KEY=VALUE, for example job_queue_size=500")
        if settings.setdefault(key.strip(), value.strip()) != value.strip():
            raise UserError(f"--config {key.strip()} is given twice: the server takes one value")
    return settings


def check_triton(*, tokens: bool | None, verbose: bool) -> None:
    """Raises UserError for what only TorchServe has."""
    if tokens:
        raise UserError(
            "--tokens: Triton has none; --config http-restricted-api=APIS:KEY=VALUE closes single "
            "APIs, and it listens on this machine only unless http-address says otherwise"
        )
    if verbose:
        raise UserError("--verbose is of TorchServe; of Triton's log say --config log-verbose=1")


def archives(store: Path, models: Sequence[str]) -> list[str]:
    """The archives to load; every ``.mar`` of the store when none is named.

    One that cannot be read stops no other: it is named, and left out. Raises UserError.
    """
    if not store.is_dir():
        raise UserError(f"--store {store} is not a folder")
    if not models:
        models = [f"{path.stem}={path.name}" for path in sorted(store.glob("*.mar"))]
    if not models:
        raise UserError(f"{store} holds no .mar file: make one with `shunter pack`")
    for model in models:
        file = model.split("=", 1)[-1]
        if "://" not in file and not (store / file).exists():
            near = hint(file, (path.name for path in store.glob("*.mar")))
            raise UserError(f"{store} holds no {file}{near}")
    return _readable(store, models)


def _readable(store: Path, models: Sequence[str]) -> list[str]:
    found, wrong = [], []
    for model in models:
        try:
            check_archive(store / model.split("=", 1)[-1])
            found.append(model)
        except UserError as error:
            wrong.append(str(error))
    if not found:
        raise UserError("; ".join(wrong))
    for why in wrong:
        LOGGER.warning("%s\nThe others are served.", why)
    return found


class Lines:
    """How far a start is, where nobody looks at a terminal: a line when there is something new."""

    def __init__(self, console: Console) -> None:
        """Nothing is told yet."""
        self._console, self._told, self._next = console, "", 0.0

    def tell(self, text: str) -> None:
        """Not more often than once in ``_TOLD_EVERY_S``."""
        now = time.monotonic()
        if text != self._told and now >= self._next:
            self._told, self._next = text, now + _TOLD_EVERY_S
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def run(server: HostProcess, console: Console) -> None:
    """Start, print where it is, pass its log on, and drain when SIGINT or SIGTERM comes.

    A second signal ends it at once.
    """
    for each in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a script's background job ignores it
        signal.signal(each, signal.default_int_handler)
    told_to_stop, supervisor = False, Supervisor()
    try:
        what = f"starting {server.name} and its workers"
        with console.status(what) as status:
            lines = Lines(console)
            server.told = (
                (lambda text: status.update(f"{what}: {text}"))
                if console.is_terminal
                else lines.tell
            )
            server.start()
        _print_addresses(server, console)
        supervisor.ready(f"{server.name} at {server.inference}")
        _follow(server, console, supervisor)
    except KeyboardInterrupt:
        told_to_stop = True
    finally:
        supervisor.stopping()
        _drain(server, console)
    if not told_to_stop:
        raise UserError(f"{server.name} ended by itself; its log is above")
    console.print("stopped")


def _print_addresses(server: HostProcess, console: Console) -> None:
    lines = {
        **server.addresses,
        "log": str(server.log),
        "watch it": server.status_command,
    }
    for name, value in lines.items():
        console.print(f"{name:>10}  {value}", highlight=False, soft_wrap=True, markup=False)
    console.print("Ctrl-C drains and stops")


def _follow(server: HostProcess, console: Console, supervisor: Supervisor) -> None:
    with server.log.open("rb") as log:
        while True:
            running = server.running
            text = log.read().decode(errors="replace").rstrip()
            if text:
                console.print(text, highlight=False, markup=False, soft_wrap=True)
            if not running:
                return
            supervisor.look(lambda: _answers(server))
            time.sleep(0.2)


def _answers(server: HostProcess) -> bool:
    try:
        server.host.status()
    except UserError:
        return False
    return True


def _drain(server: HostProcess, console: Console) -> None:
    try:
        with console.status("draining"):
            server.drain(_DRAIN_S)
    except KeyboardInterrupt:
        server.drain(0)
