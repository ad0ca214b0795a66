"""The 22 models of PROTEAN's evaluation, a cluster's numbers, and what is asked of it.

Which of the numbers the paper prints and which are assumed, and why: ``assumptions``. ``World``
holds them, so that a sweep can change them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from shunter.allocator.devices.geometry import Layout as Places
from shunter.allocator.devices.geometry import layouts as places_of
from shunter.allocator.devices.simulated.tables import MODELS
from shunter.allocator.placement.geometry_score import Kind, maximal
from shunter.allocator.placement.slowdown import SlowdownModel, scaled

GIB = 1 << 30


@dataclass(frozen=True)
class Model:
    """One of the paper's models, with what is assumed of it."""

    name: str
    group: str
    """LI, HI (vision), VHI (language), GPT."""
    alone_ms: float
    """Of a full batch on a whole GPU."""
    fbr: float
    """On a whole GPU."""
    parallel: float
    """Share of the time that gets longer when there are fewer multiprocessors."""
    memory_gib: float
    """Of a batch that runs."""


VISION = (
    Model("ResNet 50", "HI", 50, 0.66, 0.38, 4.5),
    Model("DenseNet 121", "HI", 52, 0.70, 0.38, 4.6),
    Model("DPN 92", "HI", 52, 0.76, 0.38, 8.0),
    Model("VGG 19", "HI", 52, 0.76, 0.38, 4.6),
    Model("SENet 18", "HI", 50, 0.70, 0.38, 4.0),
    Model("GoogleNet", "LI", 51, 0.36, 0.20, 2.8),
    Model("ResNet 18", "LI", 50, 0.38, 0.20, 2.6),
    Model("MobileNet", "LI", 50, 0.28, 0.15, 2.4),
    Model("MobileNet V2", "LI", 50, 0.32, 0.15, 2.6),
    Model("ShuffleNet V2", "LI", 50, 0.20, 0.015, 2.0),
    Model("EfficientNet-B0", "LI", 52, 0.36, 0.20, 2.9),
    Model("Simplified DLA", "LI", 50, 0.34, 0.20, 2.7),
)
LANGUAGE = (
    Model("ALBERT", "VHI", 90, 0.80, 0.8625, 6.0),
    Model("BERT", "VHI", 90, 0.86, 0.50, 6.0),
    Model("DeBERTa", "VHI", 110, 0.90, 0.50, 9.0),
    Model("DistilBERT", "VHI", 70, 0.84, 0.50, 4.0),
    Model("FlauBERT", "VHI", 140, 0.85, 0.50, 7.0),
    Model("Funnel-Transformer", "VHI", 110, 0.88, 0.50, 8.0),
    Model("RoBERTa", "VHI", 90, 0.86, 0.50, 6.0),
    Model("SqueezeBERT", "VHI", 70, 0.84, 0.50, 4.5),
)
GENERATIVE = (
    Model("GPT-1", "GPT", 110, 1.02, 0.40, 9.0),
    Model("GPT-2", "GPT", 150, 1.00, 0.40, 9.5),
)
MODELS_22 = {each.name: each for each in (*VISION, *LANGUAGE, *GENERATIVE)}

BATCH = {"HI": 128, "LI": 128, "VHI": 4, "GPT": 4}
RATE = {"HI": 5000.0, "LI": 5000.0, "VHI": 128.0, "GPT": 128.0}
OPPOSITE = {"HI": "LI", "LI": "HI", "VHI": "VHI", "GPT": "VHI"}


@dataclass(frozen=True)
class World:
    """The numbers of a simulated cluster; factors are what a sweep changes."""

    gpus: int = 8
    device: str = "a100-40gb"
    limit: float = 3.0
    """Of strict batches, in times alone on a whole GPU."""
    time: float = 1.0
    """Factor on all times alone."""
    fbr: float = 1.0
    parallel: float = 1.0
    memory: float = 1.0
    scatter: float = 0.02
    poisson: bool = False
    """Whether the number of requests scatters about the trace's rate."""
    spread_s: float = 0.0
    """Over how much of a second its batches come."""
    change_s: float = 2.0
    start_s: float = 5.0
    keep_s: float = 600.0
    model_s: float = 20.0
    """How long a best-effort model lasts."""
    bandwidth_conserved: bool = False
    naive: tuple[str, ...] = ("4g", "2g", "1g")
    strict_part: float = 0.625
    """Of the multiprocessors, at GPUlet."""
    models: tuple[Model, ...] = field(default=tuple(MODELS_22.values()))

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """Of slices, from the device's tables."""
        device = MODELS[self.device]
        return {
            each.kind: Kind(each.kind, each.compute / 7, each.memory_mb << 20)
            for each in device.profiles
            if each.is_plain
        }

    @cached_property
    def bandwidth(self) -> dict[str, float]:
        """Share of the memory bandwidth, which goes with the memory slices."""
        return {
            each.kind: each.places[0][1] / 8
            for each in MODELS[self.device].profiles
            if each.is_plain
        }

    @cached_property
    def candidates(self) -> tuple[tuple[str, ...], ...]:
        """The maximal layouts as kinds, each once."""
        profiles = tuple(each for each in MODELS[self.device].profiles if each.is_plain)
        kind = {each.id: each.kind for each in profiles}

        def kinds(layout: Places) -> tuple[str, ...]:
            return tuple(sorted((kind[each.profile] for each in layout), reverse=True))

        return maximal(sorted({kinds(each) for each in places_of(profiles)}))

    @cached_property
    def known(self) -> SlowdownModel:
        """Of all models on all kinds of slices, and on the parts of a GPU that GPUlet makes."""
        parts = {name: kind.compute for name, kind in self.kinds.items()}
        shares = dict(self.bandwidth)
        parts |= {"strict part": self.strict_part, "other part": 1 - self.strict_part}
        shares |= {"strict part": 1.0, "other part": 1.0}
        alone: dict[str, dict[str, float]] = {}
        fbr: dict[str, dict[str, float]] = {}
        for model in self.models:
            part = min(1.0, model.parallel * self.parallel)
            rdf = {kind: 1 + part * (1 / share - 1) for kind, share in parts.items()}
            full, wants = model.alone_ms * self.time, model.fbr * self.fbr
            alone[model.name] = {kind: full * rdf[kind] for kind in parts}
            fbr[model.name] = {
                kind: scaled(wants, rdf[kind], shares[kind])
                if self.bandwidth_conserved or kind not in self.kinds
                else wants * parts[kind] / shares[kind]
                for kind in parts
            }
        return SlowdownModel("7g", alone, fbr, shares)

    @cached_property
    def by_name(self) -> dict[str, Model]:
        """The models."""
        return {each.name: each for each in self.models}

    def limit_s(self, model: str) -> float:
        """A strict batch is late after that: the time alone is taken at its 95th percentile."""
        return self.limit * self.alone_s(model) * (1 + 1.645 * self.scatter)

    def late_chance(self, eta: float) -> float:
        """Of a batch that is slowed down so."""
        room = self.limit * (1 + 1.645 * self.scatter) / eta - 1
        if self.scatter <= 0:
            return float(room < 0)
        return 0.5 * math.erfc(room / self.scatter / math.sqrt(2))

    def memory_bytes(self, model: str) -> int:
        """Of a batch that runs."""
        return int(self.by_name[model].memory_gib * self.memory * GIB)

    def alone_s(self, model: str) -> float:
        """On a whole GPU."""
        return self.by_name[model].alone_ms * self.time / 1e3

    def changed(self, **values: object) -> World:
        """Another world."""
        return replace(self, **values)


@dataclass(frozen=True)
class Workload:
    """What is asked of the cluster."""

    strict: str | None
    """Its strict model; None: best effort only."""
    share: float = 0.5
    """Of strict requests."""
    trace: str = "wikipedia"
    seconds: int = 200
    seed: int = 1
    pool: tuple[str, ...] = ()
    """Best-effort models; else those of the opposite category."""
    rate: float = 0.0
    """Mean requests per second (Twitter: peak); else the paper's."""

    @property
    def group(self) -> str:
        """Of its strict model."""
        return "HI" if self.strict is None else MODELS_22[self.strict].group

    def best_effort(self) -> tuple[str, ...]:
        """The models that may be drawn."""
        wanted = OPPOSITE[self.group] if self.strict is not None else "HI"
        return self.pool or tuple(
            name for name, each in MODELS_22.items() if each.group == wanted and name != self.strict
        )

    @property
    def batch(self) -> int:
        """Requests of a full one."""
        return BATCH[self.group]

    def mean_rate(self) -> float:
        """Requests per second."""
        rate = self.rate or RATE[self.group]
        return rate * 2969 / 4561 if self.trace == "twitter" else rate


def batches_of(requests: int, size: int) -> int:
    """Full ones, and one of what is left."""
    return math.ceil(requests / size)
