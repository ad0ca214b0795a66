"""Triton with its Python backend and dynamic batching, for the handler of a packed archive.

The server is the binary that nvidia-pytriton carries; pytriton itself takes no part.

    with Triton(archive, max_batch=32, delay_us=0, threads=2, priorities=True) as server:
        requests.post(server.url, server.body("a text", priority=1), headers=server.headers)

Two faults of this version must not be taken for our gain. With priorities, timeouts or queue limits
its batcher slows down over minutes: ``reload()`` between runs. With priorities it may also miss a
wake-up and then sleeps for half a second or until the next request comes, so that a closed loop of
few clients stalls: measure it with open-loop arrivals.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path
from typing import Any

from rivals import environments, process

VERSION = "2.51.0"
_CARRIER = "nvidia-pytriton==0.7.0"
# The stub was built for numpy 1. Nothing else that pytriton asks for is needed.
_PACKAGES = (_CARRIER, "numpy==1.26.4")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_WIDTH = 384
_FAR_US = 3_600_000_000
"""Triton ignores a request's timeout unless the default is larger than it, and not zero."""

_CONFIG = """\
name: "minilm"
backend: "python"
max_batch_size: {max_batch}
input [ {{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "embedding" data_type: TYPE_FP32 dims: [ {width} ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
dynamic_batching {{
  max_queue_delay_microseconds: {delay_us}
{policy}}}
"""
_PRIORITIES = """\
  priority_levels: 2
  default_priority_level: 2
"""
_TIMEOUTS = """\
  default_queue_policy {{
    timeout_action: REJECT
    default_timeout_microseconds: {timeout_us}
    allow_timeout_override: true
  }}
"""


def ensure() -> Path:
    """Install the server if it is not yet; ``Unavailable`` says why it cannot be."""
    folder = environments.installed(f"triton-{VERSION}", _PACKAGES, dependencies=False)
    if not _stub(folder).is_file():
        raise environments.Unavailable(f"Triton {VERSION} has no stub for Python {_PYTHON}")
    if not any((library / _python_library()).is_file() for library in _library_folders()):
        raise environments.Unavailable(f"Triton's stub needs {_python_library()}, which is absent")
    return folder


class Triton(process.Rival):
    """One Triton server.

    ``instances`` are processes of the model, fed from one queue; ``threads`` are torch's in each.
    ``timeouts`` lets each request carry a time after which Triton refuses it while it waits.
    """

    name = "Triton"
    version = VERSION

    def __init__(
        self,
        archive: Path,
        *,
        max_batch: int = 32,
        delay_us: int = 0,
        threads: int = 2,
        instances: int = 1,
        priorities: bool = False,
        timeouts: bool = False,
    ) -> None:
        super().__init__(archive, max_batch=max_batch, threads=threads)
        self._delay_us = delay_us
        self._instances = instances
        self._priorities = priorities
        self._timeouts = timeouts

    @property
    def url(self) -> str:
        """Where requests are posted to."""
        return f"{self.base}/v2/models/minilm/infer"

    def body(
        self, text: str, *, priority: int | None = None, timeout_us: int | None = None
    ) -> bytes:
        """The request for one text; priority 1 is served before 2."""
        wanted = {"priority": priority, "timeout": timeout_us}
        # Numbers come back as bytes: for Triton that is cheaper than to print them.
        parameters: dict[str, Any] = {"binary_data_output": True}
        parameters |= {name: value for name, value in wanted.items() if value is not None}
        data = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
        return json.dumps({"inputs": [data], "parameters": parameters}).encode()

    def embedding(self, answer: bytes) -> list[float]:
        """The embedding in an answer with status 200."""
        return list(struct.unpack(f"<{_WIDTH}f", answer[-4 * _WIDTH :]))

    def reload(self) -> None:
        """Unload the model and load it again; requests that wait are lost."""
        self._repository("unload")
        deadline = time.monotonic() + 60
        while self._state() != "UNAVAILABLE":
            if time.monotonic() > deadline:
                raise self._failure("Triton did not unload the model")
            time.sleep(0.02)
        self._repository("load")

    def _repository(self, action: str) -> None:
        url = f"{self.base}/v2/repository/models/minilm/{action}"
        urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=120).close()

    def _state(self) -> str:
        url = f"{self.base}/v2/repository/index"
        with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=10) as answer:
            [model] = json.loads(answer.read())
        return model.get("state", "UNAVAILABLE") if model.get("reason") != "unloading" else ""

    def _install(self) -> None:
        self._packages = ensure()

    def _command(self) -> list[str]:
        self._write_repository()
        server = self._packages / "pytriton/tritonserver"
        return [
            str(server / "bin/tritonserver"),
            *("--model-repository", str(self.folder / "models")),
            *("--backend-directory", str(self._write_backends(server))),
            *("--model-control-mode", "explicit", "--load-model", "minilm"),
            *("--http-address", "127.0.0.1", "--http-port", str(self.port)),
            *("--allow-grpc", "false", "--allow-metrics", "false"),
            *("--log-info", "false", "--log-warning", "false"),
            *("--exit-timeout-secs", "5"),
            *("--backend-config", f"python,shm-region-prefix-name={self._regions()}"),
        ]

    def _write_repository(self) -> None:
        version = self.folder / "models/minilm/1"
        version.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("triton_model.py"), version / "model.py")
        policy = _PRIORITIES if self._priorities else ""
        policy += _TIMEOUTS.format(timeout_us=_FAR_US) if self._timeouts else ""
        config = _CONFIG.format(
            max_batch=self._max_batch,
            width=_WIDTH,
            instances=self._instances,
            delay_us=self._delay_us,
            policy=policy,
        )
        (version.parent / "config.pbtxt").write_text(config, encoding="ascii")

    def _write_backends(self, server: Path) -> Path:
        """The Python backend with the stub of this Python beside it."""
        backend = self.folder / "backends/python"
        backend.mkdir(parents=True)
        for file in (server / "backends/python").iterdir():
            (backend / file.name).symlink_to(file)
        shutil.copy(_stub(self._packages), backend)
        return backend.parent

    def _environment(self) -> dict[str, str]:
        libraries = [self._packages / "nvidia_pytriton.libs", *_library_folders()]
        return {
            "PYTHONPATH": process.python_path(self._packages),
            # The stub embeds Python: it must be the one that the packages were installed for.
            "PYTHONHOME": sys.base_prefix,
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        }

    def _ready_url(self) -> str:
        return f"{self.base}/v2/models/minilm/ready"

    def _regions(self) -> str:
        return self.folder.name

    def stop(self) -> None:
        """End all its processes and remove its shared memory."""
        super().stop()
        for region in Path("/dev/shm").glob(f"{self._regions()}*"):
            region.unlink(missing_ok=True)


def _stub(packages: Path) -> Path:
    stubs = packages / "pytriton/tritonserver/python_backend_stubs"
    return stubs / _PYTHON / "triton_python_backend_stub"


def _python_library() -> str:
    return f"libpython{_PYTHON}.so.1.0"


def _library_folders() -> list[Path]:
    return [Path(folder) for folder in (sysconfig.get_config_var("LIBDIR"),) if folder]
