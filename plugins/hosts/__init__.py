"""Which model servers there are: the one place where a server is chosen by its name.

Everything else of the plugins knows :mod:`shunter.plugins.host` alone. What a server needs is
imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shunter.plugins.errors import UserError
from shunter.plugins.host import Host, HostProcess, WorkerRuntime

TORCHSERVE = "torchserve"
NAMES = (TORCHSERVE,)


def host_of(address: str, token: str | None = None, *, name: str = TORCHSERVE) -> Host:
    """The running server whose management API is at ``address``."""
    _check(name)
    from shunter.plugins.torchserve.host import TorchServeHost

    return TorchServeHost(address, token)


def process_of(
    store: Path,
    models: Sequence[str],
    *,
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    tokens: bool = False,
    folder: Path | None = None,
    ports: tuple[int, int] | None = None,
    quiet: bool = True,
    name: str = TORCHSERVE,
) -> HostProcess:
    """A server with Shunter that is not started yet.

    ``models``: ``NAME=FILE`` of ``store``; ``settings``: of the server itself; ``variables``: of
    its environment; ``folder`` keeps its configuration and log; ``ports``: inference by HTTP and by
    gRPC, free ones if None.
    """
    _check(name)
    from shunter.plugins.torchserve.process import TorchServeProcess

    return TorchServeProcess(
        store=store,
        models=models,
        settings=settings or {},
        variables=variables or {},
        tokens=tokens,
        folder=folder,
        ports=ports,
        quiet=quiet,
    )


def runtime_of(name: str = TORCHSERVE) -> WorkerRuntime:
    """The workers of a server, without it."""
    _check(name)
    from shunter.plugins.torchserve.runtime import TorchServeRuntime

    return TorchServeRuntime()


def plugins_folder(
    output: Path | None = None, *, force: bool = False, name: str = TORCHSERVE
) -> Path:
    """What a server loads of Shunter; it is built when missing or stale, or by ``force``."""
    _check(name)
    from shunter.plugins.torchserve import process

    return process.plugins_folder(output, force=force)


def _check(name: str) -> None:
    if name not in NAMES:
        raise UserError(f"no server is called {name!r}; allowed: {', '.join(NAMES)}")
