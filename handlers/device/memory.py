"""Memory of a device behind a tensor queue: rings of the same entries as those of the host.

A batch is one contiguous tensor wherever it begins. Where the length of a ring is a multiple of
what the device can map (2 MiB), its memory is mapped twice back to back, as on the host. Else its
first entries are copied a second time, behind its end.

This is also where a network card that writes to the device would come in: a double-mapped ring is
made so that its memory can be registered with one (GPUDirect RDMA) where the device can do that,
and a front end whose backend places payloads there has nothing to copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shunter.handlers.device.driver import DeviceError, Driver


@dataclass(frozen=True)
class DeviceRing:
    """A ring on a device, beside the host's."""

    address: int
    host: int
    """Address of the host's ring."""
    entries: int
    bytes: int
    """Of an entry."""
    mirrored: int
    """Entries at the beginning that lie behind the end once more; 0 where they are mapped there."""

    def copies(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """To, from and bytes of the copies that bring entries here. They do not wrap around."""
        size = self.bytes
        to, begin = self.address + first * size, self.host + first * size
        yield to, begin, count * size
        again = min(count, self.mirrored - first)
        if again > 0:
            yield to + self.entries * size, begin, again * size

    @property
    def rows(self) -> int:
        """Entries that a view of all of it has."""
        return self.entries + (self.mirrored or self.entries)


def runs(entries: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First entry and length of those that lie one behind the other.

    >>> list(runs([6, 7, 0, 1, 3]))
    [(6, 2), (0, 2), (3, 1)]
    """
    begin = 0
    for i in range(1, len(entries) + 1):
        if i == len(entries) or entries[i] != entries[i - 1] + 1:
            yield entries[begin], i - begin
            begin = i


def pin(driver: Driver, address: int, size: int) -> None:
    """Let the device read and write memory of the host by itself. Raises DeviceError."""
    portable = int(driver.module.CU_MEMHOSTREGISTER_PORTABLE)
    driver.call("cuMemHostRegister", address, size, portable)
    driver.made.callback(driver.call, "cuMemHostUnregister", address)


def allocate(driver: Driver, size: int) -> int:
    """Address of memory on the device. Raises DeviceError."""
    address = driver.call("cuMemAlloc", size)
    driver.made.callback(driver.call, "cuMemFree", address)
    return int(address)


def make_ring(driver: Driver, host: int, entries: int, size: int, batch: int) -> DeviceRing:
    """A ring for entries of ``size`` bytes, for batches up to ``batch``. Raises DeviceError."""
    if driver.can("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
        kind = _kind(driver)
        least = driver.module.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        if entries * size % driver.call("cuMemGetAllocationGranularity", kind, least) == 0:
            return DeviceRing(_map_twice(driver, kind, entries * size), host, entries, size, 0)
    batch = min(batch, entries)
    return DeviceRing(allocate(driver, (entries + batch) * size), host, entries, size, batch)


def _kind(driver: Driver) -> Any:
    cuda = driver.module
    kind = cuda.CUmemAllocationProp()
    kind.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    kind.location.id = int(driver.device)
    if driver.can("GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"):
        kind.allocFlags.gpuDirectRDMACapable = 1
    return kind


def _map_twice(driver: Driver, kind: Any, size: int) -> int:
    """Address of memory of ``size`` bytes that begins again behind its end."""
    cuda = driver.module
    with ExitStack() as made:
        handle = driver.call("cuMemCreate", size, kind, 0)
        made.callback(driver.call, "cuMemRelease", handle)
        base = driver.call("cuMemAddressReserve", 2 * size, 0, 0, 0)
        made.callback(driver.call, "cuMemAddressFree", base, 2 * size)
        for address in (int(base), int(base) + size):
            driver.call("cuMemMap", address, size, 0, handle, 0)
            made.callback(driver.call, "cuMemUnmap", address, size)
        access = cuda.CUmemAccessDesc()
        access.location = kind.location
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        driver.call("cuMemSetAccess", base, 2 * size, [access], 1)
        driver.made.enter_context(made.pop_all())
    return int(base)


class _Shown:
    """Memory of a device as others see it."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }


def cuda_view(
    address: int, shape: tuple[int, ...], dtype: str, device: torch.device
) -> torch.Tensor:
    """A tensor over memory of the device, without a copy. Raises DeviceError if torch makes one."""
    if 0 in shape:
        return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=device)
    found = torch.as_tensor(_Shown(address, shape, dtype), device=device)
    if found.data_ptr() != address:
        raise DeviceError(f"torch copies {dtype} instead of showing it")
    return found
