"""Start and stop one isolated TorchServe: for the command line, tests and benchmarks.

``Server`` gives every server its own ports and folders, waits until each worker has loaded, and
leaves no process behind.

    with Server(model_store=store, models=["digits=digits.mar"]) as server:
        urllib.request.urlopen(server.inference + "/ping")
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from shunter.plugins.host import HostError
from shunter.plugins.torchserve import isolation, rest
from shunter.plugins.torchserve.isolation import Ports, free_ports
from shunter.plugins.torchserve.process_tree import ProcessTree, is_worker, listens_at

__all__ = ["Ports", "Server", "ServerFailed", "free_ports"]

LOGGER = logging.getLogger("shunter.torchserve")
_CLASHES = ("Address already in use", "BindException", "Failed to bind")


class ServerFailed(HostError):
    """TorchServe did not start; the message ends with the tail of its log."""


class Server:
    """One TorchServe on loopback, stock or with plugins. A context manager; may start again.

    ``folder`` keeps the working directory, configuration and logs after the end; without it they
    are temporary. ``env`` and ``config`` win over what isolation sets, ``args`` stand last on the
    command line. ``keys`` holds key_file.json as it is: ``keys["management"]["key"]``.
    """

    folder: Path
    log: Path
    """What TorchServe printed: standard output and error."""
    ports: Ports
    pid: int
    """Process id of the JVM."""

    def __init__(
        self,
        *,
        model_store: Path,
        models: Sequence[str] = (),
        folder: Path | None = None,
        plugins: Path | None = None,
        config: Mapping[str, str] | None = None,
        quiet: bool = True,
        tokens: bool = False,
        snapshots: bool = False,
        model_api: bool = True,
        env: Mapping[str, str] | None = None,
        ports: Ports | None = None,
        args: Sequence[str] = (),
        runtime: Path | None = None,
        needs_all: bool = True,
    ) -> None:
        """``runtime``: where its runtime folder is made, None: out of sight of other programs;
        ``needs_all``: it has not started where a model did not load."""
        self._given_runtime, self._needs_all = runtime, needs_all
        self._model_store = Path(model_store).resolve()
        self._models = list(models)
        self._given_folder = folder
        self._plugins, self._config = plugins, dict(config or {})
        self._quiet, self._tokens = quiet, tokens
        self._snapshots = snapshots
        self._model_api = model_api
        self._env = dict(env or {})
        self._given_ports = ports
        self._args = list(args)
        self._tree: ProcessTree | None = None
        self._held = contextlib.ExitStack()
        """Folders that go with it, and the lock of the one that stays."""
        self._passed: tuple[int, ...] = ()  # that lock: the launcher has it, too
        self._status = 0
        self.told: Callable[[str], None] = lambda text: None
        """How far a start is."""

    @property
    def inference(self) -> str:
        """Base URL of the inference API."""
        return f"http://127.0.0.1:{self.ports.inference}"

    @property
    def management(self) -> str:
        """Base URL of the management API."""
        return f"http://127.0.0.1:{self.ports.management}"

    @property
    def metrics(self) -> str:
        """Base URL of the metrics API."""
        return f"http://127.0.0.1:{self.ports.metrics}"

    @property
    def grpc_inference(self) -> int:
        """Port of the gRPC inference API."""
        return self.ports.grpc_inference

    @property
    def grpc_management(self) -> int:
        """Port of the gRPC management API."""
        return self.ports.grpc_management

    @property
    def keys(self) -> dict[str, Any]:
        """Content of key_file.json, empty when tokens are off."""
        if not self._tokens:
            return {}
        return json.loads((self.folder / "key_file.json").read_text(encoding="utf-8"))

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._tree is not None and self._tree.running

    def worker_pids(self) -> list[int]:
        """Process ids of the model workers alive now."""
        below = [] if self._tree is None else self._tree.below()
        return [process.pid for process in below if is_worker(process)]

    def start(self, timeout_s: float = 120) -> None:
        """Start, then wait until /ping is healthy and every loaded model's workers are ready.

        Where models may fail ``timeout_s`` is for /ping only: how long they load is their matter.
        """
        if self._tree is not None:
            raise ServerFailed("this server is already running")
        deadline = time.monotonic() + timeout_s
        try:
            try:
                self._start(timeout_s, deadline)
            except ServerFailed:
                if self._tree is None or self._given_ports is not None or not self._clashed():
                    raise
                self.stop(timeout_s=5)
                self._start(timeout_s, deadline)
        except BaseException:
            self.stop(timeout_s=5)
            raise

    def _start(self, timeout_s: float, deadline: float) -> None:
        self._launch()
        self._check_started(timeout_s, self._wait_ready(deadline))
        self.pid = self._jvm()[0].pid

    def stop(self, timeout_s: float = 30) -> int:
        """SIGTERM the JVM, wait, kill what is left. 0: it ended by itself in time, else 1."""
        if self._tree is not None:
            self._status = 0 if self._tree.end(self._jvm(), timeout_s) else 1
            self._tree = None
        self._held.close()
        atexit.unregister(self.stop)
        return self._status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> None:
        self.ports = self._given_ports or free_ports()
        self._make_folders()
        runtime = self._given_runtime or isolation.shared_memory_folder()
        if not self._given_runtime:
            self._goes(runtime)
        environment = isolation.environment(
            temporary=self._temporary, runtime=runtime, logs=self.folder / "logs", extra=self._env
        )
        command = self._command()
        atexit.register(self.stop)
        with self.log.open("ab") as log:  # at its end, wherever that is: others may cut it
            launcher = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self._passed,
                start_new_session=True,
            )
        self._tree = ProcessTree(launcher)

    def _make_folders(self) -> None:
        self._temporary = isolation.short_folder()
        self._goes(self._temporary)
        if self._given_folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="shunter-server-"))
            self._goes(self.folder)
        else:
            self.folder = Path(self._given_folder).resolve()
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._passed = (isolation.lock(self.folder),)
                self._held.callback(os.close, *self._passed)
            except isolation.FolderTaken as error:
                raise ServerFailed(f"{error}: name another --folder") from None
        self.log = self.folder / "server.log"
        if self.log.exists():  # it says how the last one ended
            self.log.replace(self.folder / "server.log.1")

    def _goes(self, folder: Path) -> None:
        self._held.callback(shutil.rmtree, folder, ignore_errors=True)

    def _command(self) -> list[str]:
        torchserve = isolation.torchserve_command()
        if torchserve is None:
            raise ServerFailed("torchserve is not installed: pip install 'torchserve>=0.12,<0.13'")
        config = self.folder / "config.properties"
        text = isolation.properties(
            self.ports, tokens=self._tokens, model_api=self._model_api, extra=self._config
        )
        config.write_text(text, encoding="utf-8")
        command = [torchserve, "--start", "--foreground", "--ts-config", str(config)]
        command += ["--model-store", str(self._model_store)]
        if not self._snapshots:
            command.append("--ncs")
        if self._quiet:
            log_config = self.folder / "log4j2.xml"
            log_config.write_text(isolation.QUIET_LOG, encoding="utf-8")
            command += ["--log-config", str(log_config)]
        if self._plugins is not None:
            command += ["--plugins-path", str(Path(self._plugins).resolve())]
        if self._models:
            command += ["--models", *self._models]
        return command + self._args

    def _wait_ready(self, deadline: float) -> bool:
        readiness: rest.Readiness | None = None
        while self.running and (time.monotonic() < deadline or (readiness and not self._needs_all)):
            with contextlib.suppress(OSError, ValueError, KeyError):
                if readiness is None and rest.healthy(self.inference, self._key("inference")):
                    key = self._key("management")
                    readiness = rest.Readiness(self.management, key, needs_all=self._needs_all)
                if readiness is not None:
                    if readiness.look() and self._listens():
                        return True
                    self.told(readiness.text)
            time.sleep(0.1)
        return False

    def _listens(self) -> bool:
        """At the port that it opens last: it serves HTTP before it finds one taken, and ends."""
        port = int(self._config.get("grpc_management_port", self.ports.grpc_management))
        return any(listens_at(process, port) for process in self._jvm())

    def _key(self, api: str) -> str | None:
        return self.keys[api]["key"] if self._tokens else None

    def _clashed(self) -> bool:
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return any(sign in text for sign in _CLASHES)

    def _check_started(self, timeout_s: float, ready: bool) -> None:
        if not self.running:
            raise self._failure("TorchServe ended at start")
        key = self._key("management")
        failed = rest.problems(self.management, key)
        if not ready:
            late = f"TorchServe was not ready after {timeout_s:g} s"
            raise self._failure(": ".join(filter(None, [late, "; ".join(failed.values())])))
        # TorchServe goes on without a model that it cannot read.
        named = {model.split("=", 1)[0] for model in self._models if "=" in model}
        registered = rest.registered(self.management, key)
        missing = sorted(named - registered)
        if missing and (self._needs_all or not registered):
            raise self._failure(f"TorchServe did not load {', '.join(missing)}")
        if failed and not self._needs_all and registered <= failed.keys():
            raise self._failure(f"no model can be served: {'; '.join(failed.values())}")
        for name in missing:
            LOGGER.warning("%s is not served: its archive cannot be read, see %s", name, self.log)
        for why in failed.values():
            LOGGER.warning("%s\nThe others are served; it is tried again.", why)

    def _failure(self, what: str) -> ServerFailed:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return ServerFailed("\n".join([f"{what}; its log ends:", *lines[-40:]]))

    def _jvm(self) -> list[psutil.Process]:
        """The launcher's only child; the launcher does not pass signals on."""
        return [] if self._tree is None else self._tree.right_below()
