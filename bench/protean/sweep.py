"""Does the order of the schemes turn when what was assumed is a quarter off, or another thing?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from protean.cluster import simulate
from protean.outcome import outcome
from protean.schemes import schemes
from protean.workloads import Workload, World

Row = dict[str, Any]
WORKLOADS = ("ResNet 50", "VGG 19", "GoogleNet", "BERT")
SCHEMES = ("Molecule", "INFless/Llama", "Naive", "PROTEAN", "ours", "Oracle")
TIE = 0.005
"""A lead of less than half a point is none."""


def worlds(quick: bool) -> Iterator[tuple[str, World]]:
    """Changed in one thing each; the first one in nothing."""
    base = World()
    yield "as assumed", base
    for name in ("time", "fbr", "parallel", "memory"):
        for factor in (0.75, 1.25):
            yield f"{name} x {factor}", base.changed(**{name: factor})
    if quick:
        return
    for name in ("scatter", "change_s", "start_s", "model_s"):
        for factor in (0.75, 1.25):
            yield f"{name} x {factor}", base.changed(**{name: getattr(base, name) * factor})
    for spread in (0.1, 0.3, 1.0):
        yield f"arrivals over {spread} s", base.changed(spread_s=spread)
    yield "Poisson number of requests", base.changed(poisson=True)
    yield "bandwidth conserved", base.changed(bandwidth_conserved=True)
    yield "naive slicing on (4g, 3g)", base.changed(naive=("4g", "3g"))


def sweep(seconds: int, seed: int, quick: bool) -> Iterator[Row]:
    """A row for every changed world: mean compliances, and whether the order is the same."""
    for name, world in worlds(quick):
        found = {
            scheme: [
                outcome(simulate(Workload(model, 0.5, "wikipedia", seconds, seed), kind, world))[
                    "compliance"
                ]
                for model in WORKLOADS
            ]
            for scheme, kind in schemes(world).items()
            if scheme in SCHEMES
        }
        mean = {scheme: statistics.fmean(values) for scheme, values in found.items()}
        others = ("Molecule", "INFless/Llama", "Naive")
        yield {
            "world": name,
            **{scheme: round(value, 4) for scheme, value in mean.items()},
            "protean_first": all(
                a >= b - TIE
                for other in others
                for a, b in zip(found["PROTEAN"], found[other], strict=True)
            ),
            "protean_first_on_average": all(
                mean["PROTEAN"] >= mean[other] - TIE for other in others
            ),
            "ours_not_worse": all(
                a >= b - TIE for a, b in zip(found["ours"], found["PROTEAN"], strict=True)
            ),
        }
