"""Max-plus arithmetic over threads: how much work fits, with how many instances.

An *item* is one instance on t threads; ``item[t]`` says how much it is worth (how large a batch it
takes in time, or how many requests a second). ``best[c]`` is the most that instances on at most
c threads together are worth: an unbounded knapsack whose weight is the number of threads.
Everything is a vector over 0..C threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""Worth over 0..C threads, ascending; index 0 is 0."""


def convolve(left: Vector, right: Vector) -> Vector:
    """Most that both are worth together: ``max over a of left[a] + right[c - a]``."""
    size = len(left)
    padded = np.concatenate((np.full(size - 1, -np.inf), right))
    # Row c of this view is right[c], right[c-1], ..., right[0], -inf, ...
    shifted = np.lib.stride_tricks.sliding_window_view(padded, size)[:, ::-1]
    return (shifted + left).max(axis=1)


def at_most(item: Vector, instances: int) -> Vector:
    """Worth of at most ``instances`` instances; in about 2 log2(instances) convolutions."""
    result = np.zeros_like(item)
    power = np.maximum.accumulate(item)
    while instances:
        if instances & 1:
            result = convolve(result, power)
        instances >>= 1
        if instances:
            power = convolve(power, power)
    return result


def any_number(item: Vector) -> Vector:
    """Worth of as many instances as fit."""
    power, covered = np.maximum.accumulate(item), 1
    while covered < len(item) - 1:
        power, covered = convolve(power, power), covered * 2
    return power


@dataclass(frozen=True)
class Packing:
    """Worth by number of instances: ``rows[n][c]`` of at most n instances on at most c threads."""

    item: Vector
    rows: list[Vector]

    def threads_of(self, instances: int, capacity: int) -> list[int]:
        """Threads of each instance of a best packing, fewest threads first where it is equal."""
        wanted = self.rows[instances][capacity]
        while capacity > 0 and self.rows[instances][capacity - 1] == wanted:
            capacity -= 1
        found = []
        for n in range(instances, 0, -1):
            if self.rows[n - 1][capacity] == self.rows[n][capacity]:
                continue  # one instance fewer is worth as much
            worth = self.item[: capacity + 1] + self.rows[n - 1][capacity::-1]
            threads = int(np.argmax(worth))
            found.append(threads)
            capacity -= threads
        return found


def pack(item: Vector, capacities: tuple[int, ...], wanted: float, most: int) -> list[int] | None:
    """Fewest instances that are worth ``wanted`` on nodes of ``capacities`` threads.

    Returns the threads of each instance, None when ``most`` instances are not enough. No instance
    spans two nodes. Exact: ``rows`` holds the best for every number of instances, and the nodes
    are combined by the same max-plus product, over instances instead of threads.
    """
    packing = Packing(item, [np.zeros_like(item)])
    step = np.maximum.accumulate(item)
    for _ in range(most + 1):
        split = _share(packing, capacities, wanted)
        if split is not None:
            pairs = zip(split, capacities, strict=True)
            return [t for n, c in pairs for t in packing.threads_of(n, c)]
        if len(packing.rows) > most:
            break
        packing.rows.append(convolve(packing.rows[-1], step))
    return None


def _share(packing: Packing, capacities: tuple[int, ...], wanted: float) -> list[int] | None:
    """Instances per node whose sum is the last row's number and that are worth ``wanted``."""
    last = len(packing.rows) - 1
    if len(capacities) == 1:
        return [last] if packing.rows[last][capacities[0]] >= wanted else None
    if sum(packing.rows[last][c] for c in capacities) < wanted:
        return None  # not even with that many on each node
    by_node = [np.array([row[c] for row in packing.rows]) for c in capacities]
    partial = [by_node[0]]
    for column in by_node[1:]:
        partial.append(convolve(partial[-1], column))
    if partial[-1][last] < wanted:
        return None
    split = []
    remaining = last
    for before, column in zip(partial[-2::-1], by_node[:0:-1], strict=True):
        here = int(np.argmax(before[remaining::-1] + column[: remaining + 1]))
        split.append(here)
        remaining -= here
    return [remaining, *reversed(split)]
