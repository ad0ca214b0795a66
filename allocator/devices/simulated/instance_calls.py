"""NVML's functions of instances, by their names in C, for simulated GPUs."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from shunter.allocator.devices.geometry import Profile
from shunter.allocator.devices.simulated import driver
from shunter.allocator.devices.simulated.arguments import (
    number_of,
    plain,
    profile_of,
    put_handle,
)
from shunter.allocator.devices.simulated.state import INVALID_ARGUMENT, Refused, State


def nvmlDeviceGetGpuInstanceProfileInfoV(state: State, device: Any, index: Any, info: Any) -> None:
    known = _put_profile(state, device, index, info)
    info._obj.name = f"MIG {known.name}".encode()


def nvmlDeviceGetGpuInstanceProfileInfo(state: State, device: Any, index: Any, info: Any) -> None:
    _put_profile(state, device, index, info)


def _put_profile(state: State, device: Any, index: Any, info: Any) -> Profile:
    gpu = state.gpu(number_of(device))
    known = [each for each in gpu.profiles if each.index == plain(index)]
    if not known or not gpu.can_mig:
        raise Refused(driver.NOT_SUPPORTED)
    into = info._obj
    into.id, into.sliceCount, into.instanceCount = known[0].id, known[0].compute, known[0].most
    into.multiprocessorCount, into.memorySizeMB = known[0].multiprocessors, known[0].memory_mb
    return known[0]


def nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    state: State, device: Any, profile: Any, found: Any, count: Any
) -> None:
    known = [each for each in state.gpu(number_of(device)).profiles if each.id == plain(profile)]
    if not known:
        raise Refused(INVALID_ARGUMENT)
    count._obj.value = len(known[0].places)
    for into, (start, size) in zip(found or (), known[0].places, strict=False):
        into.start, into.size = start, size


def nvmlDeviceGetGpuInstanceRemainingCapacity(
    state: State, device: Any, profile: Any, count: Any
) -> None:
    count._obj.value = driver.remaining(state, number_of(device), plain(profile))


def nvmlDeviceCreateGpuInstance(state: State, device: Any, profile: Any, found: Any) -> None:
    put_handle(found, driver.create(state, number_of(device), plain(profile)))


def nvmlDeviceCreateGpuInstanceWithPlacement(
    state: State, device: Any, profile: Any, place: Any, found: Any
) -> None:
    at = place._obj if hasattr(place, "_obj") else place.contents
    number = driver.create(state, number_of(device), plain(profile), at.start, at.size)
    put_handle(found, number)


def nvmlGpuInstanceDestroy(state: State, instance: Any) -> None:
    driver.destroy(state, number_of(instance))


def nvmlDeviceGetGpuInstances(
    state: State, device: Any, profile: Any, found: Any, count: Any
) -> None:
    driver.check_permission(state)
    gpu, known = driver.migged(state, number_of(device), plain(profile))
    mine = [each for each in gpu.instances if each.profile == known.id]
    count._obj.value = len(mine)
    for index, each in enumerate(mine):
        put_handle(found, each.handle, index)


def nvmlDeviceGetGpuInstanceById(state: State, device: Any, wanted: Any, found: Any) -> None:
    driver.check_permission(state)
    for each in state.gpu(number_of(device)).instances:
        if each.id == plain(wanted):
            put_handle(found, each.handle)
            return
    raise Refused(driver.NOT_FOUND)


def nvmlGpuInstanceGetInfo(state: State, instance: Any, info: Any) -> None:
    gpu, known = state.instance(number_of(instance))
    into = info._obj
    into.device = ctypes.cast(ctypes.c_void_p(gpu.handle), pynvml.c_nvmlDevice_t)
    into.id, into.profileId = known.id, known.profile
    into.placement.start, into.placement.size = known.start, known.size


# ---- compute instances


def nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    state: State, instance: Any, index: Any, _engine: Any, info: Any
) -> None:
    gpu, known = state.instance(number_of(instance))
    slices, whole = driver.compute_slices(known, gpu, plain(index))
    into, profile = info._obj, profile_of(gpu, known)
    into.id, into.sliceCount, into.instanceCount = plain(index), slices, whole // slices
    into.multiprocessorCount = profile.multiprocessors * slices // whole
    part = "" if slices == whole else f"{slices}c."
    into.name = f"MIG {part}{profile.name}".encode()


def nvmlGpuInstanceCreateComputeInstance(
    state: State, instance: Any, profile: Any, found: Any
) -> None:
    put_handle(found, driver.create_compute(state, number_of(instance), plain(profile)))


def nvmlComputeInstanceDestroy(state: State, compute: Any) -> None:
    driver.destroy_compute(state, number_of(compute))


def nvmlGpuInstanceGetComputeInstances(
    state: State, instance: Any, profile: Any, found: Any, count: Any
) -> None:
    driver.check_permission(state)
    _, known = state.instance(number_of(instance))
    mine = [each for each in known.computes if each.profile == plain(profile)]
    count._obj.value = len(mine)
    for index, each in enumerate(mine):
        put_handle(found, each.handle, index)


def nvmlGpuInstanceGetComputeInstanceById(
    state: State, instance: Any, wanted: Any, found: Any
) -> None:
    driver.check_permission(state)
    for each in state.instance(number_of(instance))[1].computes:
        if each.id == plain(wanted):
            put_handle(found, each.handle)
            return
    raise Refused(driver.NOT_FOUND)


def nvmlComputeInstanceGetInfo_v2(state: State, compute: Any, info: Any) -> None:
    gpu, instance, known = state.compute(number_of(compute))
    into = info._obj
    into.device = ctypes.cast(ctypes.c_void_p(gpu.handle), pynvml.c_nvmlDevice_t)
    into.gpuInstance = ctypes.cast(ctypes.c_void_p(instance.handle), pynvml.c_nvmlGpuInstance_t)
    into.id, into.profileId = known.id, known.profile
