"""A host, asked by other programs of this user on this machine: a socket in its runtime folder.

One line of JSON asks, one answers. The folder is this user's alone, so that no key is needed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shunter.allocator.planning.configuration import (
    Configuration,
    format_configuration,
    parse_configuration,
)
from shunter.plugins.errors import UserError
from shunter.plugins.host import Host, HostedModel, HostError

LOGGER = logging.getLogger("shunter.management")
NAME = "management.sock"
"""In the runtime folder of a server whose host listens."""
METHODS = ("models", "load", "unload", "start_generation", "retire", "status", "events")
STATUS_S = 20.0
"""A host that says nothing for so long hangs. Loading a model may take minutes."""
STARTING = "the server is being started: try again when it serves"


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    """Who loads a model may take minutes; the host ends that itself."""
    asked: ManagementSocket


class _Answering(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        if line := self.rfile.readline():
            self.wfile.write(self.server.asked.answer(line) + b"\n")


class ManagementSocket:
    """Lets others ask a host, until it is closed."""

    def __init__(self, folder: Path, host: Host) -> None:
        """``folder``: the server's runtime folder. Raises HostError."""
        self._host, self._path = host, folder / NAME
        self.is_open = False
        """Until it is, whoever asks is told that the server is being started."""
        try:
            self._server = _Server(str(self._path), _Answering)
        except OSError as error:
            raise HostError(f"{self._path}: {error}; SHUNTER_RUNTIME_DIR names another") from error
        self._server.asked = self
        self._path.chmod(0o600)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="management", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Nobody asks any more; what was asked goes on as long as the host lets it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def answer(self, line: bytes) -> bytes:
        """What is said to a line."""
        try:
            said = {"found": self._do(json.loads(line))}
        except UserError as error:
            said = {"refused": str(error)}
        except Exception as error:  # of what others say nothing ends the host
            LOGGER.exception("a question that was asked failed")
            said = {"refused": f"it failed: {error!r}; the server's log says more"}
        return json.dumps(said).encode()

    def _do(self, asked: Any) -> Any:
        if not self.is_open:
            raise HostError(STARTING)
        what, given = asked["ask"], asked["with"]
        if what not in METHODS:
            raise HostError(f"this server's Shunter knows no {what!r}: is it of another version?")
        if "configuration" in given:
            given["configuration"] = parse_configuration(given["configuration"])
        found = getattr(self._host, what)(**given)
        if isinstance(found, HostedModel):
            return asdict(found)
        return [asdict(each) for each in found] if what == "models" else found


class RemoteHost:
    """The :class:`shunter.plugins.host.Host` of a server that another process has started."""

    def __init__(self, folder: Path, name: str) -> None:
        """``folder``: its runtime folder; ``name``: of the server's kind."""
        self._path, self.name = folder / NAME, name

    def models(self) -> list[HostedModel]:
        """See the protocol."""
        return [HostedModel(**each) for each in self._ask("models")]

    def load(
        self, archive: str, name: str | None = None, *, workers: int = 1, batch: int | None = None
    ) -> HostedModel:
        """See the protocol."""
        given = {"archive": archive, "name": name, "workers": workers, "batch": batch}
        return HostedModel(**self._ask("load", **given))

    def unload(self, model: str) -> None:
        """See the protocol."""
        self._ask("unload", model=model)

    def start_generation(
        self, model: str, configuration: Configuration, *, cores: str = "auto"
    ) -> HostedModel:
        """See the protocol."""
        text = format_configuration(configuration)
        given = {"model": model, "configuration": text, "cores": cores}
        return HostedModel(**self._ask("start_generation", **given))

    def retire(self, model: str) -> HostedModel:
        """See the protocol."""
        return HostedModel(**self._ask("retire", model=model))

    def status(self) -> dict[str, Any]:
        """See the protocol."""
        found: dict[str, Any] = self._ask("status", wait_s=STATUS_S)
        return found

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """See the protocol."""
        found: list[dict[str, Any]] = self._ask("events", after=after)
        return found

    def _ask(self, what: str, *, wait_s: float | None = None, **given: Any) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(wait_s)
            try:
                connection.connect(os.fspath(self._path))
                connection.sendall(json.dumps({"ask": what, "with": given}).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    line = answers.readline()
                said = json.loads(line)
            except (OSError, ValueError) as error:
                raise HostError(
                    f"the host of {self.name} at {self._path.parent} does not answer, or has "
                    f"ended: {error}"
                ) from error
        if "refused" in said:
            raise HostError(said["refused"])
        return said["found"]
