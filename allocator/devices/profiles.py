"""The sizes of instances that a GPU lists, and the places where each may lie."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import pynvml

from shunter.allocator.devices.geometry import Profile

PLAIN_INDICES = range(7)
"""Of NVML's profiles, those whose memory and engines go with their compute slices."""
HOLES = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
"""What NVML answers for something of a list that this GPU does not have."""


def read_profiles(handle: Any, nvml: Any = pynvml) -> Iterator[Profile]:
    """Every profile of a GPU; none when it has no MIG. Raises NVML's errors."""
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = _info(handle, index, nvml)
        except nvml.NVMLError as error:
            if error.value not in HOLES:
                raise
            continue
        yield Profile(
            id=info.id,
            name=_name(info),
            compute=info.sliceCount,
            places=_places(handle, info.id, nvml),
            most=info.instanceCount,
            is_plain=index in PLAIN_INDICES,
            index=index,
            multiprocessors=info.multiprocessorCount,
            memory_mb=info.memorySizeMB,
        )


def _info(handle: Any, index: int, nvml: Any) -> Any:
    try:
        return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
    return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, 1)  # Older drivers.


def _name(info: Any) -> str:
    if not hasattr(info, "name"):
        return f"{info.sliceCount}g.{math.ceil(info.memorySizeMB / 1024)}gb"
    told = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
    return told.removeprefix("MIG ")


def _places(handle: Any, profile: int, nvml: Any) -> tuple[tuple[int, int], ...]:
    count = ctypes.c_uint()
    ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
    ask(handle, profile, None, ctypes.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(handle, profile, places, ctypes.byref(count))
    return tuple((each.start, each.size) for each in places[: count.value])
