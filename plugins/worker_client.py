"""A model worker without a server: start it in its place, load an archive, run batches.

It is the very worker that serves, over the same protocol, so that what is measured here is what a
batch costs there. Used by the profiler and by benchmarks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from shunter.allocator.cpu_list import format_cpu_list

METRICS = """
model_metrics:
  gauge:
    - {name: PredictionTime, unit: ms, dimensions: [ModelName, Level]}
"""
CONTENT_TYPES = {
    ".json": "application/json",
    ".txt": "text/plain",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
}
_END = b"\xff" * 4
_LOG_LINES = 12


class WorkerFailed(Exception):
    """The worker ended, answered an error or did not answer; the message says which and why."""


@dataclass(frozen=True)
class Sample:
    """The body of one request."""

    body: bytes
    content_type: str = "application/octet-stream"

    @classmethod
    def read(cls, path: Path, content_type: str | None = None) -> Sample:
        """The content of a file; its type by its name."""
        known = CONTENT_TYPES.get(path.suffix.lower(), "application/octet-stream")
        return cls(path.read_bytes(), content_type or known)


@dataclass(frozen=True)
class UnpackedModel:
    """An archive as TorchServe unpacks it."""

    name: str
    folder: Path
    handler: str
    config: Mapping[str, Any]

    @property
    def section(self) -> Mapping[str, Any]:
        """The ``shunter:`` section of the model's configuration."""
        found = self.config.get("shunter")
        return found if isinstance(found, dict) else {}

    def sample(self) -> Sample | None:
        """The archive's own example of a request (``shunter: {sample: FILE}``)."""
        name = self.section.get("sample")
        return Sample.read(self.folder / str(name)) if name else None


def unpack(archive: Path, folder: Path) -> UnpackedModel:
    """Unpack a ``.mar`` into ``folder``. Raises WorkerFailed when it is not one."""
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
        manifest = json.loads((folder / "MAR-INF/MANIFEST.json").read_bytes())
        model = manifest["model"]
        name, handler = str(model["modelName"]), str(model["handler"])
        config_name = model.get("configFile")
        config = yaml.safe_load((folder / config_name).read_bytes()) if config_name else {}
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise WorkerFailed(f"{archive} is not a model archive: {error}") from error
    return UnpackedModel(name, folder, handler, config if isinstance(config, dict) else {})


class ModelWorker:
    """A worker process with a loaded model. Use as a context manager."""

    def __init__(
        self,
        model: UnpackedModel,
        *,
        threads: int,
        cores: Sequence[int] | None = None,
        timeout_s: float = 300,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it on ``cores`` (None: anywhere) with ``threads`` threads, and load the model."""
        self.threads = threads
        self._folder = Path(tempfile.mkdtemp(prefix="shunter-worker-"))
        self._log = self._folder / "log"
        self._deadline_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        try:
            self._start(model, cores, dict(variables or {}))
            self._load(model)
        except BaseException:
            self.close()
            raise

    def _start(
        self, model: UnpackedModel, cores: Sequence[int] | None, more: dict[str, str]
    ) -> None:
        metrics = self._folder / "metrics.yaml"
        metrics.write_text(METRICS, encoding="ascii")
        path = self._folder / "socket"
        environment = {
            **os.environ,
            **{k: str(v) for k, v in dict(model.section.get("environment") or {}).items()},
            "SHUNTER_THREADS": str(self.threads),
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "PYTHONPATH": os.pathsep.join(
                [str(model.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            **more,
        }
        if cores is not None:
            environment["SHUNTER_CORES"] = format_cpu_list(cores)
        command = [sys.executable, "-m", "shunter.handlers.worker", "--sock-type", "unix"]
        command += ["--sock-name", str(path), "--metrics-config", str(metrics)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=model.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._socket = self._connect(path)

    def _connect(self, path: Path) -> socket.socket:
        end = time.monotonic() + self._deadline_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(path))
            except OSError:
                connection.close()
                self._check_alive("before it listened")
                if time.monotonic() > end:
                    raise WorkerFailed(self._explain("did not listen")) from None
                time.sleep(0.02)
            else:
                connection.settimeout(self._deadline_s)
                self._stream = connection.makefile("rb")
                return connection

    def _load(self, model: UnpackedModel) -> None:
        fields = [model.name.encode(), str(model.folder).encode()]
        message = b"".join(_field(each) for each in fields)
        message += struct.pack("!i", 1) + _field(model.handler.encode())
        message += struct.pack("!i", -1) + _field(b"") + b"\1"
        self._send(b"L" + message)
        code, text = self._head()
        self._read(4)  # the end of an empty list
        if code != 200:
            raise WorkerFailed(self._explain(f"could not load the model: {text}"))

    def run(self, samples: Sequence[Sample]) -> float:
        """Run one batch; return the seconds from sending to the whole answer.

        Raises WorkerFailed when the handler did not answer each request with status 200.
        """
        message = _batch(samples)
        begin = time.perf_counter()
        self._send(message)
        code, text = self._head()
        statuses = self._answers() if code == 200 else []
        elapsed = time.perf_counter() - begin
        if code != 200 or any(status != 200 for status in statuses):
            raise WorkerFailed(self._explain(f"answered {code} {text} {statuses[:3]}"))
        if len(statuses) != len(samples):
            raise WorkerFailed(f"{len(statuses)} answers to {len(samples)} requests")
        return elapsed

    @property
    def peak_bytes(self) -> int:
        """Highest resident memory so far, without mapped files."""
        assert self._process is not None
        sizes = {}
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmHWM", "RssFile"):
                sizes[name] = int(value.split()[0]) * 1024
        return max(0, sizes.get("VmHWM", 0) - sizes.get("RssFile", 0))

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    def close(self) -> None:
        """End the process and remove its files."""
        if self._socket is not None:
            self._stream.close()
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> ModelWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, message: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise WorkerFailed(self._explain(f"took no request: {error}")) from error

    def _read(self, count: int) -> bytes:
        try:
            data = self._stream.read(count)
        except OSError as error:
            raise WorkerFailed(self._explain(f"did not answer: {error}")) from error
        if data is None or len(data) < count:
            self._check_alive("in the middle of a batch")
            raise WorkerFailed(self._explain("closed its connection"))
        return data

    def _i32(self) -> int:
        return int(struct.unpack("!i", self._read(4))[0])

    def _text(self) -> str:
        return self._read(self._i32()).decode("utf-8", "replace")

    def _head(self) -> tuple[int, str]:
        return self._i32(), self._text()

    def _answers(self) -> list[int]:
        """Status of each request of a batch."""
        statuses = []
        while (length := self._i32()) != -1:
            self._read(length)  # request id
            self._text()  # content type
            statuses.append(self._i32())
            self._text()  # phrase
            for _ in range(self._i32()):
                self._text()
                self._text()
            self._read(self._i32())
        return [status or 200 for status in statuses]

    def _check_alive(self, when: str) -> None:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(0.2)
            raise WorkerFailed(self._explain(f"ended with status {status} {when}"))

    def _explain(self, what: str) -> str:
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        tail = "\n  ".join(line for line in lines[-_LOG_LINES:] if line.strip())
        return f"the worker {what}" + (f"; its last lines:\n  {tail}" if tail else "")


def _field(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def _batch(samples: Sequence[Sample]) -> bytes:
    parts = [b"I"]
    for number, sample in enumerate(samples):
        parts += [_field(b"%036d" % number), _END, _field(b"body")]
        parts += [_field(sample.content_type.encode()), _field(sample.body), _END]
    return b"".join([*parts, _END])
