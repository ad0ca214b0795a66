"""Memory of a worker in which the tensors of one batch lie, and then those of the next."""

from __future__ import annotations

import torch

from shunter.handlers.device.torch_types import torch_type

ALIGN = 64


class Arena:
    """At the same address for every batch, until one is larger than all before it."""

    def __init__(self, *, pinned: bool = False, device: torch.device | None = None) -> None:
        """``pinned``: a device copies from it by itself."""
        self._pinned, self._device = pinned, device
        self._bytes = self._room(ALIGN)

    def _room(self, size: int) -> torch.Tensor:
        # Not what the process had there before, which a handler could see between two tensors.
        return torch.zeros(size, dtype=torch.uint8, device=self._device, pin_memory=self._pinned)

    def address(self, size: int) -> int:
        """Of so many bytes; what was there before is lost."""
        if size > len(self._bytes):
            wanted = max(size, 2 * len(self._bytes))
            self._bytes = self._bytes[:0].clone()  # it goes before the other comes
            self._bytes = self._room(wanted)
        return self._bytes.data_ptr()

    def tensor(self, offset: int, size: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A view of these bytes."""
        return self._bytes[offset : offset + size].view(torch_type(dtype)).reshape(shape)

    def take(self, other: Arena, size: int) -> None:
        """So many bytes of another one, behind what its device has to do."""
        self.address(size)
        self._bytes[:size].copy_(other._bytes[:size], non_blocking=True)

    def content(self, offset: int, size: int) -> memoryview:
        """The same as bytes, of the host."""
        return memoryview(self._bytes[offset : offset + size].numpy())
