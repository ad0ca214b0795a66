"""NVML's library over simulated GPUs: what pynvml calls in place of the functions in C.

:func:`installed` puts it beneath the unmodified pynvml, so that the same code runs over simulated
and real GPUs. Each method has the name of a C function and answers one of NVML's numbers, 0 for
success. Only what a driver does is here; how long it takes and which calls go wrong is said in the
:class:`shunter.allocator.devices.simulated.state.State`.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from shunter.allocator.devices.simulated import device_calls, driver, instance_calls
from shunter.allocator.devices.simulated.state import Fault, Refused, State
from shunter.allocator.devices.simulated.store import Store

REAL_SECONDS = 0.5
"""Of creating or destroying an instance, so that a usual change takes the 2 s that PROTEAN saw."""

CHANGES = frozenset(
    {
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstance",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceDestroy",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceDestroy",
    }
)
_SLOW = frozenset(name for name in CHANGES if "GpuInstance" in name and "Compute" not in name)


def _error_string(code: int) -> bytes:
    """For what pynvml has no words of its own."""
    names = {
        driver.IN_USE: b"In use by another client",
        driver.INSUFFICIENT_RESOURCES: b"Insufficient Resources",
    }
    return names.get(int(code), b"Unknown Error")


PLAIN: dict[str, Callable[..., Any]] = {
    "nvmlInitWithFlags": lambda _flags: 0,
    "nvmlShutdown": lambda: 0,
    "nvmlErrorString": _error_string,
}
"""Functions for which no GPU is needed."""
CALLS: dict[str, Callable[..., None]] = {
    name: function
    for module in (device_calls, instance_calls)
    for name, function in vars(module).items()
    if name.startswith("nvml")
}


class SimulatedLibrary:
    """In the place of libnvidia-ml.so.1."""

    def __init__(self, store: Store, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store, self._sleep = store, sleep

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # pynvml takes a missing attribute as a function that this version of NVML does not have.
        if name in PLAIN:
            return functools.partial(PLAIN[name])
        if name not in CALLS:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> int:
        state = self._store.read()
        if name not in CHANGES and not state.faults:
            return _answer(name, state, arguments)
        if name in _SLOW and state.seconds:
            self._sleep(state.seconds)
        with self._store.change() as state:
            _bury(state)
            state.calls += name in CHANGES
            fault = _due(state, name)
            failed = fault.code if fault else 0
            code = failed if fault and not fault.done else _answer(name, state, arguments)
        if fault and fault.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return failed or code


def _answer(name: str, state: State, arguments: tuple[Any, ...]) -> int:
    try:
        CALLS[name](state, *arguments)
    except Refused as refused:
        return refused.code
    return 0


def _bury(state: State) -> None:
    """What processes of this machine held that have ended is free."""
    for gpu in state.gpus:
        for each in (gpu, *(compute for _, compute in gpu.computes())):
            each.processes = device_calls.alive(each.processes)


def _due(state: State, name: str) -> Fault | None:
    """The fault that this call meets, counted."""
    for fault in state.faults:
        if fault.times and (fault.call == name or (not fault.call and name in CHANGES)):
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= fault.times > 0
            return fault
    return None


@contextmanager
def installed(library: SimulatedLibrary) -> Iterator[None]:
    """Put a library beneath pynvml for a while."""
    before = pynvml.nvmlLib
    use(library)
    try:
        yield
    finally:
        use(before)


def use(library: Any) -> None:
    """Let pynvml call this library from now on; None: the machine's own."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
