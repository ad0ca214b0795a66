"""A model's weights brought into hot memory while it may run, and dropped again.

The cold copy is mapped and stays; it is the truth, and a weight that has not come is read there.
A swap copies it in pieces, in the order of the layers, in a thread of its own. After each
group of layers an event says that these are there; whoever computes lets their weights be
the hot ones before a batch. Only the thread that computes changes what a weight is, so no operator
sees that half done.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shunter.handlers.weights.hot_memory import HotMemory
from shunter.handlers.weights.layout import Record
from shunter.handlers.weights.tensors import Weight

PIECE = 16 << 20
"""Bytes that are copied at a time: between two pieces a swap can be given up. From 16 times the
threshold of ``handlers/pool/handover.py`` on the C library is faster still."""
GROUP = 16 << 20
"""Bytes of a group of layers, about: as many as are worth an event."""


class GivenUp(Exception):
    """The swap was dropped before it had ended."""


@dataclass
class Group:
    """Weights that become hot together."""

    begin: int
    end: int
    weights: list[tuple[Weight, Record]]
    arrived: threading.Event = field(default_factory=threading.Event)


def groups_of(weights: Sequence[Weight], records: Sequence[Record]) -> list[Group]:
    """Weights by their order, about ``GROUP`` bytes together."""
    groups: list[Group] = []
    for weight, record in zip(weights, records, strict=True):
        if not groups or record.end - groups[-1].begin > GROUP:
            groups.append(Group(record.begin, record.end, []))
        groups[-1].weights.append((weight, record))
        groups[-1].end = record.end
    return groups


class HotModel:
    """A model that comes and goes. All but the copy itself is for the thread that computes."""

    def __init__(
        self,
        weights: Sequence[Weight],
        records: Sequence[Record],
        cold: torch.Tensor,
        memory: HotMemory,
        copies: Executor,
    ) -> None:
        """``cold``: the data of ``records``, which are the content of ``weights``, as bytes.

        Constants of graphs stay there: what the graph has made of them may lie in their memory.
        """
        movable = [each for each in zip(weights, records, strict=True) if not each[0].is_constant]
        self._weights, self._records = [w for w, _ in movable], [r for _, r in movable]
        self._cold, self._memory, self._copies = cold, memory, copies
        self.bytes = self._records[-1].end if movable else 0
        """Of what comes and goes; the constants are behind it."""
        self._groups: list[Group] = []
        self._settled = 0
        """Groups whose weights are the hot ones."""
        self._address = 0
        self._hot = torch.empty(0, dtype=torch.uint8)
        self._swap: Future[float] | None = None
        self._is_over = threading.Event()

    @property
    def is_hot(self) -> bool:
        """Whether all weights are the hot ones."""
        return bool(self._groups) and self._settled == len(self._groups)

    def swap_in(self) -> Future[float]:
        """Begin to bring the weights in; seconds that it took, once it has.

        Raises NoRoom and OSError. A swap that is dropped ends with GivenUp.
        """
        if self._swap is not None:
            return self._swap
        self._address = self._memory.take(self.bytes)
        numbers = (ctypes.c_ubyte * self.bytes).from_address(self._address)
        self._hot = torch.frombuffer(numbers, dtype=torch.uint8)
        self._groups, self._settled = groups_of(self._weights, self._records), 0
        self._is_over = threading.Event()
        self._swap = self._copies.submit(
            _copy, self._groups, self._cold.data_ptr(), self._address, self._is_over
        )
        return self._swap

    def settle(self) -> bool:
        """Let the weights that have come be the hot ones, without waiting; whether all are.

        To be called between two batches.
        """
        while self._settled < len(self._groups) and self._groups[self._settled].arrived.is_set():
            for weight, record in self._groups[self._settled].weights:
                weight.move(self._hot, record)
            self._settled += 1
        return self.is_hot

    @contextlib.contextmanager
    def reading(self, *, learn: bool = False) -> Iterator[bool]:
        """Inside, a batch may compute with the weights, wherever they are; says whether all are
        hot. ``learn`` changes nothing here."""
        yield self.settle()

    def drop(self) -> None:
        """Let the weights be the cold ones and give the memory back. No batch may be running."""
        if self._swap is None:
            return
        self._is_over.set()
        if not self._swap.cancel():
            self._swap.exception()  # between two pieces it ends
        for group in self._groups[: self._settled]:
            for weight, record in group.weights:
                weight.move(self._cold, record)
        self._groups, self._settled, self._swap = [], 0, None
        storage = StorageWeakRef(self._hot.untyped_storage())
        self._hot = torch.empty(0, dtype=torch.uint8)
        if storage.expired():
            self._memory.give_back(self._address)
        else:  # a handler has kept a view of a weight
            self._memory.give_back_later(self._address, storage.expired)

    def close(self) -> None:
        """The model is no more."""
        self.drop()


def _copy(groups: Sequence[Group], source: int, target: int, is_over: threading.Event) -> float:
    begin = time.perf_counter()
    for group in groups:
        for start in range(group.begin, group.end, PIECE):
            if is_over.is_set():
                raise GivenUp
            size = min(PIECE, group.end - start)
            ctypes.memmove(target + start, source + start, size)  # others run meanwhile
        group.arrived.set()
    return time.perf_counter() - begin
