"""The CUDA driver, as far as a worker needs it: calls that raise, and memory that is given back.

cuda-python is optional; where it is missing, or no driver, there is no :class:`Driver` and batches
are copied by torch (:mod:`shunter.handlers.queue.tensor_queue`).
"""

from __future__ import annotations

import copy
import importlib
from contextlib import ExitStack
from typing import Any


class DeviceError(RuntimeError):
    """A call of the driver failed; the message names it.

    What fails once a queue is in use is the device itself: a context in which a kernel has failed
    never works again, and its process must end.
    """


class NotSupported(DeviceError):
    """The device, its driver or the binding has no such function: another way may do."""


_NOT_SUPPORTED = 801
"""CUDA_ERROR_NOT_SUPPORTED."""


def cuda_driver() -> Any:
    """cuda-python's module of the driver. Raises ImportError without it."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ModuleNotFoundError:
        return importlib.import_module("cuda.cuda")  # its name before 12.6


class Driver:
    """The driver on one device, with torch's context of it.

    Memory, streams and events live until :attr:`made` is closed.
    """

    def __init__(self, module: Any, ordinal: int) -> None:
        """``ordinal`` as torch counts. Raises DeviceError, RuntimeError when no driver is there."""
        self.module = module
        self.made = ExitStack()
        """Gives back what was made, the last first."""
        self._done = int(module.CUresult.CUDA_SUCCESS)
        self._not_ready = int(module.CUresult.CUDA_ERROR_NOT_READY)
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", ordinal)
        self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.made.callback(self.call, "cuDevicePrimaryCtxRelease", self.device)
        self.enter()

    def part(self) -> Driver:
        """The same driver, for what is given back earlier; the whole one must outlive it."""
        found = copy.copy(self)
        found.made = ExitStack()
        return found

    def call(self, name: str, *arguments: Any) -> Any:
        """The first result of a function; None if it has none. Raises DeviceError."""
        found = self.results(name, *arguments)
        return found[0] if found else None

    def results(self, name: str, *arguments: Any) -> list[Any]:
        """All results of a function. Raises DeviceError: NotSupported when there is none."""
        try:
            error, *found = getattr(self.module, name)(*arguments)
        except (AttributeError, RuntimeError) as failure:  # an older binding, an older driver
            raise NotSupported(f"{name}: {failure}") from failure
        except TypeError as failure:
            raise DeviceError(
                f"{name}: cuda-python takes other arguments than this program gives ({failure}); "
                "install one that is known: pip install 'shunter[gpu]'"
            ) from failure
        if int(error) != self._done:
            kind = NotSupported if int(error) == _NOT_SUPPORTED else DeviceError
            raise kind(f"{name}: {getattr(error, 'name', error)}")
        return found

    def enter(self) -> None:
        """Make it this thread's device, for the calls that follow; torch sees that, too."""
        self.call("cuCtxSetCurrent", self.context)

    def can(self, attribute: str) -> bool:
        """Whether the device has one of ``CUdevice_attribute``."""
        return bool(self.attribute(attribute))

    def attribute(self, name: str) -> int:
        """One of ``CUdevice_attribute``."""
        wanted = getattr(self.module.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", wanted, self.device))

    def stream(self, *, urgent: bool | None = None) -> Any:
        """A stream that waits for no other: of the highest priority, of the lowest, of the usual.

        Blocks of an urgent kernel are placed before those of others that wait for room.
        """
        flags = int(self.module.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if urgent is None:
            made = self.call("cuStreamCreate", flags)
        else:
            lowest, highest = self.results("cuCtxGetStreamPriorityRange")
            priority = highest if urgent else lowest
            made = self.call("cuStreamCreateWithPriority", flags, priority)
        self.made.callback(self.call, "cuStreamDestroy", made)
        return made

    def event(self) -> Any:
        """An event to wait for."""
        flags = int(self.module.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        made = self.call("cuEventCreate", flags)
        self.made.callback(self.call, "cuEventDestroy", made)
        return made

    def is_done(self, event: Any) -> bool:
        """Whether everything before it has been done. Raises DeviceError if some of it failed."""
        error = int(self.module.cuEventQuery(event)[0])
        if error not in (self._done, self._not_ready):
            raise DeviceError(f"cuEventQuery: {self.module.CUresult(error).name}")
        return error == self._done
