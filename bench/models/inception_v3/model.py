"""Inception-v3. Goes into the archive, so nothing of Shunter is imported.

The network is a tree: in a Sequential the parts follow each other, in a ModuleList they all see
the same input and their channels are joined.
"""

import torch
from torch import nn

CLASSES = 1000


class Network(nn.Module):
    """Szegedy et al. 2015, without the auxiliary classifier, which only training needs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(3, 32, 3, stride=2),
            _convolution(32, 32, 3),
            _convolution(32, 64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            _convolution(64, 80, 1),
            _convolution(80, 192, 3),
            nn.MaxPool2d(3, stride=2),
            *(_fine(channels, pooled) for channels, pooled in ((192, 32), (256, 64), (288, 64))),
            _to_middle(288),
            *(_middle(width) for width in (128, 160, 160, 192)),
            _to_coarse(768),
            *(_coarse(channels) for channels in (1280, 2048)),
        )
        self.classify = nn.Linear(2048, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    @staticmethod
    def example() -> torch.Tensor:
        """A normalised picture (1, 3, 299, 299)."""
        return torch.randn(1, 3, 299, 299)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (n, 1000) of normalised images (n, 3, 299, 299)."""
        return self.classify(_run(self.body, images).mean(dim=(2, 3)))


def _run(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if isinstance(part, nn.ModuleList):
        return torch.cat([_run(branch, x) for branch in part], dim=1)
    if isinstance(part, nn.Sequential):
        for each in part:
            x = _run(each, x)
        return x
    return part(x)


def _convolution(
    channels: int,
    filters: int,
    size: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, filters, size, stride, padding, bias=False),
        nn.BatchNorm2d(filters, eps=0.001),
        nn.ReLU(inplace=True),
    )


def _row(channels: int, filters: int, size: int) -> nn.Sequential:
    """A convolution one pixel high; the sides stay as they are."""
    return _convolution(channels, filters, (1, size), padding=(0, size // 2))


def _column(channels: int, filters: int, size: int) -> nn.Sequential:
    """A convolution one pixel wide."""
    return _convolution(channels, filters, (size, 1), padding=(size // 2, 0))


def _pooled(channels: int, filters: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _convolution(channels, filters, 1))


def _fine(channels: int, pooled: int) -> nn.ModuleList:
    """35 x 35 positions, 224 + ``pooled`` channels out."""
    return nn.ModuleList(
        [
            _convolution(channels, 64, 1),
            nn.Sequential(_convolution(channels, 48, 1), _convolution(48, 64, 5, padding=2)),
            nn.Sequential(
                _convolution(channels, 64, 1),
                _convolution(64, 96, 3, padding=1),
                _convolution(96, 96, 3, padding=1),
            ),
            _pooled(channels, pooled),
        ]
    )


def _to_middle(channels: int) -> nn.ModuleList:
    """From 35 x 35 positions to 17 x 17."""
    return nn.ModuleList(
        [
            _convolution(channels, 384, 3, stride=2),
            nn.Sequential(
                _convolution(channels, 64, 1),
                _convolution(64, 96, 3, padding=1),
                _convolution(96, 96, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        ]
    )


def _middle(width: int) -> nn.ModuleList:
    """17 x 17 positions, 768 channels in and out."""
    return nn.ModuleList(
        [
            _convolution(768, 192, 1),
            nn.Sequential(
                _convolution(768, width, 1), _row(width, width, 7), _column(width, 192, 7)
            ),
            nn.Sequential(
                _convolution(768, width, 1),
                _column(width, width, 7),
                _row(width, width, 7),
                _column(width, width, 7),
                _row(width, 192, 7),
            ),
            _pooled(768, 192),
        ]
    )


def _to_coarse(channels: int) -> nn.ModuleList:
    """From 17 x 17 positions to 8 x 8."""
    return nn.ModuleList(
        [
            nn.Sequential(_convolution(channels, 192, 1), _convolution(192, 320, 3, stride=2)),
            nn.Sequential(
                _convolution(channels, 192, 1),
                _row(192, 192, 7),
                _column(192, 192, 7),
                _convolution(192, 192, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        ]
    )


def _coarse(channels: int) -> nn.ModuleList:
    """8 x 8 positions, 2048 channels out."""
    return nn.ModuleList(
        [
            _convolution(channels, 320, 1),
            nn.Sequential(_convolution(channels, 384, 1), _both(384)),
            nn.Sequential(
                _convolution(channels, 448, 1), _convolution(448, 384, 3, padding=1), _both(384)
            ),
            _pooled(channels, 192),
        ]
    )


def _both(channels: int) -> nn.ModuleList:
    return nn.ModuleList([_row(channels, channels, 3), _column(channels, channels, 3)])
