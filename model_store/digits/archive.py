"""Pack the sample model: train or take cached weights, gather the files, archive them."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shunter.model_store import pack
from shunter.model_store.digits import train
from shunter.model_store.digits.model import Digits

HERE = Path(__file__).parent
# A two of the held-out images, as a client sends it.
SAMPLE = {
    "image": [
        [0, 3, 15, 16, 8, 0, 0, 0],
        [0, 9, 16, 11, 15, 2, 0, 0],
        [0, 11, 10, 4, 16, 2, 0, 0],
        [0, 2, 4, 6, 16, 1, 0, 0],
        [0, 0, 0, 10, 13, 0, 0, 0],
        [0, 0, 2, 14, 13, 0, 0, 0],
        [0, 3, 16, 16, 16, 16, 13, 1],
        [0, 3, 16, 12, 8, 12, 11, 1],
    ]
}


@dataclass(frozen=True)
class Packed:
    """The archive and what is known of the model in it."""

    path: Path
    metadata: dict[str, Any]


def pack_digits(
    store: Path,
    *,
    eager: bool = False,
    name: str = "digits",
    version: str = "1.0",
    network: str | None = None,
    progress: train.Progress = lambda done, total: None,
) -> Packed:
    """Write ``store/<name>.mar``: TorchScript, or with ``eager`` the model's class and weights.

    ``network``: configuration of workers for the network front end, such as ``1x1x32``.
    """
    weights = train.trained(progress=progress)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copy(HERE / "handler.py", folder)
        config = HERE / "model-config.yaml"
        pack.copy_config(config, folder, pack.with_network(config, network))
        (folder / "digits.json").write_text(
            json.dumps(weights.metadata, indent=2), encoding="utf-8"
        )
        (folder / "sample.json").write_text(json.dumps(SAMPLE), encoding="utf-8")
        if eager:
            shutil.copy(HERE / "model.py", folder)
            torch.save(weights.state, folder / "digits.pth")
        else:
            _save_script(weights, folder / "digits.pt")
        return Packed(pack.pack(folder, store, name=name, version=version), weights.metadata)


def _save_script(weights: train.Trained, path: Path) -> None:
    model = Digits()
    model.load_state_dict(weights.state)
    model.eval()
    with warnings.catch_warnings():
        # torch deprecates TorchScript, but it is what TorchServe's handlers load from a .pt file.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(model), path)
