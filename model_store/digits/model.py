"""The network. Goes into the archive of the eager model, so nothing of Shunter is imported."""

import torch
from torch import nn


class Digits(nn.Module):
    """LeNet for 8x8 images: two convolutions, one pooling, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classify = nn.Sequential(
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (n, 10) of images (n, 1, 8, 8) with values in 0..1."""
        return self.classify(self.features(images))
