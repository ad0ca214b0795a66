"""Which model servers there are: the one place where a server is chosen by its name.

Everything else of the plugins knows :mod:`shunter.plugins.host` alone. What a server needs is
imported when it is asked for.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shunter.plugins.errors import UserError
from shunter.plugins.host import Host, HostProcess, WorkerRuntime

if TYPE_CHECKING:
    from shunter.plugins.triton.packed import PackedWorkers

TORCHSERVE = "torchserve"
TRITON = "triton"
NAMES = (TORCHSERVE, TRITON)
MANAGEMENT = "http://127.0.0.1:8081"
"""Of a TorchServe that says no other."""


def host_of(address: str, token: str | None = None, *, name: str = TORCHSERVE) -> Host:
    """The running server whose management API is at ``address``."""
    _check(name, TORCHSERVE)
    from shunter.plugins.torchserve.host import TorchServeHost

    return TorchServeHost(address, token)


def running(
    management: str | None = None, runtime: Path | None = None, token: str | None = None
) -> Host:
    """The running server that is meant: that of a management API, or of a runtime folder; else the
    only one of this machine. Raises UserError."""
    from shunter.batching.page.runtime import RuntimeFolderError, live, only_live
    from shunter.plugins.management import NAME as SOCKET
    from shunter.plugins.management import RemoteHost

    if management is not None and runtime is not None:
        raise UserError("--management and --runtime name a server each: leave one out")
    if management is not None:
        return host_of(management, token)
    try:
        folders = live(os.environ) if runtime is None else [only_live(runtime)]
    except RuntimeFolderError as error:
        raise UserError(str(error)) from error
    asked = [each.path for each in folders if (each.path / SOCKET).exists()]
    if len(asked) == len(folders) == 1:
        return RemoteHost(asked[0], "Triton")
    if runtime is not None:
        raise UserError(f"{runtime} is of a TorchServe: name its management API by --management")
    if asked:
        named = ", ".join(str(each.path) for each in folders)
        raise UserError(
            f"several servers are running, {named}: name a Triton with --runtime, a "
            "TorchServe with --management"
        )
    return host_of(MANAGEMENT, token)


def ended_requests(
    management: str | None,
    token: str | None,
    request: str | None,
    *,
    model: str | None = None,
    bad: bool = False,
    count: int = 1,
) -> list[dict[str, Any]]:
    """What a TorchServe remembers of requests that have ended. Raises UserError."""
    from shunter.plugins.torchserve.host import TorchServeHost

    host = running(management, None, token)
    if not isinstance(host, TorchServeHost):
        raise UserError(f"{host.name} does not remember single requests; TorchServe does")
    return host.requests(request, model=model, bad=bad, count=count)


def status_of(backend: Path) -> dict[str, Any]:
    """What a Triton serves whose backend listens at that path. Raises UserError."""
    from shunter.plugins.triton.backend import status_of as triton_status

    return triton_status(backend)


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
    if name == TRITON:
        from shunter.plugins.triton.serving.process import TritonProcess

        return TritonProcess(
            store=store,
            models=models,
            settings=settings or {},
            variables=variables or {},
            folder=folder,
            ports=ports,
            runtime=runtime_of(),
        )
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


def reachable(
    name: str, address: str, ports: tuple[int, int] | None
) -> dict[str, str]:
    """Settings with which a server's inference is heard on an address that other machines reach.

    It stays on this machine for a loopback address; management always does.
    """
    _check(name)
    if ipaddress.ip_address(address).is_loopback or ports is None:
        return {}
    # Its own host asks it on loopback, too.
    if name == TRITON:
        return {"http-address": "0.0.0.0"}
    return {"inference_address": f"http://0.0.0.0:{ports[0]}"}


def pack_repository(
    store: Path, models: Sequence[str], folder: Path, beside: Callable[[Path], Path]
) -> None:
    """Write a model repository for a Triton that the user starts. Raises UserError.

    ``beside``: where the profile of an archive lies, which goes along.
    """
    from shunter.plugins.triton import packed

    packed.write(store, models, folder, runtime_of(), beside)


def check_model_config(config: Mapping[str, Any]) -> None:
    """Whether a server would take a model's configuration. Raises UserError."""
    from shunter.plugins.triton import archive_section

    archive_section.check(config)


def packed_workers(folder: Path, socket: Path | None = None) -> PackedWorkers:
    """The workers of such a repository, which are not started yet. Raises UserError."""
    from shunter.plugins.triton.packed import PackedWorkers

    return PackedWorkers(folder, socket, runtime_of())


def adoption() -> ModuleType:
    """What can be done for models of other backends of Triton."""
    from shunter.plugins.triton.existing import adoption as found

    return found


def runtime_of(name: str = TORCHSERVE) -> WorkerRuntime:
    """The workers of a server, without it. Those of Triton are the same as TorchServe's."""
    _check(name)
    from shunter.plugins.torchserve.runtime import TorchServeRuntime

    return TorchServeRuntime()


def plugins_folder(
    output: Path | None = None, *, force: bool = False, name: str = TORCHSERVE
) -> Path:
    """What a server loads of Shunter; it is built when missing or stale, or by ``force``."""
    _check(name)
    if name == TRITON:
        from shunter.plugins.triton import build

        library = output / build.LIBRARY if output else build.HERE / build.LIBRARY
        return (build.build(library) if force or output else build.ensure()).parents[1]
    from shunter.plugins.torchserve import process

    return process.plugins_folder(output, force=force)


def compiled() -> dict[str, bool | None]:
    """Everything that is compiled, by name: whether it is as its sources; None: it is not there."""
    from shunter.nic_frontend import build as native
    from shunter.plugins.torchserve import build as jar
    from shunter.plugins.triton import build as backend

    try:
        is_for_it = jar.is_fresh()
    except jar.JarError:  # there is no TorchServe that it could be for
        is_for_it = False
    found = {
        "TorchServe's jar": (jar.HERE / jar.PLUGINS / jar.JAR, is_for_it),
        "the network front end": (native.HERE / native.LIBRARY, native.is_fresh()),
        "the program of pools": (native.SEAT, native.seat_is_fresh()),
        "Triton's backend": (backend.HERE / backend.LIBRARY, backend.is_fresh()),
    }
    return {name: fresh if path.exists() else None for name, (path, fresh) in found.items()}


def triton_program() -> str | None:
    """The Triton that would be started; None: there is none."""
    from shunter.plugins.triton import installation

    try:
        return str(installation.find().program)
    except UserError:
        return None


def first_properties(store: Path) -> dict[str, str]:
    """Settings of the server itself to begin with: files by their names. Raises UserError."""
    from shunter.plugins.torchserve.first_properties import text

    return {"config.properties": text(store, plugins_folder())}


def _check(name: str, *allowed: str) -> None:
    if name not in (allowed or NAMES):
        raise UserError(f"no server is called {name!r}; allowed: {', '.join(allowed or NAMES)}")
