"""DRIVE: requests as a car's perception might send them, made from a seed. Pure.

It stands in for REAL, the trace of the REEF paper (section 7.1: logs of Apollo's perception module
in a simulator), which is not part of this repository. It is neither that file nor taken from it;
what it has in common are the models, about 45 requests a second in all, and the kinds of gaps:

    resnet152     a camera, 10 frames a second that come a little early or late
    inception_v3  a second camera, 15 a second
    densenet201   a tracker after every other frame of the first camera
    vgg19         one request per object that was found, some ms apart, after that tracker; how
                  many there are has a heavy tail and goes on from one frame to the next
    distilbert    commands: gaps with a heavy tail

Like all rates of DISB these are slowed down until strict work keeps the cores busy for the share
of time that is wanted. Best effort is the paper's: closed loops of all five models.
"""

from __future__ import annotations

import numpy as np
from arrivals import Times, periodic

SEED = 1
SECONDS = 60.0
CAMERAS = {"resnet152": 10.0, "inception_v3": 15.0}
"""Frames a second."""
JITTER = 0.1
"""Standard deviation of when a frame comes, in distances of frames."""
MOST_OBJECTS = 16
OBJECT_S = 0.005
"""Between the requests for two objects, on average."""
COMMANDS = 3.5
"""Per second, on average."""


def trace(seed: int = SEED, seconds: float = SECONDS) -> dict[str, Times]:
    """Times in seconds by model; the same for the same arguments."""
    choose = np.random.default_rng(seed)
    found = {model: _camera(choose, rate, seconds) for model, rate in CAMERAS.items()}
    tracked = found["resnet152"][::2] + 0.03
    found["densenet201"] = tracked
    found["vgg19"] = _objects(choose, tracked + 0.02)
    found["distilbert"] = _heavy_tailed(choose, COMMANDS, seconds)
    return {model: times[times < seconds] for model, times in found.items()}


def _camera(choose: np.random.Generator, rate: float, seconds: float) -> Times:
    due = periodic(rate, seconds)
    return np.sort(np.maximum(0.0, due + choose.normal(0, JITTER / rate, len(due))))


def _objects(choose: np.random.Generator, frames: Times) -> Times:
    """A burst after every frame; half of the objects are there in the next one, too."""
    parts, known = [np.empty(0)], 0
    for frame in frames:
        new = int(choose.pareto(1.3))
        known = min(MOST_OBJECTS, choose.binomial(known, 0.5) + new)
        parts.append(frame + np.cumsum(choose.exponential(OBJECT_S, known)))
    return np.sort(np.concatenate(parts))


def _heavy_tailed(choose: np.random.Generator, rate: float, seconds: float) -> Times:
    """Gaps after Lomax, whose mean is that of ``rate`` and whose variance has no bound."""
    shape = 1.8
    gaps = choose.pareto(shape, int(4 * rate * seconds) + 16) * (shape - 1) / rate
    return np.cumsum(gaps)
