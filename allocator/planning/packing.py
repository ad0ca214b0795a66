"""Max-plus arithmetic over threads: how much work fits, with how many instances.

An *item* is one instance on t threads; ``item[t]`` says how much it is worth (how large a batch it
takes in time, or how many requests a second). What several instances on at most c threads together
are worth at most is an unbounded knapsack whose weight is the number of threads. Everything is a
vector over 0..C threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""Worth over 0..C threads, ascending; index 0 is 0."""


def convolve(left: Vector, right: Vector) -> Vector:
    """Most that both are worth together: ``max over a of left[a] + right[c - a]``."""
    size = len(left)
    padded = np.concatenate((right[::-1], np.full(size - 1, -np.inf)))
    # Row c of this view is right[c], right[c-1], ..., right[0], -inf, ...
    shifted = np.lib.stride_tricks.sliding_window_view(padded, size)[::-1]
    return (shifted + left).max(axis=1)


class Packing:
    """The best that a number of instances of an item are worth, and on which threads."""

    def __init__(self, item: Vector) -> None:
        """``item``: what one instance is worth; may fall with the threads."""
        self._item = item
        self._rows = {0: np.zeros_like(item), 1: np.maximum.accumulate(item)}

    def row(self, instances: int) -> Vector:
        """Worth of at most ``instances`` instances on at most 0..C threads."""
        if instances not in self._rows:
            half = instances // 2
            self._rows[instances] = convolve(self.row(half), self.row(instances - half))
        return self._rows[instances]

    def unlimited(self) -> Vector:
        """Worth of as many instances as fit."""
        # Rounded up to a power of two, whose halves are equal: half the products.
        return self.row(1 << (len(self._item) - 2).bit_length())

    def worth(self, instances: int, capacities: Sequence[int]) -> float:
        """Worth of at most ``instances`` on nodes of ``capacities`` threads, none on two nodes."""
        return float(self._over_nodes(instances, capacities)[-1][instances])

    def threads(self, instances: int, capacities: Sequence[int], wanted: float) -> list[int]:
        """Threads of each of so many instances that are worth ``wanted`` together.

        They are the fewest on a single node; on several, few: the nodes are taken in turn.
        """
        split = self._split(instances, capacities)
        most = [self.row(n)[c] for n, c in zip(split, capacities, strict=True)]
        found: list[int] = []
        for i, n in enumerate(split):
            row = self.row(n)
            least = int(np.searchsorted(row, min(most[i], wanted - sum(most[i + 1 :]))))
            wanted -= row[least]
            found += self._unpack(n, least)
        return found

    def _unpack(self, instances: int, capacity: int) -> list[int]:
        if instances == 0 or capacity == 0:
            return []
        if instances == 1:
            return [int(np.argmax(self._item[: capacity + 1]))]
        half = instances // 2
        worth = self.row(half)[: capacity + 1] + self.row(instances - half)[capacity::-1]
        here = int(np.argmax(worth))
        return self._unpack(half, here) + self._unpack(instances - half, capacity - here)

    def _column(self, instances: int, capacity: int) -> Vector:
        """Worth on one node by the number of instances, 0 to ``instances``."""
        return np.array([self.row(min(n, capacity))[capacity] for n in range(instances + 1)])

    def _over_nodes(self, instances: int, capacities: Sequence[int]) -> list[Vector]:
        """Worth by number of instances on the first node, the first two, and so on."""
        if len(capacities) == 1:
            column = np.zeros(instances + 1)
            column[-1] = self.row(instances)[capacities[0]]  # the others are of no use
            return [column]
        partial = [self._column(instances, capacities[0])]
        for capacity in capacities[1:]:
            partial.append(convolve(partial[-1], self._column(instances, capacity)))
        return partial

    def _split(self, instances: int, capacities: Sequence[int]) -> list[int]:
        """Instances of each node."""
        partial = self._over_nodes(instances, capacities)
        split: list[int] = []
        for before, capacity in zip(partial[-2::-1], capacities[:0:-1], strict=True):
            column = self._column(instances, capacity)
            split.append(int(np.argmax(before[instances::-1] + column)))
            instances -= split[-1]
        return [instances, *reversed(split)]


def pack(item: Vector, capacities: Sequence[int], wanted: float, most: int) -> list[int] | None:
    """Fewest instances that are worth ``wanted`` on nodes of ``capacities`` threads.

    Returns the threads of each instance, None when ``most`` instances are not enough. No instance
    spans two nodes.
    """
    packing = Packing(item)

    def fits(instances: int) -> bool:
        return packing.worth(instances, capacities) >= wanted

    fewest = bisect_left(range(most + 1), True, key=fits)
    return packing.threads(fewest, capacities, wanted) if fewest <= most else None
