"""The actor of a machine: it keeps one model server running there and says how loaded it is.

The server is a program of its own (``serving``), which ends when this process does.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from shunter.plugins.errors import UserError
from shunter.plugins.management import RemoteHost
from shunter.plugins.ray.records import loads
from shunter.plugins.ray.records.directory import Report, State
from shunter.plugins.ray.records.names import here

LOGGER = logging.getLogger("shunter.cluster")
LOOK_S = 0.1
FIRST_PAUSE_S, LONGEST_PAUSE_S, HELD_S = 0.5, 15.0, 30.0
SILENT_S, HUNG_S = 10.0, 60.0
"""A server that says nothing for so long is left out, and then started again."""
END_S = 40.0
"""A server has drained by then."""
REDIRECT_S = 1.0
"""After this time no gateway sends anything to a machine that is said to drain."""
_PR_SET_CHILD_SUBREAPER = 36


class Server:
    """The program ``serving`` and all that is below it."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        """Starts it."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shunter.plugins.ray.serving"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dict(told)).encode() + b"\n")
        self._process.stdin.flush()

    def said(self) -> dict[str, Any]:
        """Where the server is, once it serves. Raises UserError: it does not."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            said = json.loads(line)
        except ValueError:
            said = {"refused": f"it ended with status {self._process.wait()}"}
        if "refused" in said:
            raise UserError(str(said["refused"]))
        return dict(said)

    @property
    def running(self) -> bool:
        """Whether the program has not ended."""
        return self._process.poll() is None

    def close(self, timeout_s: float = END_S) -> None:
        """It answers what it holds and ends; what is left of it then is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            LOGGER.error("the server did not end in %g s and is killed", timeout_s)
        # Orphans come to this process, which is their subreaper.
        for each in psutil.Process().children(recursive=True):
            try:
                each.kill()
                each.wait(5)
            except psutil.Error:
                continue
        self._process.wait()


class Machine:
    """One node's server. Methods are called by several threads of the actor."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        """``told``: as ``serving`` reads it, for all machines; this node's own goes over it."""
        adopt_orphans()
        self._told = {**told, **here()}
        self.name = str(self._told.get("name") or os.uname().nodename)
        self._report = Report("starting")
        self._starts = 0
        self._heard = 0.0
        """When the server answered last."""
        self._drains = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="server", daemon=True).start()

    def report(self) -> tuple[str, Report]:
        """Its name, and what it says of itself."""
        found = self._report
        if found.state == "serving" and time.monotonic() - self._heard > SILENT_S:
            found = Report("lost", problem=f"its server is silent for {SILENT_S:g} s")
        return self.name, found

    def drain(self) -> None:
        """Take nothing more, answer what is held, then end the server; come back when it has."""
        self._drains.set()
        self._ended.wait()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._drains.is_set():
            began = time.monotonic()
            self._starts += 1
            problem = self._run_once()
            if self._drains.is_set():
                break
            self._report = Report("starting", problem=problem, starts=self._starts)
            pause_s = FIRST_PAUSE_S if time.monotonic() - began > HELD_S else pause_s
            LOGGER.error("%s: %s; it starts again in %g s", self.name, problem, pause_s)
            self._drains.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._report = Report("released", starts=self._starts)
        self._ended.set()

    def _run_once(self) -> str:
        """Until the server has ended; why it did."""
        problem = "its server ended by itself"
        try:
            server = Server(self._told)
        except OSError as error:
            return f"its server cannot be started: {error}"
        try:
            self._serve(server)
        except (UserError, OSError) as error:
            problem = str(error)
        except Exception as error:  # the machine is more than what a server says
            LOGGER.exception("%s", self.name)
            problem = f"{type(error).__name__}: {error}"
        if self._drains.is_set():
            self._report = replace(self._report, state="draining")
            time.sleep(REDIRECT_S)
        else:
            self._report = Report("starting", problem=problem, starts=self._starts)
        server.close()
        return problem

    def _serve(self, server: Server) -> None:
        """Until it ends, or is to drain. Raises UserError: it does not start."""
        said = server.said()
        host = RemoteHost(Path(said["folder"]), str(self._told["kind"]))
        port = str(said["inference"]).rpartition(":")[2]
        inference = f"http://{self._told['address']}:{port}"
        self._heard = time.monotonic()
        shown = Report(
            "serving", inference, pid=int(said["pid"]), starts=self._starts, actor_pid=os.getpid()
        )
        while server.running and not self._drains.is_set():
            try:
                status = host.status()
            except UserError as error:  # it is ending, or very busy: what was said last holds
                if time.monotonic() - self._heard > HUNG_S:
                    raise UserError(f"its server hangs: {error}") from error
                self._drains.wait(LOOK_S)
                continue
            self._heard = time.monotonic()
            works = tuple(loads.parse(status))
            state: State = "serving" if works else "starting"
            if works and loads.is_changing(status):
                state = "draining"
            self._report = replace(shown, works=works, state=state)
            self._drains.wait(LOOK_S)


def adopt_orphans() -> None:
    """Whatever this process starts comes back to it when its own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
