"""A budget of a GPU's memory for hot weights, and the stream that fills it.

Torch's own allocator has the memory. It is given back when the GPU does not compute with it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from typing import Any, Protocol

import torch

from shunter.handlers.weights.files import WeightFile
from shunter.handlers.weights.hot_memory import CHUNK, NoRoom, chunks_of


class Driver(Protocol):
    """What is needed of a device: memory, copies on a stream, and marks on it."""

    device: torch.device

    def empty(self, size: int) -> torch.Tensor:
        """Bytes. Raises torch.OutOfMemoryError."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin to copy bytes of the host, behind all copies that were begun before."""

    def mark(self) -> Any:
        """What is reached when all copies until now have ended."""

    def stream(self) -> int:
        """Number of the queue of work that the calling thread computes on."""

    def wait(self, mark: Any) -> None:
        """Let what is computed from now on in that queue wait for a mark; return at once."""

    def finish(self, mark: Any) -> None:
        """Return when a mark is reached."""

    def rest(self) -> None:
        """Return when what was computed until now, in whatever queue, has ended."""

    def pinned(self, file: WeightFile) -> Pinned | None:
        """A file's data where copies begin best; None: where it is. Raises OSError."""

    def trim(self) -> None:
        """Let other processes have the memory that this one does not use."""

    def reserved(self) -> int:
        """Bytes that others cannot have, whether this process uses them or not."""


class Cuda:
    """A GPU."""

    def __init__(self, index: int) -> None:
        """Takes the GPU's memory for a context."""
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)

    def empty(self, size: int) -> torch.Tensor:
        """Of the copies' stream: it may fill them at once."""
        with torch.cuda.stream(self._stream):
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Without a stop in between where the host's memory is pinned."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Any:
        """An event."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def stream(self) -> int:
        """A handler may choose one."""
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def wait(self, mark: Any) -> None:
        """The GPU does, not the host."""
        torch.cuda.current_stream(self.device).wait_event(mark)

    def finish(self, mark: Any) -> None:
        """In the host."""
        mark.synchronize()

    def rest(self) -> None:
        """Whoever has not taken its results yet has them then."""
        torch.cuda.synchronize(self.device)

    def pinned(self, file: WeightFile) -> Pinned:
        """In a mapping of its own."""
        return Pinned(file, self.device)

    def trim(self) -> None:
        """Of torch's allocator."""
        torch.cuda.empty_cache()

    def reserved(self) -> int:
        """By torch's allocator; what else that can say is not made into a table for it."""
        said = torch.cuda.memory_stats_as_nested_dict(self.device)
        return int(said["reserved_bytes"]["all"]["current"])

    def free_bytes(self) -> int:
        """What the GPU would still give."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free)


class DeviceMemory:
    """Memory of a device that models get and give back. Any thread may use it."""

    def __init__(self, budget: int, driver: Driver) -> None:
        """Of at most ``budget`` bytes, which are taken from the device when they are needed."""
        self.driver = driver
        self._budget = budget // CHUNK
        self._lock = threading.Lock()
        self._used = 0
        self._taken = 0
        """Bytes that were taken from the device: what was given back is kept for the next."""

    @property
    def free_bytes(self) -> int:
        """What can be had."""
        with self._lock:
            return (self._budget - self._used) * CHUNK

    def take(self, size: int) -> torch.Tensor:
        """So many bytes in one piece; what is in them is not said. Raises NoRoom."""
        count = chunks_of(size)
        with self._lock:
            if count > self._budget - self._used:
                raise NoRoom(f"{size} bytes, {(self._budget - self._used) * CHUNK} are free")
            self._used += count
        try:
            return self._empty(count * CHUNK)[:size]
        except torch.OutOfMemoryError as error:
            self.give_back(size)
            raise NoRoom(f"the device has no {size} bytes left: {error}") from error

    def _empty(self, size: int) -> torch.Tensor:
        before = self.driver.reserved()
        try:
            found = self.driver.empty(size)
        except torch.OutOfMemoryError:
            self.trim()
            with self._lock:
                self._taken -= size  # which is counted as used, and not there yet
            before = self.driver.reserved()
            found = self.driver.empty(size)
        with self._lock:
            self._taken += max(0, self.driver.reserved() - before)
            is_over = self._taken > self._budget * CHUNK
        if is_over:  # what is kept has other sizes than what is needed
            self.trim()
        return found

    def trim(self) -> None:
        """Let others have what was given back."""
        self.driver.trim()
        with self._lock:
            self._taken = self._used * CHUNK

    def give_back(self, size: int) -> None:
        """Of ``size`` bytes that were taken. Nobody may refer to them any more."""
        with self._lock:
            self._used -= chunks_of(size)


class Pinned:
    """The data of a file in memory that a GPU copies by itself.

    A mapping of its own, shared by all processes: a pinned page that is private would be a copy.
    """

    def __init__(self, file: WeightFile, device: torch.device) -> None:
        """Raises OSError when the driver does not allow it."""
        self._file, self._device = file, device  # who holds the file keeps it from being swept
        descriptor = os.open(file.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            content = mmap.mmap(descriptor, len(file.content), mmap.MAP_SHARED)
        finally:
            os.close(descriptor)
        self._whole = torch.frombuffer(content, dtype=torch.uint8)
        self.data = self._whole[file.data_offset :]
        """Bytes, which nobody may change."""
        address, size = self._whole.data_ptr(), self._whole.numel()
        with torch.cuda.device(device):
            error = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
            if error:
                with contextlib.suppress(RuntimeError):  # which else the next kernel would meet
                    torch.zeros(1, device=device)
        if error:
            raise OSError(errno.ENOMEM, f"CUDA does not pin {size} bytes: error {error}")

    def close(self) -> None:
        """No copy may be on its way."""
        with torch.cuda.device(self._device):
            torch.cuda.cudart().cudaHostUnregister(self._whole.data_ptr())
