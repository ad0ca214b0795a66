"""How functions of NVML's library get their arguments from pynvml, and give something back.

What goes out is written where ``byref`` or an array of ctypes points to. A number that stands for a
GPU or an instance is an opaque pointer there. A MIG device has the number of its compute instance,
made odd.
"""

from __future__ import annotations

import ctypes
from typing import Any

from shunter.allocator.devices.geometry import Profile
from shunter.allocator.devices.simulated.state import SimGpu, SimInstance

_POINTERS = ctypes.POINTER(ctypes.c_void_p)


def number_of(handle: Any) -> int:
    """Of an opaque pointer."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def plain(value: Any) -> int:
    """Of an integer that may be one of ctypes."""
    return int(getattr(value, "value", value))


def put_handle(out: Any, number: int, index: int = 0) -> None:
    """Write an opaque pointer."""
    ctypes.cast(out, _POINTERS)[index] = number


def put_text(buffer: Any, text: str) -> None:
    """Write a text."""
    buffer.value = text.encode()


def profile_of(gpu: SimGpu, instance: SimInstance) -> Profile:
    """Of an instance."""
    return next(each for each in gpu.profiles if each.id == instance.profile)
