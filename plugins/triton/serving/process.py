"""A Triton with the backend that this process starts, and restarts when it ends by itself."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from shunter.batching.page.runtime import OwnFolder
from shunter.nic_frontend import build as native
from shunter.plugins import events, record
from shunter.plugins.errors import UserError
from shunter.plugins.host import GrpcClient, HostError, WorkerRuntime
from shunter.plugins.http_view import HttpView
from shunter.plugins.management import ManagementSocket
from shunter.plugins.ports import free_ports
from shunter.plugins.slot_writer import ServerPage
from shunter.plugins.triton import build, installation
from shunter.plugins.triton.serving import options
from shunter.plugins.triton.serving.control import Control
from shunter.plugins.triton.serving.host import NAME, TritonHost
from shunter.plugins.triton.serving.loading import Tally, missing
from shunter.plugins.triton.serving.surroundings import end, logged_in

LOGGER = logging.getLogger("shunter.triton")
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
        """``settings``: options of ``tritonserver``, without their dashes, and ``shunter_config``;
        ``models``: NAME=FILE; ``ports``: HTTP and gRPC, metrics are two behind HTTP.

        Raises UserError: there is no Triton, no C compiler, or an option is not for users.
        """
        http, grpc, metrics = (*ports, ports[0] + 2) if ports else free_ports(3)
        self._ports = http, grpc, metrics
        self._given_ports = ports is not None
        named = dict(settings)
        self._shunter_config = named.pop("shunter_config", None)
        self._settings, self._variables = options.checked(named, self._ports), dict(variables)
        self._installation = installation.find()
        try:
            native.ensure()
        except native.BuildError as error:
            raise UserError(str(error)) from error
        self._library = build.ensure()
        self._store, self._models, self._runtime = store.resolve(), list(models), runtime
        self._given_folder = folder and folder.absolute()
        self._process: subprocess.Popen[bytes] | record.LivingProcess | None = None
        self._is_ours = True
        """Whether this process started the server, or took it over."""
        self._host: TritonHost | None = None
        self._house = contextlib.ExitStack()
        self._stops = threading.Event()
        self._saving = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.restarts = 0
        """How often Triton was started again."""
        self.told: Callable[[str], None] = lambda text: None

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
            "metrics": f"http://127.0.0.1:{self._ports[2]}/metrics",
            "dashboard": f"http://127.0.0.1:{self._ports[2]}/shunter/",
        }

    @property
    def status_command(self) -> str:
        """See the protocol."""
        return f"shunter status --watch --runtime {self.host.page.path.parent}"

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
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, record.hold(self.folder))
            stack.enter_context(logged_in(self.log))
            living = record.read(self.folder)
            if living is not None:
                self._take(living)
            else:
                self._clean()
            management = self._open_house(stack)
            view = HttpView(self.host.page.path, self._ports[2], self.host)
            stack.callback(view.close)
            try:
                self._begin(living, timeout_s)
            except BaseException:
                if self._is_ours:
                    self._end_server(0)
                raise
            management.is_open = True
            self._house = stack.pop_all()
        self._watcher.start()

    def _take(self, living: record.Record) -> None:
        """Over, with what it was started with."""
        self._process, self._is_ours = record.LivingProcess(living.pid), False
        ports = living.ports[0], living.ports[1], living.ports[2]
        if self._settings or (self._given_ports and ports != self._ports):
            LOGGER.warning(
                "Triton, process %d, goes on with the ports %d and %d and the options that it was "
                "started with: those given now are for one that is started anew",
                *(living.pid, ports[0], ports[1]),
            )
        self._ports = ports

    def _clean(self) -> None:
        self._installation.link_backends(self.folder / "backends", self._library)
        for each in ("repository", "models"):
            shutil.rmtree(self.folder / each, ignore_errors=True)

    def _open_house(self, stack: contextlib.ExitStack) -> ManagementSocket:
        """The page, the host, and what is beside it, until the stack is closed."""
        runtime = OwnFolder(os.environ)
        stack.callback(runtime.close)
        page = ServerPage(runtime.folder.control, os.getpid(), NAME)
        stack.callback(page.close)
        self._host = host = TritonHost(
            self._store, self.folder, self._runtime, lambda: self.pid, page
        )
        stack.callback(host.close)
        host.saved, host.recorder = self._save, stack.enter_context(events.recorded())
        control = Control(host, self._shunter_config, self.log)
        control.start()
        stack.callback(control.close)
        management = ManagementSocket(runtime.folder.path, host)
        stack.callback(management.close)
        return management

    def _begin(self, living: record.Record | None, timeout_s: float) -> None:
        """Models are loaded; those of a server that was taken over come first."""
        host = self.host
        host.repository.inference = self.inference
        if living is None:
            self._launch()
        self._wait_ready(timeout_s)
        if living is not None:
            host.take_over(living.models)
        wanted = missing(self._models, host.served)
        tally = Tally(len(wanted), self.told)
        host.load_all(wanted, tally.note)
        if living is None:  # else there are those that serve
            tally.check()

    def _save(self) -> None:
        with self._saving:
            if not (pid := self.pid):
                return
            told = record.Record(pid, record.started(pid), self._ports, self.host.records())
            try:
                told.write(self.folder)
            except OSError as error:  # what has changed stands
                LOGGER.error("a next host would not know all that is served: %s", error)

    def _launch(self) -> None:
        host = self.host
        folders = {
            "model-repository": str(host.repository.folder),
            "backend-directory": str(self.folder / "backends"),
            "cache-directory": str(self._installation.backends.parent / "caches"),
        }
        given = options.launched(self._settings, self._ports, folders)
        command = self._installation.command(given, host.names())
        command += [f"--backend-config=shunter,socket={host.backend_at}"]
        command += [f"--backend-config=shunter,wait-s={WAIT_S}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._installation.environment() | self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._is_ours = True
        self._save()

    def _wait_ready(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not self.host.repository.is_ready("/v2/health/live"):
            if not self.pid or time.monotonic() > end:
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                what = "was not ready in time" if self.pid else "ended at start"
                raise HostError("\n".join([f"Triton {what}; its log ends:", *lines[-20:]]))
            time.sleep(0.05)

    def _watch(self) -> None:
        """Start again what ends by itself: Triton, and workers."""
        pause_s, due, began, told = 1.0, 0.0, time.monotonic(), ""
        while not self._stops.wait(LOOK_S):
            now = time.monotonic()
            try:
                self.host.look_after()
                if self.pid:
                    continue
                if not due:
                    pause_s = 1.0 if now - began > _HELD_S else pause_s
                    LOGGER.error("Triton has ended by itself; it is started again soon")
                    due, pause_s = now + pause_s, min(2 * pause_s, LONGEST_PAUSE_S)
                elif now >= due:
                    due, began = 0.0, now
                    self.restarts += 1
                    self._launch()
            except Exception as error:  # no room, no process: that may pass
                if repr(error) != told:
                    LOGGER.exception("what has ended is not started again yet")
                told = repr(error)

    def drain(self, timeout_s: float) -> bool:
        """See the protocol: SIGTERM lets Triton answer what it holds."""
        if self._process is None or self._stops.is_set():
            return True
        self._stops.set()
        if self._watcher.is_alive():
            self._watcher.join()
        in_time = self._end_server(timeout_s)
        self._house.close()
        if self._given_folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        return in_time

    def _end_server(self, timeout_s: float) -> bool:
        return self._process is None or not self.pid or end(self._process, timeout_s)
