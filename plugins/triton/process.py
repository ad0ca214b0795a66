"""A Triton with the backend that this process starts, and restarts when it ends by itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from shunter.nic_frontend import build as native
from shunter.plugins.errors import UserError
from shunter.plugins.host import GrpcClient, HostError, WorkerRuntime
from shunter.plugins.triton import build, installation
from shunter.plugins.triton.host import NAME, TritonHost

WAIT_S = 60
"""A model that Triton loads again waits so long for its workers, which attach anew."""
LOOK_S = 0.2
LONGEST_PAUSE_S = 30.0
_HELD_S = 60.0


class TritonProcess:
    """The :class:`shunter.plugins.host.HostProcess` of Triton."""

    name = NAME

    def __init__(
        self,
        *,
        store: Path,
        models: Sequence[str],
        settings: Mapping[str, str],
        variables: Mapping[str, str],
        folder: Path | None,
        ports: tuple[int, int] | None,
        runtime: WorkerRuntime,
    ) -> None:
        """``settings``: options of ``tritonserver``, without their dashes; ``models``: NAME=FILE.

        Raises UserError: there is no Triton, or no C compiler.
        """
        self._installation = installation.find()
        try:
            native.ensure()
        except native.BuildError as error:
            raise UserError(str(error)) from error
        self._library = build.ensure()
        self._store, self._models, self._runtime = store.resolve(), list(models), runtime
        self._settings, self._variables = dict(settings), dict(variables)
        self._given_folder, self._ports = folder, ports or _free_ports()
        self._process: subprocess.Popen[bytes] | None = None
        self._host: TritonHost | None = None
        self._stops = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.restarts = 0
        """How often Triton was started again."""

    @property
    def log(self) -> Path:
        """See the protocol."""
        return self.folder / "server.log"

    @property
    def inference(self) -> str:
        """See the protocol."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def grpc(self) -> str:
        """Address of inference by gRPC."""
        return f"127.0.0.1:{self._ports[1]}"

    @property
    def pid(self) -> int:
        """See the protocol; 0: it does not run now."""
        return self._process.pid if self._process and self._process.poll() is None else 0

    @property
    def host(self) -> TritonHost:
        """See the protocol."""
        if self._host is None:
            raise HostError("Triton is not started")
        return self._host

    @property
    def running(self) -> bool:
        """See the protocol; also while it is started again."""
        return self._process is not None and not self._stops.is_set()

    @property
    def addresses(self) -> dict[str, str]:
        """See the protocol."""
        return {
            "inference": f"{self.inference}/v2/models/...",
            "gRPC": self.grpc,
            "repository": f"{self.inference}/v2/repository/...",
        }

    @property
    def status_command(self) -> str:
        """See the protocol."""
        return f"shunter status --triton {self.host.backend_at}"

    def grpc_client(self) -> AbstractContextManager[GrpcClient]:
        """See the protocol."""
        raise HostError("Triton is asked by its own client: pip install 'tritonclient[all]'")

    # ---- start

    def start(self, timeout_s: float = 120) -> None:
        """See the protocol."""
        if self._process is not None:
            raise HostError("this server is already running")
        self.folder = self._given_folder or Path(tempfile.mkdtemp(prefix="shunter-triton-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        backends = self.folder / "backends"
        self._installation.link_backends(backends, self._library)
        shutil.rmtree(self.folder / "repository", ignore_errors=True)
        self._host = TritonHost(self._store, self.folder, self._runtime, lambda: self.pid)
        self._host.repository.inference = self.inference
        try:
            self._launch()
            self._wait_ready(timeout_s)
            for model in self._models:
                name, equals, file = model.partition("=")
                self._host.load(file if equals else name, name if equals else None)
        except BaseException:
            self.drain(0)
            raise
        self._watcher.start()

    def _launch(self) -> None:
        host = self.host
        options = {
            "model-repository": str(host.repository.folder),
            "backend-directory": str(self.folder / "backends"),
            "cache-directory": str(self._installation.backends.parent / "caches"),
            "model-control-mode": "explicit",
            "http-port": str(self._ports[0]),
            "grpc-port": str(self._ports[1]),
            "http-address": "127.0.0.1",
            "grpc-address": "127.0.0.1",
            "allow-metrics": "false",
            "exit-timeout-secs": "60",
            **self._settings,
        }
        command = [str(self._installation.program), *(f"--{k}={v}" for k, v in options.items())]
        command += [f"--load-model={name}" for name in host.names()]
        command += [f"--backend-config=shunter,socket={host.backend_at}"]
        command += [f"--backend-config=shunter,wait-s={WAIT_S}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**_environment(), **self._installation.variables, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_ready(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not self.host.repository.is_ready("/v2/health/live"):
            if not self.pid or time.monotonic() > end:
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                what = "was not ready in time" if self.pid else "ended at start"
                raise HostError("\n".join([f"Triton {what}; its log ends:", *lines[-20:]]))
            time.sleep(0.05)

    # ---- afterwards

    def _watch(self) -> None:
        """Start again what ends by itself: Triton, and workers."""
        pause_s, due, began = 1.0, 0.0, time.monotonic()
        while not self._stops.wait(LOOK_S):
            self.host.look_after()
            if self.pid:
                continue
            now = time.monotonic()
            if not due:
                pause_s = 1.0 if now - began > _HELD_S else pause_s
                due, pause_s = now + pause_s, min(2 * pause_s, LONGEST_PAUSE_S)
            elif now >= due:
                due, began = 0.0, now
                self.restarts += 1
                self._launch()

    def drain(self, timeout_s: float) -> bool:
        """See the protocol: SIGTERM lets Triton answer what it holds."""
        if self._process is None or self._stops.is_set():
            return True
        self._stops.set()
        if self._watcher.is_alive():
            self._watcher.join()
        in_time = True
        if self.pid:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                in_time = False
                self._process.kill()
                self._process.wait()
        self.host.close()
        if self._given_folder is None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.folder)
        return in_time


def _environment() -> dict[str, str]:
    """This process's, without what is of its own Python."""
    own = dict(os.environ)
    for name in ("PYTHONPATH", "PYTHONHOME"):
        own.pop(name, None)
    return own


def _free_ports() -> tuple[int, int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        first, second = (int(each.getsockname()[1]) for each in held)
        return first, second
