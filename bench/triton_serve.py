"""`shunter serve --triton` as a process of its own, for benchmarks that kill it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from rpc.models import RpcModel, pack_model

from shunter.plugins import hosts
from shunter.plugins.host import HostError
from shunter.plugins.triton import build, installation

START_S = 400.0


class Serve:
    """A context manager; after it no process of it is left."""

    def __init__(self, store: Path, folder: Path) -> None:
        """Serve all of ``store``; ``folder`` gets the log and the sockets."""
        self._store, self._folder = store, folder
        self._http, self._grpc = _free_ports()
        self._process: subprocess.Popen[bytes] | None = None
        self._all: dict[int, psutil.Process] = {}

    @staticmethod
    def store(folder: Path, models: Sequence[RpcModel], **settings: Any) -> Path:
        """Archives of the models. Raises UserError: there is no Triton."""
        installation.find()
        build.ensure()
        store = folder / "store"
        store.mkdir()
        for model in models:
            pack_model(model, store, **settings)
        return store

    def __enter__(self) -> Self:
        command = [str(Path(sys.executable).with_name("shunter")), "serve", "--triton"]
        command += ["--store", str(self._store), "--folder", str(self._folder)]
        command += ["--port", str(self._http), "--grpc", str(self._grpc)]
        self._folder.mkdir()
        with (self._folder / "serve.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._note()
        self._process.terminate()
        try:
            self._process.wait(90)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for each in self._all.values():  # where the host was killed they are nobody's children
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(list(self._all.values()), 10)

    def _wait_ready(self) -> None:
        assert self._process is not None
        end, files = time.monotonic() + START_S, list(self._store.glob("*.mar"))
        while True:
            with contextlib.suppress(HostError):
                if len([each for each in self.models() if each["ready"]]) == len(files):
                    self._note()
                    return
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"shunter serve does not: {self.log()[-2000:]}")
            time.sleep(0.1)

    def _note(self) -> None:
        """Which processes there are, as long as their parent lives."""
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.pid).children(recursive=True)
            self._all |= {each.pid: each for each in found}

    # ---- what it is

    @property
    def pid(self) -> int:
        """Of `shunter serve`."""
        assert self._process is not None
        return self._process.pid

    @property
    def addresses(self) -> tuple[str, str]:
        """Of HTTP and gRPC."""
        return f"127.0.0.1:{self._http}", f"127.0.0.1:{self._grpc}"

    def log(self) -> str:
        """What it printed."""
        return (self._folder / "serve.log").read_text(encoding="utf-8", errors="replace")

    def models(self) -> list[dict[str, Any]]:
        """What the backend serves. Raises HostError."""
        return list(hosts.status_of(self._folder / "backend.sock")["models"])

    def workers(self) -> list[int]:
        """All that are attached; none while there is no Triton."""
        self._note()
        with contextlib.suppress(HostError):
            return [pid for each in self.models() for pid in each["pids"]]
        return []

    def triton(self) -> int:
        """The server itself, 0: there is none."""
        self._note()
        for pid, each in self._all.items():
            with contextlib.suppress(psutil.Error):
                if each.name() == "tritonserver" and each.status() != psutil.STATUS_ZOMBIE:
                    return pid
        return 0

    def wait_for_workers(self, count: int) -> None:
        """Until so many are attached. Raises RuntimeError."""
        end = time.monotonic() + START_S
        while len(self.workers()) < count:
            if time.monotonic() > end:
                raise RuntimeError(f"workers did not come again: {self.log()[-2000:]}")
            time.sleep(0.1)

    def ask_repository(self, model: str, what: str) -> None:
        """``load`` or ``unload``."""
        url = f"http://{self.addresses[0]}/v2/repository/models/{model}/{what}"
        httpx.post(url, json={}, timeout=120, trust_env=False).raise_for_status()


def _free_ports() -> tuple[int, int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        first, second = (int(each.getsockname()[1]) for each in held)
        return first, second
