"""The models of the RPC benchmarks: what they take and give, and their archives."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import BENCH
from numpy.typing import NDArray

from shunter.model_store.pack import copy_config, pack

FOLDER = BENCH / "models/rpc"
sys.path.append(str(FOLDER))

import networks  # noqa: E402

Spec = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class RpcModel:
    """A model: numpy's types and the shapes of one request and one answer."""

    name: str
    network: str
    input: Spec
    output: Spec

    @property
    def size(self) -> int:
        """Bytes of a request."""
        return bytes_of(self.input)

    @property
    def reply(self) -> int:
        """Bytes of an answer."""
        return bytes_of(self.output)

    @property
    def label(self) -> str:
        """For rows: 784B, 6KB, 588KB, and the network's name unless it is empty."""
        size = f"{self.size}B" if self.size < 1024 else f"{self.size // 1024}KB"
        return size if self.network == "empty" else f"{size} {self.network}"

    def request(self) -> NDArray[np.generic]:
        """An input that the network can take."""
        kind, shape = self.input
        random = np.random.default_rng(7)
        if self.network == "minilm":
            return np.stack([random.integers(0, 30522, shape[1]), np.ones(shape[1], int)])
        if kind == "float32":
            return random.standard_normal(shape, np.float32)
        return random.integers(0, 256, shape, kind)


def bytes_of(spec: Spec) -> int:
    """Of one tensor."""
    return int(np.prod(spec[1])) * np.dtype(spec[0]).itemsize


def empty_models() -> list[RpcModel]:
    """Models that do nothing, by size."""
    return [
        RpcModel(f"empty{size}", "empty", ("uint8", (size,)), ("uint8", (reply,)))
        for size, reply in networks.EMPTY.items()
    ]


def real_models() -> list[RpcModel]:
    """Networks with about the same sizes."""
    return [RpcModel(name, name, *specs) for name, specs in networks.SHAPES.items()]


def pack_model(
    model: RpcModel,
    store: Path,
    *,
    batch: int = 1,
    delay_ms: int = 1,
    workers: int = 1,
    record: Path | None = None,
    handler_settings: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    section: Mapping[str, Any] | None = None,
) -> None:
    """Archive it; ``batch`` is of TorchServe's workers and of the front end's alike.

    ``workers``: of the front end; threads are torch's default on every side. ``record``: file of
    what ran. ``handler_settings``: more for the handler; ``config`` and ``section``: more of the
    configuration, and of its ``shunter:``.
    """
    handler = {"network": model.network, **(handler_settings or {})}
    if model.network == "empty":
        handler["reply"] = model.reply
    if record is not None:
        handler["record"] = str(record)
    tensors = {
        kind: [{"name": name, "dtype": spec[0], "shape": list(spec[1])}]
        for kind, name, spec in (("inputs", "x", model.input), ("outputs", "y", model.output))
    }
    changes = {
        "batchSize": batch,
        "maxBatchDelay": delay_ms,
        "handler": handler,
        "shunter": {
            "tensors": tensors,
            "network": f"{workers}x0x{batch}",
            **(section or {}),
        },
        **(config or {}),
    }
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / model.name
        (copy / "extra").mkdir(parents=True)
        shutil.copy(FOLDER / "handler.py", copy)
        shutil.copy(FOLDER / "networks.py", copy / "extra")
        copy_config(FOLDER / "model-config.yaml", copy, changes)
        pack(copy, store, name=model.name)
