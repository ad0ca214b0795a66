"""The nodes of a cluster that were started on this host, noted in a file of its folder."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shunter.plugins import record
from shunter.plugins.errors import UserError
from shunter.plugins.ray.node import TOKEN, NodeSpec

FILE = "cluster.json"
LOOK_S = 0.2
STOP_S = 45.0
LONGEST_PATH = 40
"""Bytes of the folder's path: Ray puts sockets below it."""


@dataclass(frozen=True)
class Started:
    """A process of a node."""

    name: str
    pid: int
    started: int
    """When, in ticks since boot: another process may have its number one day."""

    @property
    def runs(self) -> bool:
        """Whether it is still that process."""
        return bool(self.started) and record.started(self.pid) == self.started


def usual_folder() -> Path:
    """Of this user's cluster on this host."""
    return Path(f"/tmp/shunter-cluster-{os.getuid()}")


def start_node(folder: Path, spec: NodeSpec) -> Started:
    """Start a node's process in the background, and note it."""
    path = spec.write()
    with spec.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shunter.plugins.ray.node", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = Started(spec.name, process.pid, record.started(process.pid))
    try:
        before = noted(folder)
    except UserError:
        before = []
    text = json.dumps({"address": spec.address, "nodes": [asdict(e) for e in [*before, found]]})
    (folder / FILE).write_text(text, encoding="utf-8")
    return found


def noted(folder: Path) -> list[Started]:
    """The nodes that were started on this host. Raises UserError: there is no cluster."""
    return [Started(**each) for each in note(folder)["nodes"]]


def note(folder: Path) -> dict[str, Any]:
    """What was noted: the head's address and the nodes. Raises UserError."""
    try:
        return dict(json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(
            f"no cluster was started in {folder}: `shunter cluster up`, or name its --folder"
        ) from error


def down(folder: Path) -> None:
    """End the nodes of this host, and with them all that runs there. Raises UserError."""
    nodes = noted(folder)
    for each in reversed(nodes):
        if each.runs:
            os.kill(each.pid, signal.SIGTERM)
    end = time.monotonic() + STOP_S
    while left := [each for each in nodes if each.runs]:
        if time.monotonic() > end:
            for each in left:
                os.killpg(each.pid, signal.SIGKILL)
            break
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(LOOK_S)
    (folder / FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / "ray", ignore_errors=True)
    shutil.rmtree(folder / "gcs", ignore_errors=True)


def make_folder(folder: Path) -> None:
    """For a new cluster, with a key of its own. Raises UserError."""
    if len(os.fsencode(folder)) > LONGEST_PATH:
        raise UserError(f"{folder}: Ray needs a --folder of at most {LONGEST_PATH} letters")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} is another user's: name another --folder")
    if (folder / FILE).exists() and any(each.runs for each in noted(folder)):
        raise UserError(f"a cluster runs in {folder}: `shunter cluster down` ends it")
    for each in ("ray", "gcs"):
        shutil.rmtree(folder / each, ignore_errors=True)
    (folder / FILE).unlink(missing_ok=True)
    token = folder / TOKEN
    token.unlink(missing_ok=True)
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
