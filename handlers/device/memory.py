"""Memory that a device reads and writes by itself, and memory of the device as tensors."""

from __future__ import annotations

import numpy as np
import torch

from shunter.handlers.device.driver import DeviceError, Driver


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
