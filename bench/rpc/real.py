"""Networks of the model store behind every server: one folder of weights, the same inputs."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from common import BENCH
from numpy.typing import NDArray
from rivals.triton_rpc import TYPES, TritonRpc

from rpc.models import RpcModel
from shunter.model_store import pack
from shunter.model_store.digits.archive import pack_digits
from shunter.model_store.minilm.archive import pack_minilm
from shunter.model_store.resnet50.archive import pack_resnet50

FOLDER = BENCH / "models/real"
sys.path.append(str(FOLDER))

from real_networks import SHAPES, Network  # noqa: E402

WORDS, SHORTEST, LONGEST = 30522, 8, 256
INPUTS = {"digits": 64, "minilm": 16, "resnet50": 4}
"""How many different requests."""
TRITON = """\
name: "{name}"
backend: "python"
max_batch_size: {batch}
input [ {{ name: "x" data_type: TYPE_{input} dims: {input_shape} allow_ragged_batch: {ragged} }} ]
output [ {{ name: "y" data_type: TYPE_{output} dims: {output_shape} }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
parameters [
  {{ key: "network" value: {{ string_value: "{network}" }} }},
  {{ key: "folder" value: {{ string_value: "{folder}" }} }}
]
dynamic_batching {{ }}
"""


def models() -> list[RpcModel]:
    """All of them; -1 stands for as many as a request has."""
    return [RpcModel(name, name, *specs) for name, specs in SHAPES.items()]


PACKS = {
    "digits": partial(pack_digits, eager=True),
    "minilm": pack_minilm,
    "resnet50": pack_resnet50,
}


def write_weights(folder: Path, names: Iterable[str] = tuple(SHAPES)) -> None:
    """The networks' code and weights as the model store packs them, for :class:`Network`."""
    for name in names:
        PACKS[name](folder)
        with zipfile.ZipFile(folder / f"{name}.mar") as archive:
            (folder / f"{name}.py").write_bytes(archive.read("model.py"))
            (folder / f"{name}.pth").write_bytes(archive.read(f"{name}.pth"))
        (folder / f"{name}.mar").unlink()


def inputs(name: str) -> list[NDArray[np.generic]]:
    """Requests; always the same."""
    random, count = np.random.default_rng(7), INPUTS[name]
    if name == "minilm":
        lengths = random.permutation(np.linspace(SHORTEST, LONGEST, count).astype(int))
        return [random.integers(0, WORDS, length) for length in lengths]
    (_, shape), _ = SHAPES[name]
    if name == "digits":
        return list(random.integers(0, 17, (count, *shape)).astype(np.float32))
    return list(random.standard_normal((count, *shape), np.float32))


def write_inputs(folder: Path, name: str) -> Path:
    """Requests, and what the network says of each alone in this process."""
    network, path = Network(folder, name), folder / f"{name}.npz"
    given = inputs(name)
    answers = [network.of_requests([torch.from_numpy(x)])[0].numpy() for x in given]
    found = {f"x{place}": x for place, x in enumerate(given)}
    np.savez(path, **found, answers=np.stack(answers))
    return path


def pack_real(
    model: RpcModel,
    store: Path,
    folder: Path,
    *,
    name: str,
    batch: int,
    delay_ms: int = 1,
    handler: Mapping[str, Any] | None = None,
    section: Mapping[str, Any] | None = None,
) -> None:
    """Archive it; ``batch`` is of TorchServe's workers and of the front end's alike.

    ``handler`` and ``section``: more for the handler, and of the ``shunter:`` section.
    """
    (kind, shape), (out, reply) = model.input, model.output
    first = "ids" if -1 in shape else "x"
    tensors: dict[str, Any] = {
        "inputs": [{"name": first, "dtype": kind, "shape": list(shape)}],
        "outputs": [{"name": "y", "dtype": out, "shape": list(reply)}],
    }
    if -1 in shape:  # padded to the longest of a batch, as by the others: there are no buckets
        tensors |= {"request_bytes": 4096, "answer_bytes": 4096}
    config = {
        "batchSize": batch,
        "maxBatchDelay": delay_ms,
        "responseTimeout": 120,
        "handler": {"network": model.network, "folder": str(folder), **(handler or {})},
        "shunter": {"tensors": tensors, "network": f"1x0x{batch}", **(section or {})},
    }
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / name
        (copy / "extra").mkdir(parents=True)
        shutil.copy(FOLDER / "handler.py", copy)
        shutil.copy(FOLDER / "real_networks.py", copy / "extra")
        (copy / "model-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        pack.pack(copy, store, name=name)


class TritonReal(TritonRpc):
    """Triton with these models, in every one of ``variants``."""

    def __init__(self, weights: Path, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._weights = weights

    def _write_repository(self) -> None:
        for model, (batch, instances) in self._models.items():
            version = self.folder / "models" / model.name / "1"
            version.mkdir(parents=True)
            source = BENCH / "rivals/triton_real_model.py"
            shutil.copy(source, version / "model.py")
            shutil.copy(FOLDER / "real_networks.py", version)
            (kind, shape), (out, reply) = model.input, model.output
            config = TRITON.format(
                name=model.name,
                network=model.network,
                folder=self._weights,
                batch=batch,
                instances=instances,
                input=TYPES[kind],
                input_shape=list(shape),
                ragged=str(-1 in shape).lower(),
                output=TYPES[out],
                output_shape=list(reply),
            )
            (version.parent / "config.pbtxt").write_text(config, encoding="ascii")
