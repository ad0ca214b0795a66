"""Pack the sample model: make its random weights, archive them."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from shunter.model_store import pack
from shunter.model_store.resnet50.model import ResNet50

HERE = Path(__file__).parent
SEED = 50
SAMPLE_SIZE = (375, 500)
"""Height and width."""


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
        (folder / "extra").mkdir()
        (folder / "extra/sample.jpg").write_bytes(sample())
        torch.save(random_model().state_dict(), folder / "resnet50.pth")
        return pack.pack(folder, store, name=name, version=version)


def sample() -> bytes:
    """A JPEG as large as the photographs of ImageNet are, always the same: colours and grain."""
    generator = torch.Generator().manual_seed(SEED)
    coarse = torch.rand(1, 3, 6, 8, generator=generator)
    picture = nn.functional.interpolate(coarse, SAMPLE_SIZE, mode="bicubic")
    picture += 0.1 * torch.randn(picture.shape, generator=generator)
    pixels = (picture[0].permute(1, 2, 0) * 255).clamp(0, 255).byte()
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "JPEG", quality=90)
    return file.getvalue()


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
