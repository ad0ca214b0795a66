"""Start a rival's processes and end every one of them."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shunter.plugins.torchserve.isolation import free_ports
from shunter.plugins.torchserve.process_tree import GRACE_S, ProcessTree

BENCH = Path(__file__).resolve().parents[1]
SETTINGS = "SHUNTER_RIVAL"
"""Environment variable that ``hosted`` reads: the settings as JSON."""
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class RivalFailed(Exception):
    """The rival did not start; the message ends with the tail of its log."""


class Rival:
    """One server on loopback with the handler of ``archive``. A context manager.

    Subclasses say how to start it and how a request looks.
    """

    name: str
    version: str
    headers: Mapping[str, str] = {"Content-Type": "application/json"}
    port: int

    def __init__(self, archive: Path, *, max_batch: int, threads: int) -> None:
        self._archive = Path(archive).resolve()
        self._max_batch = max_batch
        self._threads = threads
        self._tree: ProcessTree | None = None

    def start(self, timeout_s: float = 120) -> None:
        """Install what is missing, start, wait until it answers."""
        self._install()
        self.folder = Path(tempfile.mkdtemp(prefix="shunter-rival-"))
        self.log = self.folder / "server.log"
        self._batches = self.folder / "batches"
        atexit.register(self.stop)
        try:
            self._unpack()
            self.port = free_ports().inference
            self._launch()
            self._wait_ready(time.monotonic() + timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all its processes; SIGKILL for those that SIGTERM does not end in time."""
        if self._tree is not None:
            self._tree.end([self._tree.launcher], GRACE_S)
            self._tree = None
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._tree is not None and self._tree.running

    def pids(self) -> list[int]:
        """All its processes that are alive now: for processor time and memory."""
        if self._tree is None:
            return []
        return [self._tree.launcher.pid, *(process.pid for process in self._tree.below())]

    def batches(self) -> Counter[int]:
        """Sizes of the batches that the model has seen since the start."""
        if not self._batches.exists():
            return Counter()
        return Counter(map(int, self._batches.read_text(encoding="ascii").split()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def base(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    # What a rival has to say.

    @property
    def url(self) -> str:
        """Where requests are posted to."""
        raise NotImplementedError

    def body(self, text: str) -> bytes:
        """The request for one text."""
        raise NotImplementedError

    def embedding(self, answer: bytes) -> list[float]:
        """The embedding in an answer with status 200."""
        raise NotImplementedError

    def _install(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        raise NotImplementedError

    def _ready_url(self) -> str:
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        return {}

    def _unpack(self) -> None:
        with zipfile.ZipFile(self._archive) as archive:
            archive.extractall(self.folder / "archive")

    def _launch(self) -> None:
        settings = {
            "model": str(self.folder / "archive"),
            "threads": self._threads,
            "max_batch": self._max_batch,
            "batches": str(self._batches),
            **self._settings(),
        }
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            **dict.fromkeys(_THREAD_SETTINGS, str(self._threads)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.folder),
            # Triton's stubs take their Python from here.
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
            ),
            SETTINGS: json.dumps(settings),
            **self._environment(),
        }
        with self.log.open("wb") as log:
            launcher = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._tree = ProcessTree(launcher)

    def _wait_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if not self._tree.running or self._gave_up():
                raise self._failure(f"{self.name} ended at start")
            if answers(self._ready_url()):
                self._tree.below()  # remembered from here on
                return
            time.sleep(0.1)
        raise self._failure(f"{self.name} was not ready in time")

    def _gave_up(self) -> bool:
        """Whether it will never be ready although it runs."""
        return False

    def _failure(self, what: str) -> RivalFailed:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return RivalFailed("\n".join([f"{what}; its log ends:", *lines[-40:]]))


def answers(url: str) -> bool:
    """Whether a GET is answered with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def python_path(packages: Path) -> str:
    """PYTHONPATH for a rival: its packages win over those of the benchmark's environment."""
    caller = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # An environment may build on another one, by a .pth file.
    caller |= {folder for folder in sys.path if Path(folder).name == "site-packages"}
    return os.pathsep.join([str(packages), str(BENCH), *sorted(caller)])
