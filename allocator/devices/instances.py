"""GPUs and their instances as they are found at one moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shunter.allocator.devices.geometry import (
    Layout,
    Placement,
    Profile,
    Profiles,
    fault,
    text_of,
)


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


@dataclass(frozen=True)
class GpuRecord:
    """A GPU at one moment."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    used_bytes: int
    mig: str
    """``on``, ``off``, ``waits for a reset`` or ``none``: it cannot be parted."""
    profiles: Profiles
    instances: tuple[GpuInstance, ...]
    pids: tuple[int, ...]
    """Processes that run on it as a whole."""

    @property
    def slices(self) -> int:
        """Its memory slices; 1 when it cannot be parted."""
        places = [start + size for profile in self.profiles for start, size in profile.places]
        return max(places, default=1)

    @property
    def layout(self) -> Layout:
        """Its instances, as far as it is known where they lie."""
        return frozenset(each.placement for each in self.instances if each.placement)

    def profile_of(self, instance: GpuInstance) -> Profile | None:
        """Of one of its instances; None where the driver does not tell."""
        number = instance.placement.profile if instance.placement else None
        return next((each for each in self.profiles if each.id == number), None)

    def open_slices(self) -> set[int]:
        """Memory slices where an instance could still be made."""
        return open_slices(self.layout, self.profiles) if self.mig == "on" else set()

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "index": self.index,
            "uuid": self.uuid,
            "name": self.name,
            "memory_bytes": self.memory_bytes,
            "used_bytes": self.used_bytes,
            "mig": self.mig,
            "memory_slices": self.slices,
            "layout": text_of(self.layout, self.profiles) if self.mig == "on" else None,
            "pids": list(self.pids),
            "instances": [self._instance(each) for each in self.instances],
        }

    def _instance(self, each: GpuInstance) -> dict[str, Any]:
        profile = self.profile_of(each)
        return {
            "profile": each.profile,
            "start": each.placement.start if each.placement else None,
            "size": each.placement.size if each.placement else None,
            "compute_slices": each.compute,
            "multiprocessors": profile.multiprocessors if profile else None,
            "mig_devices": [
                {
                    "uuid": part.uuid,
                    "compute_slices": part.compute,
                    "memory_bytes": part.memory_bytes,
                    "used_bytes": part.used_bytes,
                    "pids": list(part.pids),
                }
                for part in each.parts
            ],
        }


def open_slices(layout: Layout, profiles: Iterable[Profile]) -> set[int]:
    """Memory slices that one more instance could have."""
    known = tuple(profiles)
    found: set[int] = set()
    for profile in known:
        for each in profile.placements():
            if each not in layout and fault(layout | {each}, known) is None:
                found |= set(range(each.start, each.end))
    return found


def parts_of(gpus: Iterable[GpuRecord]) -> Iterator[Part]:
    """All their MIG devices."""
    return (part for gpu in gpus for instance in gpu.instances for part in instance.parts)


def used_by(gpus: Iterable[GpuRecord], names: Sequence[str]) -> tuple[int, int]:
    """Memory of one process on the first of these devices, and all that this one has.

    The first is 0 where that is not known: others than these names' model are there, or nobody.
    """
    for part in parts_of(gpus):
        if names and part.uuid == names[0]:
            alone = part.pids and len(part.pids) == names.count(names[0])
            return part.used_bytes // len(part.pids) if alone else 0, part.memory_bytes
    return 0, 0
