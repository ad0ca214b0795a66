"""A model worker without a server: start it in its place, load a model, run batches.

It is the very worker that serves, over the same protocol, so that what is measured here is what a
batch costs there. Used by the profiler and by benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from shunter.allocator.cpus.cpu_list import format_cpu_list
from shunter.handlers.sample import Sample
from shunter.plugins.gentle_start import starter
from shunter.plugins.host import WorkerFailed
from shunter.plugins.torchserve import isolation
from shunter.plugins.torchserve.archives import UnpackedModel
from shunter.plugins.torchserve.worker_messages import batch_message, load_message
from shunter.plugins.torchserve.worker_process import last_lines, peak_bytes, raised_in

METRICS = """
model_metrics:
  gauge:
    - {name: PredictionTime, unit: ms, dimensions: [ModelName, Level]}
"""
PROGRAM = "shunter.handlers.torchserve.worker"
LONGEST = 1 << 30
"""Bytes of a field of an answer. A worker that says more has lost its place in the protocol."""
START_S = 120.0
"""How long a worker may take until it listens; it imports torch first."""
CLOSE_S = 2.0
"""How long a worker may take to end by itself."""
LOG = "log"
"""What it prints, in its folder."""


class ModelWorker:
    """A worker process with a loaded model. As a context manager it starts and ends."""

    def __init__(
        self,
        model: UnpackedModel,
        *,
        threads: int,
        cores: Sequence[int] | None = None,
        batch: int = 1,
        timeout_s: float = 300,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """It will run on ``cores`` (None: anywhere) with ``threads`` threads.

        ``batch`` is the largest one it is told to expect; ``timeout_s`` is how long it may be
        silent over the load or a batch.
        """
        self.threads = threads
        self._model = model
        self._cores = cores
        self._batch = batch
        self._variables = dict(variables or {})
        self._deadline_s = timeout_s
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owes = True
        """Whether an answer is outstanding, or part of one; at first that it is loaded."""

    def start(self) -> Self:
        """Start the process and load the model. Raises WorkerFailed; then nothing is left of it."""
        self._folder = isolation.short_folder()
        try:
            self._socket = self._connect(self._launch(self._folder))
            self._load(self._model)
        except BaseException:
            self.close()
            raise
        return self

    def _launch(self, folder: Path) -> Path:
        """Start the process; return the path of its socket."""
        model, path, metrics = self._model, folder / "socket.0", folder / "metrics.yaml"
        metrics.write_text(METRICS, encoding="ascii")
        environment = {
            **os.environ,
            **model.environment,
            # Empty: not what this process itself may have been given.
            "SHUNTER_CORES": "" if self._cores is None else format_cpu_list(self._cores),
            "SHUNTER_THREADS": str(self.threads),
            "SHUNTER_WARM_UP": "0",  # who measures does it himself
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "PYTHONPATH": os.pathsep.join(
                [str(model.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            **self._variables,
        }
        command = [*starter(environment), sys.executable, "-m", PROGRAM, "--sock-type", "unix"]
        command += ["--sock-name", str(path), "--metrics-config", str(metrics)]
        with (folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=model.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for who measures; a worker is ended by close(), with all it started.
                start_new_session=True,
            )
        return path

    def _connect(self, path: Path) -> socket.socket:
        end = time.monotonic() + START_S
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(path))
            except OSError:
                connection.close()
                self._check_alive("before it listened", wait_s=0.02)
                if time.monotonic() > end:
                    raise self._failed("did not listen") from None
            else:
                connection.settimeout(self._deadline_s)
                self._stream = connection.makefile("rb")
                return connection

    def _load(self, model: UnpackedModel) -> None:
        message = load_message(model.name, str(model.folder), self._batch, model.handler)
        code, text, _ = self._exchange(message)
        if code != 200:
            raise self._failed(f"could not load the model: {text}")

    def run(self, samples: Sequence[Sample]) -> float:
        """Run one batch; return the seconds from sending to the whole answer.

        Raises WorkerFailed when the handler did not answer each request with status 200.
        """
        message = batch_message(samples)
        begin = time.perf_counter()
        code, text, answers = self._exchange(message)
        elapsed = time.perf_counter() - begin
        if code != 200:
            raise self._failed(f"answered {code} {text}")
        for status, body in answers:
            if status != 200:
                said = body[:200].decode("utf-8", "replace")
                raise self._failed(f"answered a request with {status}: {said}")
        if len(answers) != len(samples):
            raise WorkerFailed(f"{len(answers)} answers to {len(samples)} requests")
        return elapsed

    @property
    def peak_bytes(self) -> int:
        """Highest resident memory so far, without mapped files."""
        assert self._process is not None
        return peak_bytes(self._process.pid)

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        """Whether it cannot run another batch: it has ended, or did not answer the last one."""
        with contextlib.suppress(ChildProcessError):  # another thread has just reaped it
            return self._owes or self._process is None or self._end() is not None
        return True

    def close(self) -> None:
        """End the process and those it started, and remove its files."""
        if self._socket is not None:
            # Wakes a thread that waits for an answer, or closing would wait for it.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._stream.close()
            self._socket.close()
            self._socket = None
        if self._process is not None:
            # An idle one ends by itself; one at work does not look until it has finished.
            if not self._owes:
                self._wait(CLOSE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """End the process, if there is one by now; who waits for it finds out and closes it."""
        if (process := self._process) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, message: bytes) -> tuple[int, str, list[tuple[int, bytes]]]:
        """Send a message; code and text of the answer, status and body of each request."""
        self._owes = goes_on = True
        self._send(message)
        while goes_on:
            code, text = self._i32(), self._text()
            answers, goes_on = self._answers()
        self._owes = False
        return code, text, answers

    def _send(self, message: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise self._failed(f"took no request: {error}") from error

    def _read(self, count: int) -> bytes:
        try:
            data = self._stream.read(self._checked(count))
        except TimeoutError as error:
            what = f"did not answer: timed out after {self._deadline_s:g} s"
            raise self._failed(what) from error
        except OSError as error:
            raise self._failed(f"did not answer: {error}") from error
        if len(data) < count:
            self._check_alive("and did not answer", wait_s=CLOSE_S)
            raise self._failed("closed its connection")
        return data

    def _i32(self) -> int:
        return int(struct.unpack("!i", self._read(4))[0])

    def _text(self) -> str:
        return self._read(self._i32()).decode("utf-8", "replace")

    def _answers(self) -> tuple[list[tuple[int, bytes]], bool]:
        """Status and body of each request of a batch; whether another part of a stream follows."""
        answers, goes_on = [], False
        while (length := self._i32()) != -1:
            self._read(length)  # request id
            self._text()  # content type
            status = self._i32()
            self._text()  # phrase
            goes_on |= ("ts_stream_next", "true") in self._headers()
            answers.append((status, self._read(self._i32())))
        return answers, goes_on

    def _headers(self) -> list[tuple[str, str]]:
        return [(self._text(), self._text()) for _ in range(self._checked(self._i32()))]

    def _checked(self, count: int) -> int:
        if not 0 <= count <= LONGEST:
            raise self._failed(f"answered nonsense: a length of {count}")
        return count

    def _end(self) -> os.waitid_result | None:
        """How the process ended. It is left unreaped, so that nobody else gets its number."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def _wait(self, seconds: float) -> os.waitid_result | None:
        """How the process ended, None if it still runs after ``seconds``."""
        last = time.monotonic() + seconds
        while (end := self._end()) is None and time.monotonic() < last:
            time.sleep(0.005)
        return end

    def _check_alive(self, when: str, wait_s: float) -> None:
        end = self._wait(wait_s)
        if end is not None:
            raise self._ended(end, f" {when}")

    def failure(self) -> WorkerFailed:
        """Of one that is dead and not closed: how it ended, and its last lines."""
        end = self._end()
        return self._failed("does not answer") if end is None else self._ended(end)

    def _ended(self, end: os.waitid_result, when: str = "") -> WorkerFailed:
        kind = "status" if end.si_code == os.CLD_EXITED else "signal"
        failed = self._failed(f"ended with {kind} {end.si_status}{when}")
        cause = raised_in(failed.lines) if kind == "status" else ""
        return WorkerFailed(f"{failed.why}: {cause}", failed.lines) if cause else failed

    def _failed(self, what: str) -> WorkerFailed:
        assert self._folder is not None
        return WorkerFailed(f"the worker {what}", last_lines(self._folder / LOG))
