"""The sample model's network and weights, without its pictures."""

import torch

from shunter.model_store.resnet50.archive import random_model
from shunter.model_store.resnet50.model import ResNet50


class Network(ResNet50):
    """He et al. 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.load_state_dict(random_model().state_dict())

    @staticmethod
    def example() -> torch.Tensor:
        """A normalised picture (1, 3, 224, 224)."""
        return torch.randn(1, 3, 224, 224)
