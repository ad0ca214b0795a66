"""Models that are really different: weights by seed, several architectures, archives of their own.

Every archive has a handler.py and a model.py, as archives have: files of equal names and different
contents. What a model must answer is computed here, from the file that it is packed with.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from common import BENCH
from torch import nn

from shunter.model_store.pack import pack

FOLDER = BENCH / "models/pool"
_LAYERS = {"mlp": 1, "convolutional": 9, "transformer": 12, "recurrent": 6}
"""Weights of a layer, in squares of the width."""
_WIDTHS = {"mlp": 768, "convolutional": 160, "transformer": 256, "recurrent": 320}
_WIDE = {"mlp": 2048, "convolutional": 512, "transformer": 768, "recurrent": 1024}
"""As networks of hundreds of megabytes are: a GPU computes with few large layers."""
ARCHITECTURES = tuple(_LAYERS)
BATCH = 8


def _module(name: str) -> ModuleType:
    """A file of the folder, under a name that nobody else has."""
    spec = importlib.util.spec_from_file_location(f"pool_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_HANDLER = (FOLDER / "handler.py").read_text(encoding="utf-8")
_NAME_LINE = 'NAME = "the name of the archive"'
SEEDS, TOLERANCE = 4, 2e-3
"""As in the handler, which cannot be imported here: its model.py comes with an archive."""


@dataclass(frozen=True)
class PoolModel:
    """One of the models; which one decides its weights."""

    number: int
    architecture: str
    megabytes: float
    wide: bool = False

    @property
    def name(self) -> str:
        """Under which it is registered."""
        return f"{self.architecture}-{self.number:03d}"

    @property
    def shape(self) -> dict[str, int]:
        """Width and depth, for about so many bytes."""
        widths = _WIDE if self.wide else _WIDTHS
        width = widths[self.architecture] + 32 * (self.number // len(ARCHITECTURES) % 4)
        layer = _LAYERS[self.architecture] * width**2 * 4
        return {"width": width, "depth": max(1, round(self.megabytes * 1e6 / layer))}

    def network(self) -> nn.Module:
        """With its weights, in eval mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 + self.number)
            found = _module(self.architecture).Network(**self.shape)
        return found.eval()


def models(
    count: int, smallest_mb: float, largest_mb: float, *, wide: bool = False
) -> list[PoolModel]:
    """Models of all architectures in turn, of sizes that are spread evenly; ``wide``: of few large
    layers."""
    step = (largest_mb - smallest_mb) / max(1, count - 1)
    # 7 and 11 have no divisor in common with most counts: neighbours differ in size.
    sizes = [
        smallest_mb + step * (7 * i % count if count % 7 else 11 * i % count) for i in range(count)
    ]
    return [
        PoolModel(i, ARCHITECTURES[i % len(ARCHITECTURES)], round(size, 3), wide)
        for i, size in enumerate(sizes)
    ]


@dataclass(frozen=True)
class Packed:
    """A model in a model store, and what it must answer."""

    model: PoolModel
    bytes: int
    """Of its weights."""
    answers: tuple[tuple[float, ...], ...]
    """By seed."""

    @property
    def name(self) -> str:
        """Under which it is registered."""
        return self.model.name

    @property
    def archive(self) -> str:
        """The name of its file."""
        return f"{self.name}.mar"

    def body(self, seed: int) -> bytes:
        """A request that a wrong model, or a wrong answer, is refused to."""
        asked = {"seed": seed, "expect": [round(each, 6) for each in self.answers[seed]]}
        return json.dumps(asked).encode()

    def is_right(self, seed: int, answer: Any) -> bool:
        """Whether this model gave this answer."""
        if not isinstance(answer, dict) or answer.get("model") != self.name:
            return False
        pairs = zip(answer["numbers"], self.answers[seed], strict=True)
        return all(abs(a - b) <= TOLERANCE for a, b in pairs)


def pack_all(
    wanted: Sequence[PoolModel],
    store: Path,
    *,
    section: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> list[Packed]:
    """Archives in a model store. ``section``: their ``shunter:`` section, such as ``pool: shared``;
    ``config``: more of their model-config.yaml. RuntimeError: answers could be mistaken."""
    store.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as threads:  # the archiver is a process of its own
        packed = list(threads.map(lambda each: _pack(each, store, section, config), wanted))
    _check_apart(packed)
    return packed


def _pack(
    model: PoolModel, store: Path, section: dict[str, Any] | None, config: dict[str, Any] | None
) -> Packed:
    network = model.network()
    with torch.inference_mode():
        inputs = torch.stack([network.example(seed) for seed in range(SEEDS)])
        answers = nn.functional.normalize(network(inputs)).tolist()
    settings: dict[str, Any] = {"batchSize": BATCH, "maxBatchDelay": 1, "minWorkers": 1}
    settings |= {"maxWorkers": 1, "responseTimeout": 120, "handler": model.shape, **(config or {})}
    if section:
        settings["shunter"] = section
    with tempfile.TemporaryDirectory(dir=store, prefix=".model-") as scratch:
        folder = Path(scratch)
        handler = _HANDLER.replace(_NAME_LINE, f'NAME = "{model.name}"')
        (folder / "handler.py").write_text(handler, encoding="utf-8")
        shutil.copy(FOLDER / f"{model.architecture}.py", folder / "model.py")
        torch.save(network.state_dict(), folder / "weights.pt")
        text = yaml.safe_dump(settings, sort_keys=False)
        (folder / "model-config.yaml").write_text(text, encoding="utf-8")
        pack(folder, store, name=model.name)
    size = sum(each.numel() * each.element_size() for each in network.state_dict().values())
    return Packed(model, size, tuple(map(tuple, answers)))


def _check_apart(packed: Iterable[Packed]) -> None:
    """No two answers may be so near that one could be taken for the other."""
    rows = torch.tensor([row for each in packed for row in each.answers])
    # The largest difference of two answers' numbers, for it is what a check looks at.
    distances = torch.cdist(rows, rows, p=float("inf")).fill_diagonal_(float("inf"))
    if distances.min() < 10 * TOLERANCE:
        raise RuntimeError(f"two answers differ by {distances.min():.2g} only")
