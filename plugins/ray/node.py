"""A node of the cluster: Ray's own processes on this machine, started again when they end.

``python -m shunter.plugins.ray.node FILE`` runs one in the background until SIGTERM; ``shunter
serve --cluster`` in the foreground. All processes of Ray end with this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.inventory import take_stock
from shunter.allocator.devices.slices import of_gpu
from shunter.plugins.errors import UserError
from shunter.plugins.ports import free_ports
from shunter.plugins.ray.records.names import MACHINE_RESOURCE, NODE_VARIABLE, SLICE_RESOURCE

LOGGER = logging.getLogger("shunter.cluster")
FIRST_PAUSE_S, LONGEST_PAUSE_S, HELD_S = 0.5, 15.0, 60.0
LOOK_S = 0.1
STOP_S = 20.0
OBJECT_STORE_BYTES = 80_000_000
"""The least that Ray takes: no tensor passes through it."""
TOKEN = "token"
_PR_SET_PDEATHSIG = 1
_QUICKER = {
    "RAY_kill_child_processes_on_worker_exit": "false",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "10",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}
"""A dead node is noticed sooner than Ray would, and nodes wait longer for a head that is gone.
Machines drain by themselves, before their node is ended; and their servers end by themselves: Ray
would kill the program that answers what its server still holds."""


@dataclass(frozen=True)
class NodeSpec:
    """How a node is started."""

    folder: str
    """Of the cluster on this host: logs, token, and what the head keeps."""
    name: str
    address: str
    """``HOST:PORT`` of the head."""
    is_head: bool = False
    described: Mapping[str, Any] = field(default_factory=dict)
    """What the machine there reads: where its store is."""

    def write(self) -> Path:
        """Into the cluster's folder."""
        path = Path(self.folder) / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @property
    def log(self) -> Path:
        """What Ray's processes print."""
        return Path(self.folder) / f"{self.name}.log"


def environment(folder: Path) -> dict[str, str]:
    """What every process has that talks to the cluster: its key, and quiet."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **_QUICKER,
    }


def command(spec: NodeSpec) -> list[str]:
    """``ray start``, which stays and takes all with it when it ends."""
    program = Path(sys.executable).parent / "ray"
    found = [str(program), "start", "--block", "--disable-usage-stats"]
    host, _, port = spec.address.rpartition(":")
    if spec.is_head:
        found += ["--head", f"--port={port}", f"--node-ip-address={host}"]
        found += ["--include-dashboard=false", f"--temp-dir={Path(spec.folder) / 'ray'}"]
        found += [f"--ray-client-server-port={free_ports(1, host)[0]}"]  # nobody asks there
    else:
        found += [f"--address={spec.address}"]
    resources = {MACHINE_RESOURCE: 1, **{SLICE_RESOURCE + name: 1 for name in slices()}}
    found += ["--min-worker-port=0", "--max-worker-port=0", "--num-cpus=1", "--num-gpus=0"]
    return [
        *found,
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--resources={json.dumps(resources)}",
    ]


def slices() -> list[str]:
    """GPUs and MIG instances that this host has now. Ray cannot be told when they change: what
    there is then stands in the directory."""
    try:
        return [part.name for gpu in take_stock() for part in of_gpu(gpu)]
    except DeviceError:
        return []


class Node:
    """Ray's processes of one node, kept running until :meth:`stop`."""

    def __init__(self, spec: NodeSpec) -> None:
        """Nothing is started yet."""
        self._spec = spec
        self._folder = Path(spec.folder)
        self._stops = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until :meth:`stop`. Start again, later each time, what ended by itself."""
        pause_s = FIRST_PAUSE_S
        while not self._stops.is_set():
            began = time.monotonic()
            self._process = self._launch()
            while self._process.poll() is None and not self._stops.wait(LOOK_S):
                pass
            if self._stops.is_set():
                break
            self._sweep()
            pause_s = FIRST_PAUSE_S if time.monotonic() - began > HELD_S else pause_s
            LOGGER.error("Ray's node %s ended; it starts again in %g s", self._spec.name, pause_s)
            self._stops.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._end()

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stops.set()

    def _launch(self) -> subprocess.Popen[bytes]:
        described = json.dumps({"name": self._spec.name, **self._spec.described})
        variables = os.environ | environment(self._folder) | {NODE_VARIABLE: described}
        if self._spec.is_head:
            # Ray refuses to start a head again while other nodes of this host wait for it.
            (self._folder / "ray" / "ray_current_cluster").unlink(missing_ok=True)
            kept = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self._folder / "gcs")}
            variables |= kept
        with self._spec.log.open("ab") as log:
            return subprocess.Popen(
                command(self._spec),
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ends_with_parent,  # noqa: PLW1509 - it is one system call
            )

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            LOGGER.error("Ray's node %s did not end in %g s and is killed", self._spec.name, STOP_S)
        self._sweep()
        self._process.wait()

    def _sweep(self) -> None:
        """Kill what is left of it: Ray's agents of a killed raylet look for a head for as long as a
        node does."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _ends_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Run the node of a file until SIGTERM. Returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = NodeSpec(**json.loads(Path(argv[0]).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise UserError(f"a node wants the file that `shunter cluster up` wrote: {error}") from None
    node = Node(spec)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: node.stop())
    node.run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
