"""The model repository that a server reads, and its API for loading and unloading."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import httpx

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.plugins.host import HostError
from shunter.plugins.triton.backend import type_name

LOAD_S = 900.0
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
"""Inputs that the backend fills in where a request does not have them: requests/sequences.c."""


def config_text(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    batch: int,
    optional: int = 0,
    *,
    streamed: bool = False,
) -> str:
    """``config.pbtxt`` of a model of ours; so many of the last inputs may be missing, and
    ``streamed``: its answers come in parts.

    One instance, for the backend has workers of its own; no batcher of Triton's, for it has a
    dispatcher of its own.
    """
    lines = [f'name: "{name}"', 'backend: "shunter"', f"max_batch_size: {batch}"]
    lines += ["version_policy { all { } }", "instance_group [ { kind: KIND_CPU count: 1 } ]"]
    if streamed:
        lines.append("model_transaction_policy { decoupled: true }")
    for kind, specs in (("input", inputs), ("output", outputs)):
        needed = len(specs) - (optional if kind == "input" else 0)
        tensors = [
            _tensor(spec, i >= needed or (kind == "input" and i > 0 and spec.name in SEQUENCE))
            for i, spec in enumerate(specs)
        ]
        lines.append(f"{kind} [\n  " + ",\n  ".join(tensors) + "\n]")
    return "\n".join(lines) + "\n"


def _tensor(spec: TensorSpec, is_optional: bool) -> str:
    dims = f"dims: [ {', '.join(map(str, spec.shape or (1,)))} ]"
    reshape = "" if spec.shape else " reshape { shape: [ ] }"
    more = reshape + (" optional: true" if is_optional else "")
    return f'{{ name: "{spec.name}" data_type: TYPE_{type_name(spec.dtype)} {dims}{more} }}'


class Repository:
    """A folder of models, and the server that reads it in explicit mode."""

    def __init__(self, folder: Path) -> None:
        """It is made when it is not there."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.inference = ""
        """Base URL of the server's HTTP API, once it is started."""

    def write(self, name: str, version: int, text: str) -> None:
        """Put a version of a model there. Raises HostError: the others are of another kind."""
        config = self.folder / name / "config.pbtxt"
        if self.has_others(name, version) and config.read_text(encoding="utf-8") != text:
            raise other_kind(name, version)
        (self.folder / name / str(version)).mkdir(parents=True)
        config.write_text(text, encoding="utf-8")

    def has_others(self, name: str, version: int) -> bool:
        """Whether there are other versions of a model."""
        own = str(version)
        return any(each.is_dir() and each.name != own for each in (self.folder / name).glob("*"))

    def remove(self, name: str, version: int) -> None:
        """Forget a version, and the model with its last one."""
        if (self.folder / name / str(version)).is_dir():
            own = str(version) if self.has_others(name, version) else ""
            shutil.rmtree(self.folder / name / own, ignore_errors=True)

    def load(self, name: str) -> None:
        """Let the server read a model (again). Raises HostError."""
        self._call(f"/v2/repository/models/{name}/load")

    def load_version(self, name: str, version: int) -> None:
        """Let the server read a version that was written; the others serve on. Raises HostError: it
        does not want it, and it is removed again."""
        try:
            self.load(name)
        except HostError:
            self.remove(name, version)
            if self.has_others(name, version):
                with contextlib.suppress(HostError):
                    self.load(name)  # or it would call the model one that did not load
            raise

    def unload(self, name: str) -> None:
        """Let the server forget a model when it has answered all that it holds."""
        self._call(f"/v2/repository/models/{name}/unload")

    def unload_version(self, name: str, version: int) -> None:
        """Let the server forget a version. Raises HostError: it has not.

        The folder of a last one stays: a server that starts again meanwhile must find it.
        """
        if not self.has_others(name, version):
            self.unload(name)
            return
        text = (self.folder / name / "config.pbtxt").read_text(encoding="utf-8")
        self.remove(name, version)
        try:
            self.load(name)
        except HostError:
            self.write(name, version, text)
            raise

    def is_ready(self, path: str = "/v2/health/ready") -> bool:
        """Whether the server, or what is at that path, serves."""
        try:
            return httpx.get(self.inference + path, timeout=5, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def _call(self, path: str) -> None:
        try:
            answer = httpx.post(self.inference + path, json={}, timeout=LOAD_S, trust_env=False)
        except httpx.HTTPError as error:
            raise HostError(f"no Triton answers at {self.inference}: {error}") from error
        if not answer.is_success:
            raise HostError(f"Triton answered {answer.status_code}: {answer.text[:500]}")


def other_kind(name: str, version: int) -> HostError:
    """The server has one configuration for all versions of a model."""
    return HostError(
        f"the tensors or the batch of version {version} of {name} are not those of its "
        "other version: give it another name"
    )
