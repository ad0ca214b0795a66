"""Pack the sample model: make its random weights, archive them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from torch import nn

from shunter.model_store import pack
from shunter.model_store.resnet50.model import ResNet50

HERE = Path(__file__).parent
SEED = 50


def pack_resnet50(
    store: Path,
    *,
    name: str = "resnet50",
    version: str = "1.0",
    config: dict | None = None,
) -> Path:
    """Write ``store/<name>.mar`` and return its path.

    ``config`` replaces top-level keys of model-config.yaml; a key with None goes away.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for file in ("handler.py", "model.py"):
            shutil.copy(HERE / file, folder)
        pack.copy_config(HERE / "model-config.yaml", folder, config)
        torch.save(random_model().state_dict(), folder / "resnet50.pth")
        return pack.pack(folder, store, name=name, version=version)


def random_model() -> ResNet50:
    """The model with random weights, always the same, that tell one picture from another."""
    # The caller's own random numbers go on undisturbed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = ResNet50()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for block in model.blocks:
            # Without training each block doubles what comes in, or nearly: sixteen of them would
            # leave no digits for the differences.
            nn.init.constant_(block["main"][-1].weight, 0.5)
    return model.eval()
