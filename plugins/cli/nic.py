"""``shunter nic``: the network front end beside a running server."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shunter.allocator.memory.host import available_bytes
from shunter.batching.page.runtime import RuntimeFolder, RuntimeFolderError, only_live
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from shunter.nic_frontend.server.front_end import FrontEnd, Settings
    from shunter.plugins.control.settings import NicSettings

SETTLE_S = 1.5
"""Workers look for a front end twice a second."""
KEY_BYTES = 32
"""At least so many bytes of a key file."""


Runtime = Annotated[
    Path | None,
    typer.Option(
        help="Runtime folder of the server, and end with it; default: the only one, and when it "
        "ends the next one."
    ),
]
Config = Annotated[
    Path | None, typer.Option(help="Settings; default: $SHUNTER_CONFIG, else shunter.toml if any.")
]
Host = Annotated[str | None, typer.Option(help="Address, IPv4 or IPv6.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="UDP and TCP port.")]
Unix = Annotated[Path | None, typer.Option(help="Also serve at this Unix socket.")]
Tcp = Annotated[
    bool | None, typer.Option("--tcp/--no-tcp", help="Serve streams at the same port.")
]
KeyFile = Annotated[
    Path | None, typer.Option(help="File of a key: only clients that have it are served.")
]
KeysFile = Annotated[
    Path | None, typer.Option(help="File of keys with ids and rights; read again on SIGHUP.")
]
Strict = Annotated[
    str | None, typer.Option(help="Whose requests may be strict: all, keyed or none.")
]
Encrypt = Annotated[
    bool | None,
    typer.Option(
        "--encrypt/--no-encrypt", help="Serve encrypted sessions only (AES-128-GCM); needs a key."
    ),
]
Spin = Annotated[
    int | None,
    typer.Option(min=0, max=1_000_000, help="Where waits are shorter, wait without sleeping."),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=8, help="Threads that share the work; a model is one thread's."),
]
Queue = Annotated[
    int | None, typer.Option(min=1, max=65_536, help="Most memory of a model's tensors.")
]
Xdp = Annotated[
    str | None,
    typer.Option(
        help="Split UDP datagrams at this network interface (AF_XDP): headers into a ring buffer, "
        "payloads straight into shared memory. Needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF; "
        "without them it is said, and the UDP socket serves alone."
    ),
]
Verbs = Annotated[
    str | None,
    typer.Option(
        help="Also serve this RDMA device (mlx5_0, or with a port mlx5_0:2) by unreliable "
        "datagrams. Not run on hardware so far."
    ),
]


def nic(
    runtime: Runtime = None,
    config: Config = None,
    host: Host = None,
    port: Port = None,
    unix: Unix = None,
    tcp: Tcp = None,
    key_file: KeyFile = None,
    keys_file: KeysFile = None,
    strict: Strict = None,
    encrypt: Encrypt = None,
    spin_us: Spin = None,
    threads: Threads = None,
    queue_mb: Queue = None,
    xdp: Xdp = None,
    verbs: Verbs = None,
) -> None:
    """Serve tensors from the network: requests by UDP or TCP, straight into the batch.

    Models that declare their tensors (shunter: {tensors: ..., network: 1x1x8} in their
    model-config.yaml) are asked with shunter.nic_frontend.client. The server starts this command
    itself when shunter.toml says enabled = true in its table nic, which also has the defaults of
    the options.

    Examples:

      shunter nic

      shunter nic --host 0.0.0.0 --port 9000 --key-file /etc/shunter/nic.key

      shunter nic --host :: --key-file /etc/shunter/nic.key --encrypt

    A key file has at least 32 bytes, all of which count, and nobody else may read it:

      (umask 077; head -c 32 /dev/urandom > /etc/shunter/nic.key)

    With a key every header carries a keyed tag; clients that ask for it, or all with --encrypt,
    also have their tensors encrypted, which a core does at a few GB/s.
    """
    given: dict[str, Any] = {"host": host, "port": port, "tcp": tcp, "encrypt": encrypt}
    given |= {"unix": unix, "key_file": key_file, "spin_us": spin_us, "queue_mb": queue_mb}
    given |= {"keys_file": keys_file, "strict": strict, "threads": threads}
    given |= {"xdp": xdp, "verbs": verbs}
    settings = _settings(config, given)
    _build()
    _take_descriptors()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        folder = only_live(runtime)
    except RuntimeFolderError as error:
        raise UserError(str(error)) from error
    front_end = _front_end(_placed(settings, folder))
    for number in (signal.SIGINT, signal.SIGTERM):
        # Who is told twice does not finish.
        signal.signal(number, lambda *_: front_end.stop(finish=not front_end.is_stopping))
    signal.signal(signal.SIGHUP, lambda *_: front_end.read_keys())
    print(f"serving at {settings.host} port {front_end.port}", flush=True)
    _serve(front_end, folder, only_this=runtime is not None)


def _settings(config: Path | None, given: dict[str, Any]) -> NicSettings:
    """The table of the file with the options over it."""
    from shunter.plugins.control.settings import SettingsError, find, load, override

    over = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in given.items()
        if value is not None
    }
    try:
        found = override(load(find(config, os.environ, Path())).nic, "nic", over)
    except SettingsError as error:
        raise UserError(str(error)) from error
    if found.encrypt and not (found.key_file or found.keys_file):
        raise UserError("encrypt needs a key_file: only who has the key can decrypt")
    return found


def _build() -> None:
    from shunter.nic_frontend.build import BuildError, ensure
    from shunter.nic_frontend.library import LibraryError, check_processor, require

    try:
        check_processor()
        ensure()
    except LibraryError as error:
        raise UserError(str(error)) from error
    except BuildError as error:
        try:
            require()  # an older one, or one of the operator's, may do
        except LibraryError as missing:
            raise UserError(f"{missing}; to build it was tried: {error}") from error
        print(f"the C library is older than its sources, and: {error}", file=sys.stderr)


def _take_descriptors() -> None:
    """As many as there may be: every stream and every tensor has one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _placed(settings: NicSettings, folder: RuntimeFolder) -> Settings:
    from shunter.batching.queue.attach import (
        NAME,  # brings numpy, which other commands need not wait for
    )
    from shunter.nic_frontend.server.front_end import Settings

    return Settings(
        attach=folder.path / NAME,
        host=settings.host,
        port=settings.port,
        tcp=settings.tcp,
        unix=Path(settings.unix) if settings.unix else None,
        key=_key(Path(settings.key_file)) if settings.key_file else None,
        keys_file=Path(settings.keys_file) if settings.keys_file else None,
        strict=settings.strict,
        encrypt=settings.encrypt,
        threads=settings.threads,
        spin_us=settings.spin_us,
        queue_bytes=settings.queue_mb << 20,
        xdp=settings.xdp or "",
        verbs=settings.verbs or "",
        free_bytes=available_bytes,
        settle_s=SETTLE_S,
    )


def _front_end(settings: Settings) -> FrontEnd:
    from shunter.nic_frontend.library import LibraryError
    from shunter.nic_frontend.server.front_end import FrontEnd

    try:
        return FrontEnd(settings)
    except (ValueError, LibraryError) as error:
        raise UserError(str(error)) from error
    except OSError as error:
        where = error.filename or f"{settings.host} port {settings.port}"
        raise UserError(
            f"the network front end cannot serve at {where}: {error.strerror}; "
            "is another one running?"
        ) from error


def _serve(front_end: FrontEnd, folder: RuntimeFolder, *, only_this: bool) -> None:
    from shunter.nic_frontend.server.server_link import ServerLink

    link = ServerLink(front_end, folder, only_this=only_this)
    try:
        front_end.run(link.cycle)
    finally:
        link.close()
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
