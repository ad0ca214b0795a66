"""Which requests of a batch run together where they are padded: groups of like lengths.

Padded to the longest, a batch of unequal requests may cost more than it saves. What a group costs
is a line, ``fixed + cells * per_cell``: cells are the elements of its padded tensors. Where
``fixed`` weighs much, as on a GPU, all run together; where each cell costs, as on a CPU, short ones
do not wait for the padding of long ones.

The best groups follow one another in the order of length: in any others a request would be padded
to more than the least that is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

Sizes = Sequence[int]
"""Of the dimensions of a request's tensors, all in one row."""

FORGET = 0.98
"""Factor on the weight of what was seen, per group."""
SKIP = 2
"""First groups that are not looked at: they pay for warming up."""
TRUSTED = 8
"""Groups after which one that takes far longer, or shorter, is held to be an accident."""
FAR = 2.0
"""As a factor."""
UNLIKE = 0.005
"""Least scatter of the groups seen by which a fixed cost can be told from one per cell."""
THOUGHT_NS = 300
"""What it takes to find the best groups, times the square of the number of requests: what they may
save has to be more."""
WASTEFUL = 0.2
"""Share of padding from where on another way is tried when nothing is known."""
WORTH_TRYING = 4
"""Requests of a batch in which it is tried."""


class CellCost:
    """What groups cost, fitted to those that ran by the least squares of relative errors.

    Only the ratio of its two numbers decides anything. Not thread-safe.
    """

    def __init__(self) -> None:
        """Nothing is known."""
        self.fixed_ns = self.per_cell_ns = 0.0
        self._seen = 0
        # Sums over the groups, where one is 1 / latency and many is cells / latency.
        self._one = self._many = self._one_one = self._many_many = self._one_many = 0.0

    @property
    def is_warm(self) -> bool:
        """Whether groups are looked at by now."""
        return self._seen >= SKIP

    @property
    def is_told(self) -> bool:
        """Whether groups so unlike were seen lately that the two numbers mean something."""
        both = self._one_one * self._many_many
        return both > 0.0 and both - self._one_many**2 > UNLIKE * both

    def observe(self, cells: int, latency_ns: int) -> None:
        """A group of so many cells took so long."""
        if cells <= 0 or latency_ns <= 0:
            return
        self._seen += 1
        if self._seen <= SKIP:
            return
        expected, latency = self.fixed_ns + cells * self.per_cell_ns, float(latency_ns)
        if self._seen > SKIP + TRUSTED and expected > 0.0:
            latency = min(max(latency, expected / FAR), expected * FAR)
        one, many = 1.0 / latency, cells / latency
        self._one = self._one * FORGET + one
        self._many = self._many * FORGET + many
        self._one_one = self._one_one * FORGET + one * one
        self._many_many = self._many_many * FORGET + many * many
        self._one_many = self._one_many * FORGET + one * many
        if self.is_told:
            self._solve()

    def _solve(self) -> None:
        scale = self._one_one * self._many_many - self._one_many**2
        self.fixed_ns = (self._one * self._many_many - self._many * self._one_many) / scale
        self.per_cell_ns = (self._many * self._one_one - self._one * self._one_many) / scale
        if self.fixed_ns < 0.0:
            self.fixed_ns, self.per_cell_ns = 0.0, self._many / self._many_many
        elif self.per_cell_ns < 0.0:
            self.fixed_ns, self.per_cell_ns = self._one / self._one_one, 0.0


@dataclass(frozen=True)
class Group:
    """Requests that run together."""

    requests: Sequence[int]
    cells: int


def best_groups(
    rows: Sequence[int],
    sizes: Sequence[Sizes],
    elements: Callable[[Sizes], int],
    fixed: float,
    per_cell: float,
) -> list[Group]:
    """The groups that cost least together, short ones first.

    Of each request its ``rows`` and ``sizes``; ``elements`` of a row that is padded to these sizes.
    Where requests differ in one size no other groups cost less; where they differ in several none
    that follow one another by their elements, as far as a request alone is not cheaper. Never more
    than one group of all, nor than each alone; among equals there are fewer groups.

    >>> length = lambda sizes: sizes[0]
    >>> lengths = [(8,), (240,), (9,), (250,)]
    >>> [each.requests for each in best_groups([1] * 4, lengths, length, 20, 1)]
    [[0, 2], [1, 3]]
    >>> [each.requests for each in best_groups([1] * 4, lengths, length, 900, 1)]
    [[0, 1, 2, 3]]
    """
    own = [elements(each) for each in sizes]
    order = sorted(range(len(rows)), key=lambda i: own[i])
    is_line = len(sizes[0]) == 1  # then the longest of a group is its last
    costs, last_of = [0.0], [Group((), 0)]
    for end in range(1, len(order) + 1):
        cost, first, cells, count = inf, 0, 0, 0
        largest, padded = sizes[order[end - 1]], own[order[end - 1]]
        for begin in reversed(range(end)):
            request = order[begin]
            if not is_line:
                largest = [max(both) for both in zip(largest, sizes[request], strict=True)]
                padded = elements(largest)
            if rows[request] * (padded - own[request]) * per_cell > fixed:
                break  # alone it costs less, and so do those before it
            count += rows[request]
            with_it = costs[begin] + fixed + count * padded * per_cell
            if with_it <= cost:
                cost, first, cells = with_it, begin, count * padded
        costs.append(cost)
        last_of.append(Group(order[first:end], cells))
    together = _group(sorted(order), rows, sizes, elements)
    if fixed + together.cells * per_cell <= costs[-1]:
        return [together]
    found, end = [], len(order)
    while end:
        found.append(last_of[end])
        end -= len(last_of[end].requests)
    return found[::-1]


def _group(
    requests: Sequence[int],
    rows: Sequence[int],
    sizes: Sequence[Sizes],
    elements: Callable[[Sizes], int],
) -> Group:
    largest = [max(each) for each in zip(*(sizes[i] for i in requests), strict=True)]
    return Group(requests, sum(rows[i] for i in requests) * elements(largest))


class LengthGroups:
    """Divides batches of one model, and learns what its groups cost."""

    def __init__(self, elements: Callable[[Sizes], int]) -> None:
        """``elements``: of a row that is padded to these sizes."""
        self.cost = CellCost()
        self._elements = elements

    def of(self, rows: Sequence[int], sizes: Sequence[Sizes]) -> list[Group]:
        """How to run these requests, at least one. While it is not known what costs, a batch that
        would be mostly padding runs in halves, which tells it."""
        cost, elements, every = self.cost, self._elements, range(len(rows))
        together = _group(every, rows, sizes, elements)
        own = [elements(each) for each in sizes]
        padding = together.cells - sum(n * each for n, each in zip(rows, own, strict=True))
        thought = THOUGHT_NS * len(rows) ** 2
        if padding * cost.per_cell_ns > cost.fixed_ns + thought:
            return best_groups(rows, sizes, elements, cost.fixed_ns, cost.per_cell_ns)
        if cost.is_told or not cost.is_warm or len(rows) < WORTH_TRYING:
            return [together]
        if padding <= WASTEFUL * together.cells:
            return [together]
        order = sorted(every, key=lambda i: own[i])
        half = len(order) // 2
        return [_group(each, rows, sizes, elements) for each in (order[:half], order[half:])]
