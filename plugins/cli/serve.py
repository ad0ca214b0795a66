"""``shunter serve``: one TorchServe with the plugin, in the foreground until it is told to stop."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from shunter.plugins.errors import UserError
from shunter.plugins.torchserve import build
from shunter.plugins.torchserve.server import Ports, Server, ServerFailed

_DRAIN_S = 60


def ports_from(inference: int, grpc: int) -> Ports:
    """TorchServe's usual neighbours: management and metrics follow ``inference``."""
    ports = Ports(inference, inference + 1, inference + 2, grpc, grpc + 1, 9000)
    for port in (inference, inference + 1, inference + 2, grpc, grpc + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except (OSError, OverflowError) as error:
                raise UserError(
                    f"port {port} cannot be used ({error}): choose others with --port and --grpc"
                ) from error
    return ports


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` options as lines of config.properties."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--config {pair!r}: write KEY=VALUE, for example job_queue_size=500")
        settings[key.strip()] = value.strip()
    return settings


def archives(store: Path, models: Sequence[str]) -> list[str]:
    """The archives to load; every ``.mar`` of the store when none is named."""
    if not store.is_dir():
        raise UserError(f"--store {store} is not a folder")
    if not models:
        models = [f"{path.stem}={path.name}" for path in sorted(store.glob("*.mar"))]
    if not models:
        raise UserError(f"{store} holds no .mar file: make one with `shunter pack`")
    for model in models:
        file = model.split("=", 1)[-1]
        if "://" not in file and not (store / file).exists():
            raise UserError(f"{store} holds no {file}")
    return list(models)


def run(server: Server, console: Console) -> None:
    """Start, print where it is, pass its log on, and drain when SIGINT or SIGTERM comes.

    A second signal ends it at once.
    """
    for each in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a script's background job ignores it
        signal.signal(each, signal.default_int_handler)
    told_to_stop = False
    try:
        with console.status("starting TorchServe and its workers"):
            _start(server)
        _print_addresses(server, console)
        _follow(server, console)
    except KeyboardInterrupt:
        told_to_stop = True
    finally:
        _drain(server, console)
    if not told_to_stop:
        raise UserError("TorchServe ended by itself; its log is above")
    console.print("stopped")


def plugins_folder() -> Path:
    """The folder for ``--plugins-path``; the jar is built when missing or stale."""
    try:
        return build.ensure()
    except build.JarError as error:
        raise UserError(str(error)) from error


def _start(server: Server) -> None:
    try:
        server.start()
    except ServerFailed as error:
        raise UserError(str(error)) from error


def _print_addresses(server: Server, console: Console) -> None:
    key = server.keys.get("management", {}).get("key")
    option = f" --token {key}" if key else ""
    lines = {
        "inference": f"{server.inference}/predictions/...",
        "management": server.management,
        "metrics": f"{server.metrics}/metrics",
        "gRPC": f"127.0.0.1:{server.grpc_inference} (inference), {server.grpc_management}",
        "keys": str(server.folder / "key_file.json") if key else "off",
        "log": str(server.log),
        "watch it": f"shunter status --management {server.management}{option}",
    }
    for name, value in lines.items():
        console.print(f"{name:>10}  {value}", highlight=False, soft_wrap=True, markup=False)
    console.print("Ctrl-C drains and stops")


def _follow(server: Server, console: Console) -> None:
    with server.log.open("rb") as log:
        while True:
            running = server.running
            text = log.read().decode(errors="replace").rstrip()
            if text:
                console.print(text, highlight=False, markup=False, soft_wrap=True)
            if not running:
                return
            time.sleep(0.2)


def _drain(server: Server, console: Console) -> None:
    try:
        with console.status("draining"):
            server.stop(timeout_s=_DRAIN_S)
    except KeyboardInterrupt:
        server.stop(timeout_s=0)
