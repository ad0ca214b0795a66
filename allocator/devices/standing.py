"""How the GPUs of a machine stand, and how layouts are wanted of them. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shunter.allocator.devices.geometry import text_of
from shunter.allocator.devices.instances import GpuRecord


@dataclass(frozen=True)
class Standing:
    """How things stand; replaced as a whole."""

    gpus: tuple[GpuRecord, ...] = ()
    """Those that answer."""
    silent: int = 0
    """How many more there are that do not."""
    closing: frozenset[str] = frozenset()
    """MIG devices that are about to go: no work may begin there."""
    changing: int = 0
    """GPUs whose instances are being changed."""
    done: int = 0
    """Number of the layouts wanted last that are there, or were given up for now."""
    changes: int = 0
    undone: int = 0
    problem: str = ""
    whole: frozenset[str] = frozenset()
    """GPUs on which nothing is left half done; on others no work may begin."""

    @property
    def count(self) -> int:
        """GPUs of this machine."""
        return len(self.gpus) + self.silent

    @property
    def layouts(self) -> str:
        """For people."""
        there = (f"{each.index}: {_text(each)}" for each in self.gpus if each.mig == "on")
        return "; ".join(there)


def number_of(layouts: Iterable[str]) -> int:
    """By which wanted layouts are known; never 0.

    >>> number_of(["4g,3g"]) == number_of(("4g,3g",)) != number_of(["7g"])
    True
    """
    return 1 << 32 | zlib.crc32("|".join(layouts).encode())


def texts_for(standing: Standing, wanted: Mapping[str, str]) -> list[str]:
    """Layouts by UUID as a keeper wants them: one for each GPU, of others than these none.

    Not even the layout that is there: that may not be whole, or not be Shunter's to touch.
    """
    found = {each.index: wanted.get(each.uuid, "") for each in standing.gpus}
    return [found.get(index, "") for index in range(standing.count)]


def _text(gpu: GpuRecord) -> str:
    return text_of(gpu.layout, gpu.profiles)
