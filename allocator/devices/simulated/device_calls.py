"""NVML's functions of GPUs and MIG devices, by their names in C, for simulated GPUs.

The state comes first, then the arguments in C. What is refused raises ``Refused``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml

from shunter.allocator.devices.simulated import driver
from shunter.allocator.devices.simulated.arguments import (
    number_of,
    plain,
    profile_of,
    put_handle,
    put_text,
)
from shunter.allocator.devices.simulated.state import (
    INVALID_ARGUMENT,
    Refused,
    SimCompute,
    SimGpu,
    SimInstance,
    SimProcess,
    State,
)


def nvmlDeviceGetCount_v2(state: State, count: Any) -> None:
    count._obj.value = len(state.gpus)


def nvmlDeviceGetHandleByIndex_v2(state: State, index: Any, device: Any) -> None:
    if plain(index) >= len(state.gpus):
        raise Refused(INVALID_ARGUMENT)
    put_handle(device, state.gpu(state.gpus[plain(index)].handle).handle)


def nvmlDeviceGetHandleByUUID(state: State, uuid: Any, device: Any) -> None:
    wanted = uuid.value.decode()
    for gpu in state.gpus:
        parts = {compute.uuid: compute.handle | 1 for _, compute in gpu.computes()}
        if wanted in ({gpu.uuid: gpu.handle} | parts):
            put_handle(device, ({gpu.uuid: gpu.handle} | parts)[wanted])
            return
    raise Refused(driver.NOT_FOUND)


def _device(state: State, handle: Any) -> tuple[SimGpu, SimInstance | None, SimCompute | None]:
    number = number_of(handle)
    return state.compute(number & ~1) if number & 1 else (state.gpu(number), None, None)


def _part(state: State, handle: Any) -> tuple[SimGpu, SimInstance, SimCompute]:
    gpu, instance, compute = _device(state, handle)
    if instance is None or compute is None:
        raise Refused(INVALID_ARGUMENT)
    return gpu, instance, compute


def nvmlDeviceGetIndex(state: State, device: Any, index: Any) -> None:
    index._obj.value = state.gpus.index(_device(state, device)[0])


def nvmlDeviceGetUUID(state: State, device: Any, buffer: Any, _size: Any) -> None:
    gpu, _, compute = _device(state, device)
    put_text(buffer, (compute or gpu).uuid)


def nvmlDeviceGetName(state: State, device: Any, buffer: Any, _size: Any) -> None:
    gpu, instance, _ = _device(state, device)
    part = f" MIG {profile_of(gpu, instance).name}" if instance else ""
    put_text(buffer, f"{gpu.product.product}{part}")


def nvmlDeviceGetMemoryInfo(state: State, device: Any, memory: Any) -> None:
    gpu, instance, compute = _device(state, device)
    total = profile_of(gpu, instance).memory_mb if instance else gpu.product.memory_mb
    used = sum(each.memory_mb for each in alive((compute or gpu).processes))
    memory._obj.total, memory._obj.used = total << 20, used << 20
    memory._obj.free = max(0, total - used) << 20


def nvmlDeviceGetComputeRunningProcesses_v3(
    state: State, device: Any, count: Any, found: Any
) -> None:
    gpu, instance, compute = _device(state, device)
    running = alive((compute or gpu).processes)
    room, count._obj.value = count._obj.value, len(running)
    if room < len(running):
        raise Refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for into, each in zip(found or (), running, strict=False):
        into.pid, into.usedGpuMemory = each.pid, each.memory_mb << 20
        into.gpuInstanceId = instance.id if instance else 0xFFFFFFFF
        into.computeInstanceId = compute.id if compute else 0xFFFFFFFF


def alive(processes: list[SimProcess]) -> list[SimProcess]:
    return [p for p in processes if not p.is_real or Path(f"/proc/{p.pid}").exists()]


# ---- MIG


def nvmlDeviceGetMigMode(state: State, device: Any, current: Any, pending: Any) -> None:
    gpu = state.gpu(number_of(device))
    if not gpu.can_mig:
        raise Refused(driver.NOT_SUPPORTED)
    current._obj.value, pending._obj.value = gpu.mig, gpu.pending


def nvmlDeviceSetMigMode(state: State, device: Any, mode: Any, status: Any) -> None:
    status._obj.value = driver.set_mig(state, number_of(device), bool(plain(mode)))


def nvmlDeviceIsMigDeviceHandle(state: State, device: Any, found: Any) -> None:
    found._obj.value = _device(state, device)[1] is not None


def nvmlDeviceGetMaxMigDeviceCount(state: State, device: Any, count: Any) -> None:
    gpu = state.gpu(number_of(device))
    count._obj.value = max(each.compute for each in gpu.profiles) if gpu.can_mig else 0


def nvmlDeviceGetMigDeviceHandleByIndex(state: State, device: Any, index: Any, found: Any) -> None:
    computes = state.gpu(number_of(device)).computes()
    if plain(index) >= len(computes):
        raise Refused(driver.NOT_FOUND)
    put_handle(found, computes[plain(index)][1].handle | 1)


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(state: State, part: Any, device: Any) -> None:
    put_handle(device, _part(state, part)[0].handle)


def nvmlDeviceGetGpuInstanceId(state: State, part: Any, number: Any) -> None:
    number._obj.value = _part(state, part)[1].id


def nvmlDeviceGetComputeInstanceId(state: State, part: Any, number: Any) -> None:
    number._obj.value = _part(state, part)[2].id


def nvmlDeviceGetAttributes_v2(state: State, part: Any, found: Any) -> None:
    gpu, instance, compute = _part(state, part)
    known, into = profile_of(gpu, instance), found._obj
    into.multiprocessorCount = known.multiprocessors * compute.slices // known.compute
    into.gpuInstanceSliceCount = known.compute
    into.computeInstanceSliceCount = compute.slices
    into.memorySizeMB = known.memory_mb


def nvmlSystemGetDriverVersion(_state: State, buffer: Any, _size: Any) -> None:
    put_text(buffer, "simulated")
