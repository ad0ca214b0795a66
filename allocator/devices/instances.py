"""Instances of a GPU as they are found there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.allocator.devices.geometry import Placement


@dataclass(frozen=True)
class Part:
    """A compute instance: a MIG device, what a program can use."""

    number: int
    uuid: str
    """For CUDA_VISIBLE_DEVICES."""
    compute: int
    """Its compute slices."""
    memory_bytes: int
    used_bytes: int
    pids: tuple[int, ...]


@dataclass(frozen=True)
class GpuInstance:
    """An instance of a GPU and what it is parted into."""

    number: int
    profile: str
    compute: int
    placement: Placement | None
    """None: who may not list instances is not told where they lie."""
    parts: tuple[Part, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it is one MIG device with everything in it."""
        return len(self.parts) == 1 and self.parts[0].compute == self.compute

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that run on it."""
        return tuple(pid for part in self.parts for pid in part.pids)
