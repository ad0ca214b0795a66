"""Every GPU of this machine with its instances, at one moment."""

from __future__ import annotations

from typing import Any

import pynvml

from shunter.allocator.devices.instances import GpuRecord
from shunter.allocator.devices.mig import MigGpu, gpus, nvml_started


def take_stock(nvml: Any = pynvml) -> tuple[GpuRecord, ...]:
    """Every GPU of this machine; raises DeviceError, with advice, where NVML does not answer."""
    with nvml_started(nvml):
        return tuple(_record(gpu) for gpu in gpus(nvml))


def _record(gpu: MigGpu) -> GpuRecord:
    mode, (total, used) = gpu.mode(), gpu.memory()
    words = {(True, True): "on", (False, False): "off"}
    return GpuRecord(
        gpu.index,
        gpu.uuid,
        gpu.name,
        total,
        used,
        "none" if mode is None else words.get(mode, "waits for a reset"),
        () if mode is None else gpu.profiles,
        gpu.seen() if mode and mode[0] else (),
        gpu.pids() if mode is None or not mode[0] else (),
    )
