"""What a driver does with GPUs and their instances, by NVIDIA's documentation. Pure.

A call that is refused raises :class:`Refused` with NVML's number and changes nothing.
"""

from __future__ import annotations

import uuid

from shunter.allocator.devices.geometry import Placement, Profile, fault
from shunter.allocator.devices.simulated.state import (
    INVALID_ARGUMENT,
    SPACE,
    Refused,
    SimCompute,
    SimGpu,
    SimInstance,
    SimProcess,
    State,
)

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 3, 4, 6, 19, 23
_IDS = {8: (0,), 4: (1, 2), 2: (3, 4, 5, 6), 1: (7, 8, 9, 10, 11, 12, 13)}
"""Which numbers drivers give to instances, by memory slices."""
_COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
"""Of each profile of compute instances, by its index, which is its id too."""


def migged(state: State, handle: int, profile: int) -> tuple[SimGpu, Profile]:
    """A GPU with MIG on, and a profile of it."""
    gpu = state.gpu(handle)
    if not gpu.can_mig or not gpu.mig:
        raise Refused(NOT_SUPPORTED)
    for each in gpu.profiles:
        if each.id == profile:
            return gpu, each
    raise Refused(INVALID_ARGUMENT)


def remaining(state: State, handle: int, profile: int) -> int:
    """How many more of a profile fit."""
    gpu, known = migged(state, handle, profile)
    there = [each.placement for each in gpu.instances]
    count = 0
    for each in known.placements():
        if fault([*there, each], gpu.profiles) is None:
            there.append(each)
            count += 1
    return count


def set_mig(state: State, handle: int, on: bool) -> int:
    """Switch MIG; returns 0, or why it will be so only after a reset."""
    check_permission(state)
    gpu = state.gpu(handle)
    if not gpu.can_mig:
        raise Refused(NOT_SUPPORTED)
    if gpu.instances and not on:
        raise Refused(IN_USE)
    gpu.pending = on
    if gpu.processes:
        return IN_USE
    gpu.mig = on
    return 0


def create(state: State, handle: int, profile: int, start: int | None = None, size: int = 0) -> int:
    """Make an instance; where no place is given, at the first one that is free."""
    check_permission(state)
    gpu, known = migged(state, handle, profile)
    if start is not None and (start, size) not in known.places:
        raise Refused(INVALID_ARGUMENT)
    there = {each.placement for each in gpu.instances}
    for at, width in known.places if start is None else [(start, size)]:
        if fault([*there, Placement(at, width, profile)], gpu.profiles) is None:
            taken = {each.id for each in gpu.instances}
            number = next(each for each in _IDS[width] if each not in taken)
            made = SimInstance(state.next(), number, profile, at, width)
            gpu.instances.append(made)
            return made.handle
    raise Refused(INSUFFICIENT_RESOURCES)


def destroy(state: State, handle: int) -> None:
    """End an instance that has no compute instance."""
    check_permission(state)
    gpu, instance = state.instance(handle)
    if instance.computes:
        raise Refused(IN_USE)
    gpu.instances.remove(instance)


def compute_slices(instance: SimInstance, gpu: SimGpu, profile: int) -> tuple[int, int]:
    """Compute slices of a profile of compute instances, and those of the instance."""
    if profile not in _COMPUTE_SLICES:
        raise Refused(NOT_SUPPORTED)
    known = next(each for each in gpu.profiles if each.id == instance.profile)
    if _COMPUTE_SLICES[profile] > known.compute:
        raise Refused(NOT_SUPPORTED)
    return _COMPUTE_SLICES[profile], known.compute


def create_compute(state: State, handle: int, profile: int) -> int:
    """Make a compute instance."""
    check_permission(state)
    gpu, instance = state.instance(handle)
    slices, whole = compute_slices(instance, gpu, profile)
    if slices + sum(each.slices for each in instance.computes) > whole:
        raise Refused(INSUFFICIENT_RESOURCES)
    number, taken = state.next(), {each.id for each in instance.computes}
    # A new name each time: whoever keeps that of an instance that is gone is wrong.
    name = f"MIG-{uuid.uuid5(SPACE, f'{gpu.uuid} {number}')}"
    identity = next(each for each in range(8) if each not in taken)
    instance.computes.append(SimCompute(number, identity, profile, slices, name))
    return number


def destroy_compute(state: State, handle: int) -> None:
    """End a compute instance that nobody uses."""
    check_permission(state)
    _, instance, compute = state.compute(handle)
    if compute.processes:
        raise Refused(IN_USE)
    instance.computes.remove(compute)


def reboot(state: State) -> None:
    """The machine starts again: no instance outlives it, nor MIG on GPUs after Ampere."""
    for gpu in state.gpus:
        gpu.instances, gpu.processes = [], []
        gpu.mig = gpu.pending = gpu.pending and gpu.product.keeps_mig


def occupy(state: State, name: str, process: SimProcess) -> None:
    """A process begins to use a GPU or a MIG device, by UUID. Raises KeyError for no such."""
    for gpu in state.gpus:
        users = [gpu, *(compute for _, compute in gpu.computes())]
        for each in users:
            if each.uuid == name and (each is not gpu or not gpu.mig):
                each.processes.append(process)
                return
    raise KeyError(name)


def vacate(state: State, name: str, pid: int) -> None:
    """It ends; nothing happens when the device is gone or the process was not there."""
    for gpu in state.gpus:
        for each in (gpu, *(compute for _, compute in gpu.computes())):
            if each.uuid == name:
                each.processes = [other for other in each.processes if other.pid != pid]


def check_permission(state: State) -> None:
    """Refuses who may not change, nor list, instances."""
    if not state.privileged:
        raise Refused(NO_PERMISSION)
