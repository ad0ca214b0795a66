"""The five networks of DISB: VGG-19, ResNet-152, DenseNet-201, Inception-v3, DistilBERT.

Plain torch, random weights that are always the same. The defaults are the published sizes; a
smaller width or picture makes a pass cheaper and leaves the layers as they are, so that there are
as many places to be preempted at. Goes into an archive, so nothing of Shunter is imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SEED = 7
CLASSES = 1000
NAMES = ("vgg19", "resnet152", "densenet201", "inception_v3", "distilbert")
SMALL: dict[str, dict[str, Any]] = {
    "vgg19": {"width": 0.25, "image": 160},
    "resnet152": {"width": 0.5, "image": 64},
    "densenet201": {"width": 0.5, "image": 64},
    "inception_v3": {"width": 0.5, "image": 139},
    "distilbert": {"width": 0.5},
}
"""Sizes with which a pass takes 10 to 30 ms on two CPUs."""
TOKENS, HEADS, VOCABULARY, POSITIONS = 128, 12, 30522, 512


def build(
    name: str, *, width: float = 1.0, image: int | None = None
) -> tuple[nn.Module, torch.Tensor]:
    """A network in eval mode, with random weights, and an example of its input (batch of one).

    ``width``: share of the channels of every layer; ``image``: pixels of a picture's side, at
    least 64 (Inception: 75), by default as published. A KeyError for an unknown name, a
    ValueError for a width with which some layer would not have a whole number of channels.
    """
    network = narrower(skeleton(name), width).to_empty(device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        for module in reversed(list(network.modules())):  # parts before the whole
            _fill(module)
        if name == "distilbert":
            return network.eval(), torch.randint(VOCABULARY, (1, TOKENS))
        side = image or (299 if name == "inception_v3" else 224)
        return network.eval(), torch.randn(1, 3, side, side)


def skeleton(name: str) -> nn.Module:
    """The network at its published size on the meta device: shapes without weights."""
    with torch.device("meta"):
        return _BUILDERS[name]()


def parameters(network: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(each.numel() for each in network.parameters())


def narrower(network: nn.Module, width: float) -> nn.Module:
    """Every layer with that share of its channels, but for the colours, words and classes."""
    if width == 1:
        return network
    for name, module in list(network.named_children()):
        setattr(network, name, _narrow_layer(module, width) or narrower(module, width))
    return network


def _narrow_layer(layer: nn.Module, width: float) -> nn.Module | None:
    """The same kind of layer with fewer channels; None for what has none of its own."""

    def part(channels: int) -> int:
        if (channels * width) % 1:
            raise ValueError(f"width {width}: a layer would have {channels * width} channels")
        return int(channels * width)

    with torch.device("meta"):
        if isinstance(layer, nn.Conv2d):
            inputs = 3 if layer.in_channels == 3 else part(layer.in_channels)
            more = {"stride": layer.stride, "padding": layer.padding}
            bias = layer.bias is not None
            size = layer.kernel_size
            return nn.Conv2d(inputs, part(layer.out_channels), size, bias=bias, **more)
        if isinstance(layer, nn.BatchNorm2d):
            return nn.BatchNorm2d(part(layer.num_features), eps=layer.eps)
        if isinstance(layer, nn.Linear):
            last = layer.out_features == CLASSES
            return nn.Linear(part(layer.in_features), CLASSES if last else part(layer.out_features))
        if isinstance(layer, nn.LayerNorm):
            return nn.LayerNorm(part(layer.normalized_shape[0]), layer.eps)
        if isinstance(layer, nn.Embedding):
            return nn.Embedding(layer.num_embeddings, part(layer.embedding_dim))
    return None


def _fill(layer: nn.Module) -> None:
    """Weights with which values neither vanish nor explode on their way."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    elif isinstance(layer, nn.BatchNorm2d | nn.LayerNorm | nn.Embedding):
        layer.reset_parameters()
    if isinstance(layer, _Bottleneck):
        # As in a trained network, what a block adds is small; fifty sums would explode otherwise.
        nn.init.constant_(layer.widen_norm.weight, 0.2)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class _Vgg(nn.Module):
    """Simonyan and Zisserman 2014, configuration E."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classify = nn.Sequential(
            *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout()),
            nn.Linear(4096, CLASSES),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classify(self.pool(self.features(images)).flatten(1))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * inner
        self.narrow, self.narrow_norm = _convolution(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.middle = _convolution(inner, inner, 3, stride)
        self.middle_norm = nn.BatchNorm2d(inner)
        self.widen, self.widen_norm = _convolution(inner, outputs, 1), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if inputs != outputs:
            path = _convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            self.shortcut = nn.Sequential(*path)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.narrow_norm(self.narrow(x)))
        x = self.relu(self.middle_norm(self.middle(x)))
        return self.relu(self.widen_norm(self.widen(x)) + kept)


class _ResNet(nn.Module):
    """He et al. 2015, 152 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            *(nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)),
        )
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate((3, 8, 36, 3)):
            for index in range(count):
                stride = 2 if stage and index == 0 else 1
                blocks.append(_Bottleneck(inputs, 64 << stage, stride))
                inputs = 4 * (64 << stage)
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(inputs, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classify(self.pool(self.blocks(self.stem(images))).flatten(1))


class _Dense(nn.Module):
    """A layer whose output is joined to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.add = nn.Sequential(
            *(nn.BatchNorm2d(inputs), nn.ReLU(), _convolution(inputs, 4 * growth, 1)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)),
            _convolution(4 * growth, growth, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.add(x)], dim=1)


class _DenseNet(nn.Module):
    """Huang et al. 2016, 201 layers."""

    def __init__(self, growth: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            *(nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)),
        ]
        inputs = 64
        for stage, count in enumerate((6, 12, 48, 32)):
            if stage:
                layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)]
                layers += [_convolution(inputs, inputs // 2, 1), nn.AvgPool2d(2)]
                inputs //= 2
            for _ in range(count):
                layers.append(_Dense(inputs, growth))
                inputs += growth
        layers += [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
        self.layers = nn.Sequential(*layers)
        self.classify = nn.Linear(inputs, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classify(self.layers(images).flatten(1))


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.join = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(part: nn.Module) -> torch.Tensor:
            return part(x).unflatten(2, (HEADS, -1)).transpose(1, 2)

        found = functional.scaled_dot_product_attention(
            heads(self.query), heads(self.key), heads(self.value)
        )
        return self.join(found.transpose(1, 2).flatten(2))


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm = _Attention(width), nn.LayerNorm(width, 1e-12)
        self.inner, self.gelu = nn.Linear(width, 4 * width), nn.GELU()
        self.outer, self.outer_norm = nn.Linear(4 * width, width), nn.LayerNorm(width, 1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attention(x))
        return self.outer_norm(x + self.outer(self.gelu(self.inner(x))))


class _DistilBert(nn.Module):
    """Sanh et al. 2019: the encoder, without a head."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(6)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.blocks(self.norm(self.words(ids) + self.positions(places)))[:, 0]


def _inception() -> nn.Module:
    """The network of another model folder, or its copy beside this file in an archive."""
    here = Path(__file__).resolve().parent
    path = here / "inception_v3.py"
    if not path.exists():
        path = here / "models/inception_v3/model.py"
    spec = importlib.util.spec_from_file_location("inception_v3", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Network()


_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "vgg19": _Vgg,
    "resnet152": _ResNet,
    "densenet201": _DenseNet,
    "inception_v3": _inception,
    "distilbert": _DistilBert,
}
