"""What simulated GPUs hold, as records that a file can have. Pure.

Numbers that stand for a GPU, an instance or a compute instance in calls are never given twice, so
that one of something that is gone is refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shunter.allocator.devices.geometry import Placement, Profiles
from shunter.allocator.devices.simulated.tables import MODELS, Model

INVALID_ARGUMENT, GPU_IS_LOST = 2, 15
SPACE = uuid.UUID("5a1c5de9-3a5e-4c55-9f4e-7d0a4f0f5c11")


class Refused(Exception):
    """NVML's number for why a call is refused."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class SimProcess:
    """Something that computes on a GPU or an instance."""

    pid: int
    memory_mb: int = 0
    is_real: bool = False
    """A process of this machine: when that is gone, so is its work."""


@dataclass
class SimCompute:
    """A compute instance: what programs see as a MIG device."""

    handle: int
    id: int
    profile: int
    slices: int
    uuid: str
    processes: list[SimProcess] = field(default_factory=list)


@dataclass
class SimInstance:
    """A GPU instance."""

    handle: int
    id: int
    profile: int
    start: int
    size: int
    computes: list[SimCompute] = field(default_factory=list)

    @property
    def placement(self) -> Placement:
        """Where it lies."""
        return Placement(self.start, self.size, self.profile)


@dataclass
class SimGpu:
    """A GPU."""

    handle: int
    model: str
    uuid: str
    mig: bool = True
    pending: bool = True
    can_mig: bool = True
    is_lost: bool = False
    """It has fallen off the bus, and answers nothing."""
    instances: list[SimInstance] = field(default_factory=list)
    processes: list[SimProcess] = field(default_factory=list)
    """Of programs that run on the whole of it."""

    @property
    def product(self) -> Model:
        """What it is sold as."""
        return MODELS[self.model]

    @property
    def profiles(self) -> Profiles:
        """What it lists."""
        return self.product.profiles

    def computes(self) -> list[tuple[SimInstance, SimCompute]]:
        """Its compute instances in the order of their MIG devices."""
        return [(each, compute) for each in self.instances for compute in each.computes]


@dataclass
class Fault:
    """What goes wrong with calls of one name."""

    call: str
    """Name of a function of NVML; empty: any that creates or destroys."""
    code: int = 999
    """What the call answers; 0: it works, which is of use with ``kill`` only."""
    skip: int = 0
    """Calls that go well before."""
    times: int = 1
    """Calls that go wrong; -1: all."""
    done: bool = False
    """The call does its work and says all the same that it failed."""
    kill: bool = False
    """The calling process is killed: after the work where ``done``, else before."""


@dataclass
class State:
    """All simulated GPUs of a machine, and how their driver behaves."""

    gpus: list[SimGpu] = field(default_factory=list)
    privileged: bool = True
    """Whether callers may change anything."""
    seconds: float = 0.0
    """What creating or destroying a GPU instance takes."""
    faults: list[Fault] = field(default_factory=list)
    calls: int = 0
    """That created or destroyed something, or were to."""
    last: int = 0
    """The last number given to anything."""

    @staticmethod
    def of(models: Sequence[str]) -> State:
        """These GPUs, with MIG on and no instance. Raises KeyError for an unknown model."""
        state = State()
        for index, model in enumerate(models):
            name = f"GPU-{uuid.uuid5(SPACE, f'{model} {index}')}"
            state.gpus.append(SimGpu(state.next(), MODELS[model] and model, name))
        return state

    def next(self) -> int:
        """A number that was never given before."""
        self.last += 16
        return self.last

    def gpu(self, handle: int) -> SimGpu:
        """The GPU that a number stands for."""
        found = _only(each for each in self.gpus if each.handle == handle)
        if found.is_lost:
            raise Refused(GPU_IS_LOST)
        return found

    def instance(self, handle: int) -> tuple[SimGpu, SimInstance]:
        """The instance that a number stands for, and its GPU."""
        return _only((g, each) for g in self.gpus for each in g.instances if each.handle == handle)

    def compute(self, handle: int) -> tuple[SimGpu, SimInstance, SimCompute]:
        """The compute instance that a number stands for, and what it is a part of."""
        return _only(
            (gpu, each, compute)
            for gpu in self.gpus
            for each, compute in gpu.computes()
            if compute.handle == handle
        )

    # ---- as text

    def dumps(self) -> str:
        """For a file."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> State:
        """What :meth:`dumps` gave."""
        known = json.loads(text)
        gpus = [
            SimGpu(
                **gpu
                | {
                    "instances": [_instance(each) for each in gpu["instances"]],
                    "processes": [SimProcess(**each) for each in gpu["processes"]],
                }
            )
            for gpu in known["gpus"]
        ]
        return State(**known | {"gpus": gpus, "faults": [Fault(**f) for f in known["faults"]]})


def _instance(known: dict[str, Any]) -> SimInstance:
    computes = [
        SimCompute(**each | {"processes": [SimProcess(**p) for p in each["processes"]]})
        for each in known["computes"]
    ]
    return SimInstance(**known | {"computes": computes})


def _only(found: Iterator[Any]) -> Any:
    """A number that stands for nothing, or for something that is gone, is refused."""
    for each in found:
        return each
    raise Refused(INVALID_ARGUMENT)
