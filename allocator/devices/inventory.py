"""Every GPU of this machine with its instances, at one moment, or look by look."""

from __future__ import annotations

import logging
from typing import Any

import pynvml

from shunter.allocator.devices.instances import GpuRecord
from shunter.allocator.devices.mig import MigGpu, each_gpu, nvml_started

LOGGER = logging.getLogger("shunter.devices")
PATIENCE = 3
"""Looks in a row at which a GPU does not answer before the others are looked at without it."""


def take_stock(nvml: Any = pynvml) -> tuple[GpuRecord, ...]:
    """Every GPU of this machine that answers; raises DeviceError, with advice, where none does."""
    with nvml_started(nvml):
        found, silent = each_gpu(_record, nvml)
    for why in silent.values():
        LOGGER.warning("%s", why)
    return tuple(found)


class Stock:
    """Every GPU, look by look. One that is lost holds none of the others up."""

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml
        self._failed: dict[int, int] = {}
        """Looks in a row at which the GPU at this index did not answer."""

    def look(self) -> tuple[tuple[GpuRecord, ...], int]:
        """Those that answer, and how many do not.

        Raises DeviceError where none does; also where one has not answered a few times only, for
        whoever is there shall not leave for one failed call.
        """
        with nvml_started(self._nvml):
            found, silent = each_gpu(_record, self._nvml)
        self._failed = {index: self._failed.get(index, 0) + 1 for index in silent}
        for index, count in self._failed.items():
            if count <= PATIENCE:
                raise silent[index]
        return tuple(found), len(silent)


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
