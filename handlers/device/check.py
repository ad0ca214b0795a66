"""A gate for eager models on a device: the host must not be far ahead of what runs there.

Kernels are queued; a thread that stands still has stopped nothing that is in the queue. So at each
boundary the thread first waits for the segment that it launched some boundaries ago: at most as
many are on the device when it stands still. That is the virtual host queue of REEF's version for
NVIDIA devices (section 4.3), with segments for kernels. For what is captured in CUDA graphs there
are better ways (:mod:`shunter.handlers.device.ladder`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

WINDOW = 2
"""Segments that may be on the device at once: one runs, the next is there when it ends."""


class Mark(Protocol):
    """A point of the device's queue."""

    def record(self) -> None:
        """Put it at the end of the queue."""

    def synchronize(self) -> None:
        """Return when the device is there."""


class DeviceCheck:
    """In place of a gate's check: waits for older segments, then looks at the gate."""

    def __init__(
        self,
        check: Callable[[], None],
        mark: Callable[[], Mark],
        window: int = WINDOW,
        is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing,
    ) -> None:
        """``mark`` makes a new mark; ``window`` segments may be on the device."""
        self._check, self._mark, self._window = check, mark, window
        self._is_capturing = is_capturing
        self._marks: deque[Mark] = deque()

    def __call__(self) -> None:
        """A boundary has come."""
        if self._is_capturing():
            return  # a handler captures a graph: nothing runs, and to wait would spoil it
        mark = self._mark()
        mark.record()
        self._marks.append(mark)
        while len(self._marks) >= self._window:
            self._marks.popleft().synchronize()
        self._check()


class StreamMark:
    """A mark in the queue of a device's current stream, whatever device is the current one."""

    def __init__(self, device: torch.device) -> None:
        """Nothing is recorded yet."""
        self._device, self._event = device, torch.cuda.Event()

    def record(self) -> None:
        """Put it at the end of the queue."""
        self._event.record(torch.cuda.current_stream(self._device))

    def synchronize(self) -> None:
        """Return when the device is there."""
        self._event.synchronize()


def catch_up(device: torch.device) -> bool:
    """Return when the device has done everything; False, at once, while a graph is captured."""
    if torch.cuda.is_current_stream_capturing():
        return False
    torch.cuda.synchronize(device)
    return True


def unknown_time_ns() -> int:
    """Of a device's multiprocessors: how many are busy is not known, and 0 says so."""
    return 0


def device_of_model(model: nn.Module) -> torch.device | None:
    """The CUDA device that a model's weights are on; None where there is none."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cuda":
            return tensor.device
    return None
