"""DISB's workloads, its rates scaled to this machine, and the order of the runs. Pure.

Source: table 2 of the REEF paper (OSDI 2022), and its section 7.1 for the trace; DRIVE is made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import disb_drive
import numpy as np
from arrivals import DisbTask, Times, periodic, poisson

ALL = ("resnet152", "densenet201", "vgg19", "inception_v3", "distilbert")
BUSY = 0.3
"""Share of the time in which strict work is to keep the cores busy, in workload A."""


@dataclass(frozen=True)
class Workload:
    """Strict clients in open loop, and best-effort clients in closed loop."""

    name: str
    strict: tuple[str, ...]
    """Models, with one client each."""
    rate: float
    """Requests/s of each strict client, in the paper."""
    best_effort: tuple[str, ...]
    poisson: bool = False
    """Else in equal distances, the clients' starts staggered."""
    busy: float = BUSY
    """What the strict requests are scaled to."""
    trace: Mapping[str, Times] | None = None
    """Times in seconds by strict model, instead of a rate."""
    trace_s: float = 0.0
    """How long the trace is."""

    def rates(self) -> dict[str, float]:
        """Requests/s of every strict model before scaling."""
        if self.trace is not None:
            return {model: len(times) / self.trace_s for model, times in self.trace.items()}
        return dict.fromkeys(self.strict, self.rate)


A = Workload("A", ("vgg19",), 100, ("resnet152",))
B = Workload("B", ("vgg19",), 220, ("resnet152",), busy=2.2 * BUSY)
C = Workload("C", ("vgg19",), 100, ALL)
D = Workload("D", ALL, 20, ALL)
E = Workload("E", ALL, 20, ALL, poisson=True)
WORKLOADS = {each.name: each for each in (A, B, C, D, E)}
"""Those of the paper's table."""
_DRIVE = disb_drive.trace()
DRIVE = Workload("DRIVE", tuple(_DRIVE), 0, ALL, trace=_DRIVE, trace_s=disb_drive.SECONDS)


def from_trace(tasks: Sequence[DisbTask]) -> Workload:
    """REAL, from the tasks of a DISB file; ValueError when a model of it is not known."""
    strict = {_known(t.model): t.times for t in tasks if t.times is not None}
    best_effort = tuple(_known(t.model) for t in tasks if t.times is None)
    seconds = max(task.seconds for task in tasks)
    return Workload("REAL", tuple(strict), 0, best_effort, trace=strict, trace_s=seconds)


def _known(model: str) -> str:
    """Our name of a model that DISB calls ``inceptionv3-imagenet``."""
    plain = model.split("-")[0].replace("_", "")
    for name in ALL:
        if name.replace("_", "") == plain:
            return name
    raise ValueError(f"the trace has a model {model!r}; known are {', '.join(ALL)}")


def scale(workload: Workload, service_s: Mapping[str, float]) -> float:
    """By what to multiply all rates, so that rate x service time sums up to ``busy``."""
    load = sum(rate * service_s[model] for model, rate in workload.rates().items())
    return workload.busy / load


def times(workload: Workload, factor: float, seconds: float, number: int) -> dict[str, Times]:
    """When each strict model's requests are due in round ``number``, in seconds.

    A round takes another piece of a trace, or other Poisson arrivals; all schemes have the same.
    """
    found = {}
    for index, (model, rate) in enumerate(workload.rates().items()):
        rate *= factor
        if workload.trace is not None:
            found[model] = _piece(workload.trace[model], workload.trace_s, factor, seconds, number)
        elif workload.poisson:
            found[model] = poisson(rate, seconds, 1000 * number + index)
        else:
            due = periodic(rate, seconds) + index / len(workload.strict) / rate
            found[model] = due[due < seconds]
    return found


def _piece(due: Times, length: float, factor: float, seconds: float, number: int) -> Times:
    """A part of the stretched trace; parts follow each other, and begin anew at its end."""
    stretched, whole = due / factor, length / factor
    shifted = (stretched - number * seconds) % whole
    return np.sort(shifted[shifted < seconds])


@dataclass(frozen=True)
class Run:
    """One measurement."""

    workload: str
    scheme: str
    number: int
    """Of its round; the runs of a round follow each other."""


ALWAYS = 3
"""Of the schemes, the first ones: RT-only, ours, and the best of the simple ones."""
OTHERS_EVERY = 2


def plan(workloads: Sequence[str], rounds: int, schemes: Sequence[str]) -> Iterator[Run]:
    """All runs: workloads take turns, schemes rotate from round to round.

    The first ``ALWAYS`` of ``schemes`` run in every round, the rest in every ``OTHERS_EVERY``-th.
    """
    for number in range(rounds):
        now = schemes if number % OTHERS_EVERY == 0 else schemes[:ALWAYS]
        for workload in workloads:
            shift = number % len(now)
            for scheme in (*now[shift:], *now[:shift]):
                yield Run(workload, scheme, number)
