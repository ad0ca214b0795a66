"""One name for each device: the UUID that NVML knows of what CUDA_VISIBLE_DEVICES may say.

``python -m shunter.allocator.devices.names -- NAME...`` prints what they stand for, as a list in
JSON: for each name its UUID, the UUID of the GPU that it is a part of, and its first memory slice
and how many it has there; and null for a name that is no device's. It prints ``null`` where there
is no NVML: then a name can only stand for itself.

What is asked of NVML is in :func:`inventory`; the rest is pure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pynvml

MEMORY_SLICES = 8
"""Of a GPU that can be parted: a place in it is told in these."""


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG instance of one."""

    uuid: str
    gpu: str
    """UUID of the GPU: its own, or that of the one it is a part of."""
    start: int = 0
    """Its first memory slice there."""
    size: int = MEMORY_SLICES
    """Memory slices that it has; compute instances of one GPU instance have the same ones."""


@dataclass(frozen=True)
class Instance:
    """A MIG instance with its numbers, by which older drivers name it."""

    device: Device
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True)
class Gpu:
    """A GPU at its place in NVML's order, that of the PCI bus."""

    device: Device
    instances: tuple[Instance, ...] = ()


def resolve(name: str, gpus: Sequence[Gpu]) -> Device | None:
    """The device that a name stands for; None when it is no device's, or that of several.

    A number, a UUID or the beginning of one that no other has, and ``MIG-GPU-<uuid>/<gi>/<ci>``.
    """
    if name.isascii() and name.isdigit():
        return gpus[int(name)].device if int(name) < len(gpus) else None
    if name.startswith("MIG-GPU-"):
        return _by_numbers(name.removeprefix("MIG-"), gpus)
    devices = [gpu.device for gpu in gpus]
    devices += [instance.device for gpu in gpus for instance in gpu.instances]
    return _by_uuid(name, devices)


def _by_numbers(name: str, gpus: Sequence[Gpu]) -> Device | None:
    uuid, *numbers = name.split("/")
    found = _by_uuid(uuid, [gpu.device for gpu in gpus])
    for gpu in gpus:
        for each in gpu.instances if gpu.device == found else ():
            if numbers == [str(each.gpu_instance), str(each.compute_instance)]:
                return each.device
    return None


def _by_uuid(name: str, devices: Iterable[Device]) -> Device | None:
    wanted = name.lower()
    kind, dash, rest = wanted.partition("-")
    if kind not in ("gpu", "mig") or not dash or not rest:
        return None
    found = [device for device in devices if device.uuid.lower().startswith(wanted)]
    return found[0] if len(found) == 1 else None


def inventory(nvml: Any = pynvml) -> tuple[Gpu, ...] | None:
    """Every GPU of this machine with its MIG instances; None where there is no NVML."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        count = nvml.nvmlDeviceGetCount()
        return tuple(_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count))
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    try:
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:  # it cannot be parted
        most = 0
    instances = []
    for index in range(most):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:  # there are holes
            continue
        instances.append(_instance(nvml, handle, uuid, instance))
    return Gpu(Device(uuid, uuid), tuple(instances))


def _instance(nvml: Any, parent: Any, gpu: str, handle: Any) -> Instance:
    number = nvml.nvmlDeviceGetGpuInstanceId(handle)
    start, size = 0, MEMORY_SLICES
    try:
        of_parent = nvml.nvmlDeviceGetGpuInstanceById(parent, number)
        place = nvml.nvmlGpuInstanceGetInfo(of_parent).placement
        start, size = int(place.start), int(place.size)
    except nvml.NVMLError:
        # Who may not ask takes it to be all over its GPU: it overlaps with too much, never too
        # little.
        pass
    device = Device(_text(nvml.nvmlDeviceGetUUID(handle)), gpu, start, size)
    return Instance(device, number, nvml.nvmlDeviceGetComputeInstanceId(handle))


def _text(found: str | bytes) -> str:
    return found.decode() if isinstance(found, bytes) else found


def main(names: Sequence[str], nvml: Any = pynvml) -> None:
    """Print what the names stand for."""
    gpus = inventory(nvml)
    if gpus is None:
        print("null")
        return
    found = [resolve(name, gpus) for name in names]
    print(json.dumps([device and asdict(device) for device in found]))


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--"])
