"""Memory that a device reads and writes by itself, and memory of the device as tensors."""

from __future__ import annotations

import math

import torch

from shunter.handlers.device.driver import DeviceError, Driver
from shunter.handlers.device.torch_types import torch_type


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
    """Bytes of a device as others see them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def cuda_view(
    address: int, shape: tuple[int, ...], dtype: str, device: torch.device
) -> torch.Tensor:
    """A tensor over memory of the device, without a copy. Raises DeviceError if torch makes one."""
    kind = torch_type(dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind, device=device)
    size = math.prod(shape) * kind.itemsize
    found = torch.as_tensor(_Shown(address, size), device=device)
    if found.data_ptr() != address:
        raise DeviceError("torch copies memory of the device instead of showing it")
    return found.view(kind).reshape(shape)
