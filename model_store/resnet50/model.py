"""The network. Goes into the archive, so nothing of Shunter is imported."""

import torch
from torch import nn
from torch.nn import functional

CLASSES = 1000
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, number of blocks, stride of the first block."""
EXPANSION = 4


class ResNet50(nn.Module):
    """He et al. 2015, with the stride in the 3x3 convolutions as everybody has it since."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_convolution(3, 64, size=7, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.blocks = nn.ModuleList()
        channels = 64
        for width, count, stride in STAGES:
            for number in range(count):
                self.blocks.append(_block(channels, width, stride if number == 0 else 1))
                channels = EXPANSION * width
        self.classify = nn.Linear(channels, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (n, 1000) of normalised images (n, 3, 224, 224)."""
        x = self.stem(images)
        for block in self.blocks:
            x = functional.relu(block["main"](x) + block["side"](x), inplace=True)
        return self.classify(x.mean(dim=(2, 3)))


def _block(channels: int, width: int, stride: int) -> nn.ModuleDict:
    """The way through three convolutions, and the way round them."""
    wide = EXPANSION * width
    same = channels == wide and stride == 1
    return nn.ModuleDict(
        {
            "main": nn.Sequential(
                *_convolution(channels, width, size=1),
                nn.ReLU(inplace=True),
                *_convolution(width, width, size=3, stride=stride),
                nn.ReLU(inplace=True),
                *_convolution(width, wide, size=1),
            ),
            "side": nn.Identity()
            if same
            else nn.Sequential(*_convolution(channels, wide, size=1, stride=stride)),
        }
    )


def _convolution(channels: int, filters: int, *, size: int, stride: int = 1) -> tuple:
    return (
        nn.Conv2d(channels, filters, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(filters),
    )
