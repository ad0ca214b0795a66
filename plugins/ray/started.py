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
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shunter.plugins import record
from shunter.plugins.errors import UserError
from shunter.plugins.ray.node import TOKEN, NodeSpec

FILE = "cluster.json"
NOTICES = "notices.json"
"""When machines of this host will be taken away, see ``local``."""
DRAINING = "draining.json"
"""Since when they get nothing more."""
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
    kind: str = "on_demand"
    """How it would be paid in a cloud, see ``local``."""

    @property
    def runs(self) -> bool:
        """Whether it is still that process."""
        return bool(self.started) and record.started(self.pid) == self.started


def usual_folder() -> Path:
    """Of this user's cluster on this host."""
    return Path(f"/tmp/shunter-cluster-{os.getuid()}")


def start_node(folder: Path, spec: NodeSpec, kind: str = "on_demand") -> Started:
    """Start a node's process in the background, and note it."""
    path = spec.write()
    # What Ray tells its processes is of the node where this one runs, and not of the new one.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with spec.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shunter.plugins.ray.node", str(path)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = Started(spec.name, process.pid, record.started(process.pid), kind)
    before = noted(folder) if (folder / FILE).exists() else []
    _write(folder, spec.address, [*before, found])
    return found


def end_node(folder: Path, name: str, *, at_once: bool = False) -> None:
    """End a node's process; nothing happens if there is none. ``at_once``: without notice."""
    for each in noted(folder):
        if each.name == name and each.runs:
            os.kill(each.pid, signal.SIGKILL if at_once else signal.SIGTERM)
            bury(each.pid)


def bury(pid: int) -> None:
    """Wait for a process that ends, if it is a child of this one."""
    threading.Thread(target=_wait, args=(pid,), daemon=True).start()


def _wait(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _write(folder: Path, address: str, nodes: list[Started]) -> None:
    draft = folder / f"{FILE}.new"
    told = {"address": address, "nodes": [asdict(each) for each in nodes]}
    draft.write_text(json.dumps(told), encoding="utf-8")
    draft.replace(folder / FILE)


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
    """End the nodes of this host, and with them all that runs there. Raises UserError.

    The head goes first: its controller would replace the others.
    """
    first = noted(folder)[:1]
    _end(first)
    _end(noted(folder))
    (folder / FILE).unlink(missing_ok=True)
    for each in ("ray", "gcs"):
        shutil.rmtree(folder / each, ignore_errors=True)


def _end(nodes: list[Started]) -> None:
    for each in nodes:
        if each.runs:
            os.kill(each.pid, signal.SIGTERM)
            bury(each.pid)
    end = time.monotonic() + STOP_S
    while left := [each for each in nodes if each.runs]:
        if time.monotonic() > end:
            for each in left:
                os.kill(each.pid, signal.SIGKILL)
            return
        time.sleep(LOOK_S)


def make_folder(folder: Path, key: Path | None = None) -> None:
    """For a new cluster with a key of its own, or for a node with the key of its cluster.

    Raises UserError.
    """
    if len(os.fsencode(folder)) > LONGEST_PATH:
        raise UserError(f"{folder}: Ray needs a --folder of at most {LONGEST_PATH} letters")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} is another user's: name another --folder")
    if (folder / FILE).exists() and any(each.runs for each in noted(folder)):
        raise UserError(f"a cluster runs in {folder}: `shunter cluster down` ends it")
    try:
        secret = key.read_text(encoding="ascii").strip() if key else secrets.token_hex(32)
    except (OSError, ValueError) as error:
        raise UserError(f"--cluster-key {key} cannot be read: {error}") from error
    for each in ("ray", "gcs"):
        shutil.rmtree(folder / each, ignore_errors=True)
    for each in (FILE, TOKEN, NOTICES, DRAINING):
        (folder / each).unlink(missing_ok=True)
    descriptor = os.open(folder / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret)
