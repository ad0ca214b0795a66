"""``shunter load``, ``unload`` and ``configure``: models of a running server, whichever it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from shunter.plugins.host import HostedModel

NONE = "none"
_THIS_HOST = ("127.0.0.1", "::1", "localhost")
Address = Annotated[
    str | None,
    typer.Option(
        "--management",
        help="Management API of a TorchServe. Default: the only server of this machine, if that is "
        "a Triton of `shunter serve`; else http://127.0.0.1:8081.",
    ),
]
Runtime = Annotated[
    Path | None,
    typer.Option("--runtime", help="Runtime folder of a Triton of `shunter serve`; no key needed."),
]
Token = Annotated[
    str | None,
    typer.Option(envvar="SHUNTER_TOKEN", help="Management key, where tokens are on."),
]
Model = Annotated[str, typer.Argument(help="NAME, or NAME/VERSION; without it the default one.")]


def load(
    archive: Annotated[
        str, typer.Argument(help="A file of the server's model store; TorchServe: or a URL.")
    ],
    name: Annotated[str | None, typer.Option(help="Default: the archive's.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Workers at first.")] = 1,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Largest batch; default: the archive's.")
    ] = None,
    management: Address = None,
    runtime: Runtime = None,
    token: Token = None,
) -> None:
    """Let a running server take a model in, and wait until it serves.

    Example:

      shunter load resnet50.mar --workers 2
    """
    from shunter.plugins import hosts

    host = hosts.running(management, runtime, token)
    try:
        found = host.load(archive, name, workers=workers, batch=batch)
    except UserError:
        if management is None or urlsplit(management).hostname in _THIS_HOST:
            _explain(archive)
        raise
    _tell(found)


def unload(
    model: Model, management: Address = None, runtime: Runtime = None, token: Token = None
) -> None:
    """Let a running server forget a model version and end its workers.

    Example:

      shunter unload resnet50/1.0
    """
    from shunter.plugins import hosts

    hosts.running(management, runtime, token).unload(model)
    print(f"{model} is unloaded")


def configure(
    model: Model,
    configuration: Annotated[
        str,
        typer.Argument(
            help="INSTANCESxTHREADSxBATCH, several with commas; none: no workers, it stays known."
        ),
    ],
    cores: Annotated[
        str, typer.Option(help="auto: cores of its own for each worker; or a Linux CPU list.")
    ] = "auto",
    management: Address = None,
    runtime: Runtime = None,
    token: Token = None,
) -> None:
    """Let a model run in another configuration, and wait until it does. No request is lost.

    If a new worker does not load, the workers of now stay, and the reason is printed.

    Examples:

      shunter configure resnet50 2x4x16

      shunter configure resnet50/1.0 none
    """
    from shunter.allocator.planning.configuration import ConfigurationError, parse_configuration
    from shunter.plugins import hosts

    host = hosts.running(management, runtime, token)
    if configuration == NONE:
        _tell(host.retire(model))
        return
    try:
        wanted = parse_configuration(configuration)
    except ConfigurationError as error:
        raise UserError(f"{error}; or none, for no workers") from error
    _tell(host.start_generation(model, wanted, cores=cores))


def _explain(archive: str) -> None:
    """Raises UserError where a file of this host that was refused is no archive at all."""
    from shunter.plugins.cli.files import check_archive
    from shunter.plugins.view import page_status

    for folder in (Path(), *page_status.stores()):
        check_archive(folder / archive)


def _tell(model: HostedModel) -> None:
    ready = f"{model.ready} worker{'' if model.ready == 1 else 's'} ready"
    runs = f"runs {model.configuration}, " if model.configuration else ""
    print(f"{model.name}/{model.version} {runs}{ready}")
