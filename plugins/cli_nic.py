"""``shunter nic``: the network front end beside a running server."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from shunter.batching.attach import NAME
from shunter.batching.runtime import RuntimeFolderError, only_live
from shunter.plugins.errors import UserError

KEY_BYTES = 32
"""At least so many bytes of a key file."""


def nic(
    runtime: Annotated[
        Path | None, typer.Option(help="Runtime folder of the server; default: the only one.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to serve at, IPv4 or IPv6.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="UDP and TCP port.")] = 8083,
    unix: Annotated[Path | None, typer.Option(help="Also serve at this Unix socket.")] = None,
    tcp: Annotated[bool, typer.Option(help="Serve streams at the same port.")] = True,
    key_file: Annotated[
        Path | None, typer.Option(help="File of a key: only clients that have it are served.")
    ] = None,
    encrypt: Annotated[
        bool, typer.Option(help="Serve encrypted sessions only (AES-128-GCM); needs a key.")
    ] = False,
    spin_us: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Wait so long without sleeping.")
    ] = 0,
) -> None:
    """Serve tensors from the network: requests by UDP or TCP, straight into the batch.

    Models that declare their tensors (shunter: {tensors: ..., network: 1x1x8} in their
    model-config.yaml) are asked with shunter.nic_frontend.client. The server starts this command
    itself when shunter.toml says [nic] enabled = true.

    Examples:

      shunter nic

      shunter nic --host 0.0.0.0 --port 9000 --key-file /etc/shunter/nic.key

      shunter nic --host :: --key-file /etc/shunter/nic.key --encrypt

    A key file has at least 32 bytes, all of which count, and nobody else may read it:

      (umask 077; head -c 32 /dev/urandom > /etc/shunter/nic.key)

    With a key every header carries a keyed tag; clients that ask for it, or all with --encrypt,
    also have their tensors encrypted, which a core does at a few GB/s.
    """
    from shunter.nic_frontend.build import BuildError, ensure
    from shunter.nic_frontend.front_end import FrontEnd, Settings

    try:
        ensure()
    except BuildError as error:
        print(f"The data path runs in Python, slower: {error}", file=sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        folder = runtime or only_live(os.environ).path
    except RuntimeFolderError as error:
        raise UserError(str(error)) from error
    if encrypt and not key_file:
        raise UserError("--encrypt needs --key-file: only who has the key can decrypt")
    settings = Settings(
        attach=folder / NAME,
        host=host,
        port=port,
        tcp=tcp,
        unix=unix,
        key=_key(key_file) if key_file else None,
        encrypt=encrypt,
        spin_us=spin_us,
    )
    try:
        front_end = FrontEnd(settings)
    except ValueError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        where = f"{host} port {port}"
        raise UserError(f"the front end cannot serve at {where}: {error.strerror}") from error
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: front_end.stop())
    print(f"serving at {host} port {front_end.port}", flush=True)
    try:
        front_end.run()
    finally:
        front_end.close()


def _key(path: Path) -> bytes:
    try:
        if path.stat().st_mode & 0o077:
            raise UserError(f"{path}: others can read the key; chmod 600 it")
        key = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if len(key) < KEY_BYTES:
        raise UserError(f"{path} has {len(key)} bytes; a key has at least {KEY_BYTES}")
    return key
