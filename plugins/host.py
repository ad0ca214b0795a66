"""The interface of a model server that Shunter drives: a *host*.

Nothing here is of one server. What the command line, the profiler and the views need of a server is
said by four protocols; each server implements them in its own folder, and ``plugins/hosts`` is
the one place that knows which servers there are. The same tests run over every implementation
(``tests/plugins/test_hosts.py``).

- :class:`Host`: a running server, asked from outside.
- :class:`HostProcess`: a server that this process starts and ends.
- :class:`WorkerRuntime`: its workers without a server, for measuring.
- :class:`ModelWorker`: one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from shunter.allocator.planning.configuration import Configuration
from shunter.handlers.sample import Sample
from shunter.plugins.errors import UserError

TAIL = 12
"""Lines of a worker that a message shows."""


class HostError(UserError):
    """What a host could not do and what helps, in one sentence. Nothing has changed then."""


class WorkerFailed(Exception):
    """The worker ended, answered an error or did not answer; the message says which and why."""

    def __init__(self, why: str, lines: Sequence[str] = ()) -> None:
        """``why``: in a line; ``lines``: the last ones that it printed."""
        tail = "\n  ".join(lines[-TAIL:])
        super().__init__(why + (f"; its last lines:\n  {tail}" if tail else ""))
        self.why, self.lines = why, lines


@dataclass(frozen=True)
class HostedModel:
    """One version of a model, as its host has it now."""

    name: str
    version: str
    configuration: str
    """Worker groups that serve, as ``1x2x8,...``; empty where Shunter does not manage them."""
    ready: int
    """Workers that have loaded it. 0: nobody answers its requests."""
    managed: bool = True
    """Whether Shunter forms its batches and can change its configuration."""
    problem: str = ""
    """Why a worker was lost or did not load; may be empty."""


class Host(Protocol):
    """A running server. Models are named ``NAME`` (the default version) or ``NAME/VERSION``.

    Every method raises HostError: the server does not answer, wants a key, or refuses. Requests of
    clients are never lost by any of them, but for those of a model that is unloaded or retired.
    """

    name: str
    """Of the server's kind, as users write it."""

    def models(self) -> Sequence[HostedModel]:
        """Every version of every model, by name and version."""
        ...

    def load(
        self, archive: str, name: str | None = None, *, workers: int = 1, batch: int | None = None
    ) -> HostedModel:
        """Take a model in and start workers; come back when they have loaded it.

        ``archive``: what the server finds in its model store, or a URL that it may fetch. ``batch``
        is the largest batch; without it what the archive says. A model that does not load leaves
        nothing behind.
        """
        ...

    def unload(self, model: str) -> None:
        """Forget a model version and end its workers."""
        ...

    def start_generation(
        self, model: str, configuration: Configuration, *, cores: str = "auto"
    ) -> HostedModel:
        """Start workers in ``configuration`` beside those of now; come back when they serve.

        The ones of now then finish what they hold and end. If a new one does not load, all stays as
        it was. ``cores``: ``auto`` gives each worker cores of its own; else a Linux CPU list.
        """
        ...

    def retire(self, model: str) -> HostedModel:
        """End the workers of a model version when they have answered what they hold.

        The model stays known; :meth:`start_generation` lets it serve again.
        """
        ...

    def status(self) -> dict[str, Any]:
        """What ``shunter status --json`` prints: the server, its models, their workers."""
        ...

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """What happened lately, and why: those after one of that number, the oldest first.

        Of each ``number``, ``unix_ms``, ``level``, ``about`` and ``text``.
        """
        ...


class GrpcClient(Protocol):
    """Inference by gRPC."""

    def predict(self, model: str, inputs: Mapping[str, bytes]) -> bytes:
        """The answer to one request. Raises grpc.RpcError."""
        ...


class HostProcess(Protocol):
    """A server that this process starts. It ends with this process at the latest."""

    name: str
    """As :attr:`Host.name`."""
    told: Callable[[str], None]
    """How far its start is; for whoever shows it to a user to replace."""

    @property
    def log(self) -> Path:
        """What the server prints."""
        ...

    @property
    def inference(self) -> str:
        """Base URL of inference by HTTP, once started."""
        ...

    @property
    def pid(self) -> int:
        """Of the server's own process, once started."""
        ...

    @property
    def host(self) -> Host:
        """The started server."""
        ...

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        ...

    @property
    def addresses(self) -> Mapping[str, str]:
        """What to tell a user of the started server: where each of its APIs is."""
        ...

    @property
    def status_command(self) -> str:
        """The command that shows the started server's status."""
        ...

    def grpc_client(self) -> AbstractContextManager[GrpcClient]:
        """A client of the started server's own gRPC API."""
        ...

    def start(self, timeout_s: float = 120) -> None:
        """Come back when every model's workers have loaded.

        Raises HostError when they have not; the server has ended then.
        """
        ...

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, answer those that are held, end; whether that was done in time.

        What is left after ``timeout_s`` is killed. Again, or for a server that is not running:
        nothing happens.
        """
        ...


class UnpackedModel(Protocol):
    """A model archive whose files are in a folder."""

    @property
    def name(self) -> str:
        """The model's."""
        ...

    def sample(self) -> Sample | None:
        """The archive's own example of a request. Raises UserError when it cannot be read."""
        ...


class ModelWorker(Protocol):
    """A worker process with one model, of the very kind that serves."""

    threads: int

    def start(self) -> Self:
        """Start the process and load the model. Raises WorkerFailed, and has ended then."""
        ...

    def run(self, samples: Sequence[Sample]) -> float:
        """Run one batch; seconds from sending it to the whole answer. Raises WorkerFailed."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Highest resident memory so far, without mapped files."""
        ...

    @property
    def pid(self) -> int:
        """Of the process."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether it cannot run another batch."""
        ...

    def failure(self) -> WorkerFailed:
        """Of one that is dead and not closed: how it ended, and its last lines."""
        ...

    def kill(self) -> None:
        """End the process now, also while another thread waits for it, which then fails."""
        ...

    def close(self) -> None:
        """End the process and what it started; nothing of it is left."""
        ...


class WorkerRuntime(Protocol):
    """How a server's workers run, without the server."""

    def unpack(self, archive: Path, folder: Path) -> UnpackedModel:
        """Unpack an archive into ``folder``. Raises UserError when that cannot be done."""
        ...

    def worker(
        self,
        model: Any,
        *,
        threads: int,
        cores: Sequence[int] | None = None,
        batch: int = 1,
        variables: Mapping[str, str] | None = None,
        load_s: float | None = None,
    ) -> ModelWorker:
        """A worker that is not started yet, for a model that :meth:`unpack` gave.

        It will run on ``cores`` (None: anywhere) with ``threads`` threads; ``batch`` is the largest
        batch it is told to expect; ``variables`` are added to its environment; ``load_s``: it may
        take so long to load, None: as long as is usual.
        """
        ...
