"""The least of many keys, in a number of steps that grows with the logarithm of how many. Pure.

A full binary tree whose leaves are the keys and whose inner nodes hold the least below them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush


class Tournament:
    """Keys at fixed positions. Changing one takes log n steps, and so does finding each next one.

    >>> each = Tournament([3.0, 1.0, 2.0])
    >>> list(each.ascending()), list(each.at_most(2.0))
    ([(1.0, 1), (2.0, 2), (3.0, 0)], [1, 2])
    """

    def __init__(self, keys: Sequence[float]) -> None:
        """Infinite is a key that never wins."""
        self._leaves = 1 << max(0, len(keys) - 1).bit_length()
        missing = [math.inf] * (self._leaves - len(keys))
        self._tree = [math.inf] * self._leaves + [*keys, *missing]
        for node in range(self._leaves - 1, 0, -1):
            self._tree[node] = min(self._tree[2 * node], self._tree[2 * node + 1])

    def __getitem__(self, at: int) -> float:
        """The key at a position."""
        return self._tree[self._leaves + at]

    def __setitem__(self, at: int, key: float) -> None:
        """Change the key at a position."""
        tree, node = self._tree, self._leaves + at
        tree[node] = key
        while node > 1:
            node //= 2
            least = min(tree[2 * node], tree[2 * node + 1])
            if tree[node] == least:
                return
            tree[node] = least

    def ascending(self) -> Iterator[tuple[float, int]]:
        """Finite keys with their positions, the least first."""
        tree, open_nodes = self._tree, [(self._tree[1], 1)]
        while open_nodes and open_nodes[0][0] < math.inf:
            key, node = heappop(open_nodes)
            if node >= self._leaves:
                yield key, node - self._leaves
            else:
                heappush(open_nodes, (tree[2 * node], 2 * node))
                heappush(open_nodes, (tree[2 * node + 1], 2 * node + 1))

    def at_most(self, bound: float) -> Iterator[int]:
        """Positions of keys up to a bound, the first position first."""
        tree, open_nodes = self._tree, [1]
        while open_nodes:
            node = open_nodes.pop()
            if tree[node] > bound or tree[node] == math.inf:
                continue
            if node >= self._leaves:
                yield node - self._leaves
            else:
                open_nodes += [2 * node + 1, 2 * node]
