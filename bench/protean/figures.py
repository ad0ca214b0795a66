"""Which runs make up which figure or table of the paper, and what it prints there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from protean.workloads import GENERATIVE, LANGUAGE, VISION, Workload, World

PAPERS = ("Molecule", "INFless/Llama", "Naive", "PROTEAN")
"""Schemes that the paper shows everywhere; GPUlet and Oracle have a figure each."""

PRINTED: dict[tuple[str, str, str], dict[str, float]] = {
    ("fig5", "VGG 19", "INFless/Llama"): {"compliance": 0.7376},
    ("fig5", "VGG 19", "PROTEAN"): {"compliance": 0.9974},
    ("fig5", "ResNet 50", "PROTEAN"): {"compliance": 0.9935},
    ("fig11", "MobileNet", "PROTEAN"): {"compliance": 0.9990},
    ("fig13", "GPT-1", "Molecule"): {"compliance": 0.6145},
    ("fig13", "GPT-2", "Molecule"): {"compliance": 0.79},
    ("fig13", "GPT-1", "INFless/Llama"): {"compliance": 0.0},
    ("fig13", "GPT-2", "INFless/Llama"): {"compliance": 0.0},
    ("fig14 75:25", "ShuffleNet V2", "PROTEAN"): {"compliance": 0.9999},
    ("fig14 75:25", "DPN 92", "PROTEAN"): {"compliance": 0.9378},
    ("fig14 25:75", "ShuffleNet V2", "PROTEAN"): {"compliance": 0.9996},
    ("fig14 25:75", "DPN 92", "PROTEAN"): {"compliance": 0.9996},
    ("fig14 25:75", "ShuffleNet V2", "Naive"): {"compliance": 0.9786},
    ("table4", "ResNet 50", "Molecule"): {"compliance": 0.6012},
    ("table4", "ResNet 50", "Naive"): {"compliance": 0.5431},
    ("table4", "ResNet 50", "INFless/Llama"): {"compliance": 0.0042},
    ("table4", "ResNet 50", "PROTEAN"): {"compliance": 0.9419},
    ("table5", "best effort", "Molecule"): {"be_p50_ms": 68, "be_p99_ms": 165},
    ("table5", "best effort", "Naive"): {"be_p50_ms": 50, "be_p99_ms": 99},
    ("table5", "best effort", "INFless/Llama"): {"be_p50_ms": 57, "be_p99_ms": 130},
    ("table5", "best effort", "PROTEAN"): {"be_p50_ms": 35, "be_p99_ms": 138},
    ("fig15", "ResNet 50", "PROTEAN"): {"compliance": 0.9438},
}
"""By figure, workload and scheme."""
PRINTED_MEANS = {
    ("fig12", "INFless/Llama"): 0.0592,
    ("fig13", "PROTEAN"): 0.90,
    ("fig16", "PROTEAN"): 0.9965,
}
"""Means over a figure's workloads."""


@dataclass(frozen=True)
class Case:
    """A workload of a figure."""

    figure: str
    name: str
    workload: Workload
    world: World


def cases(world: World, length: int, seed: int, quick: bool = False) -> Iterator[Case]:
    """Everything that is simulated; figures 6, 16, 17 show the runs of figures 5, 12 and 13."""

    def load(strict: str | None, share: float = 0.5, trace: str = "wikipedia") -> Workload:
        return Workload(strict, share, trace, length, seed)

    vision = [each.name for each in VISION]
    language = [each.name for each in LANGUAGE]
    if quick:
        vision, language = ["ResNet 50", "VGG 19", "GoogleNet", "ShuffleNet V2"], ["BERT"]
    tight = world.changed(limit=2.0)
    for name in vision:
        yield Case("fig5", name, load(name), world)
        yield Case("fig15", name, load(name), tight)
    yield Case("fig11", "MobileNet", load("MobileNet", trace="twitter"), world)
    for name in language:
        yield Case("fig12", name, load(name), world)
    for each in GENERATIVE:
        yield Case("fig13", each.name, load(each.name), world)
    for share, text in ((0.75, "fig14 75:25"), (0.25, "fig14 25:75")):
        for name in ("ShuffleNet V2", "DPN 92"):
            yield Case(text, name, load(name, share), world)
    yield Case("table4", "ResNet 50", load("ResNet 50", 1.0), world)
    yield Case("table5", "best effort", load(None, 0.0), world)
