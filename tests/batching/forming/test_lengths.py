import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.forming.lengths import FAR, SKIP, CellCost, LengthGroups, best_groups

COSTS = st.floats(0, 1000)
ROWS_AND_LENGTHS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 300)), min_size=1, max_size=6
)
ROWS_AND_SIZES = st.lists(
    st.tuples(st.integers(1, 3), st.tuples(*[st.integers(0, 40)] * 3)), min_size=1, max_size=9
)


def length(sizes):
    return sizes[0]


def two_tensors(sizes):
    """Of shapes [-1, -1] and [-1]."""
    return sizes[0] * sizes[1] + sizes[2]


def divided(rows, sizes, elements, fixed, per_cell):
    """The groups, which are of all requests, and what they cost."""
    found = best_groups(rows, sizes, elements, fixed, per_cell)
    assert sorted(i for group in found for i in group.requests) == list(range(len(rows)))
    for group in found:
        assert group.cells == cells([(rows[i], sizes[i]) for i in group.requests], elements)
    return found, sum(fixed + group.cells * per_cell for group in found)


def cells(requests, elements):
    largest = [max(each) for each in zip(*(sizes for _, sizes in requests), strict=True)]
    return sum(rows for rows, _ in requests) * elements(largest)


def partitions(every):
    if not every:
        yield []
        return
    first, *rest = every
    for found in partitions(rest):
        yield [[first], *found]
        for i, group in enumerate(found):
            yield [*found[:i], [first, *group], *found[i + 1 :]]


@given(ROWS_AND_LENGTHS, COSTS, COSTS)
def test_no_division_costs_less(requests, fixed, per_cell):
    rows, sizes = [n for n, _ in requests], [(each,) for _, each in requests]
    _, cost = divided(rows, sizes, length, fixed, per_cell)
    least = min(
        sum(fixed + per_cell * cells([(rows[i], sizes[i]) for i in group], length) for group in way)
        for way in partitions(list(range(len(rows))))
    )
    assert cost == pytest.approx(least)


@given(ROWS_AND_SIZES, COSTS, COSTS)
def test_it_never_costs_more_than_all_together_or_each_alone(requests, fixed, per_cell):
    rows, sizes = [n for n, _ in requests], [each for _, each in requests]
    _, cost = divided(rows, sizes, two_tensors, fixed, per_cell)
    together = fixed + per_cell * cells(requests, two_tensors)
    apart = sum(fixed + per_cell * cells([each], two_tensors) for each in requests)
    assert cost <= min(together, apart) * (1 + 1e-9)


@given(ROWS_AND_LENGTHS, COSTS)
def test_where_padding_is_free_there_is_one_group(requests, fixed):
    rows, sizes = [n for n, _ in requests], [(each,) for _, each in requests]
    found, _ = divided(rows, sizes, length, fixed, 0.0)
    assert len(found) == 1
    assert len(divided(rows, [(7,)] * len(rows), length, fixed, 5.0)[0]) == 1


TRUE = {
    "each cell costs": lambda rows, cells: 3e6 + 140e3 * cells,
    "only a group costs": lambda rows, cells: 5e6,
    "a device that is full at 1000": lambda rows, cells: max(4e6, 4e3 * cells),
    "each row costs": lambda rows, cells: 1e6 + 8e5 * rows,
    "all of it": lambda rows, cells: 1e6 + 3e5 * rows + 2e4 * cells,
    "more than in proportion": lambda rows, cells: 2e6 + 1e5 * cells * (1 + cells / rows / 500),
    "nearly nothing": lambda rows, cells: 5e4 + 200 * cells,
}
TRAFFIC = {
    "any": lambda draw: draw.randint(8, 256),
    "alike": lambda draw: draw.randint(100, 120),
    "short and long": lambda draw: draw.choice([draw.randint(8, 16), draw.randint(200, 256)]),
    "equal": lambda draw: 64,
}


@pytest.mark.parametrize("traffic", TRAFFIC)
@pytest.mark.parametrize("true", TRUE)
def test_whatever_groups_cost_it_is_learnt(true, traffic):
    draw, groups, took = random.Random(7), LengthGroups(length), TRUE[true]
    spent = together = apart = 0.0
    for number in range(300):
        lengths = [(TRAFFIC[traffic](draw),) for _ in range(8)]
        for group in groups.of([1] * 8, lengths):
            latency = took(len(group.requests), group.cells)
            spent += latency if number >= 30 else 0.0
            groups.cost.observe(group.cells, int(latency * draw.uniform(0.9, 1.1)))
        if number >= 30:
            together += took(8, 8 * max(lengths)[0])
            apart += sum(took(1, each) for (each,) in lengths)
    assert spent < 1.06 * min(together, apart)


def test_until_something_is_known_only_batches_of_padding_are_halved():
    groups, unlike = LengthGroups(length), [(8,), (250,), (9,), (240,)]

    def run(sizes):
        found = groups.of([1] * len(sizes), sizes)
        for group in found:
            groups.cost.observe(group.cells, 1000)
        return [sorted(group.requests) for group in found]

    assert [run(unlike) for _ in range(SKIP)] == [[[0, 1, 2, 3]]] * SKIP  # warming up
    assert run([(8,), (9,), (9,), (9,)]) == [[0, 1, 2, 3]]
    assert run(unlike[:3]) == [[0, 1, 2]]
    assert groups.cost.is_told and run(unlike) == [[0, 1, 2, 3]]  # only groups cost

    unknown = LengthGroups(length)
    for _ in range(SKIP):
        unknown.cost.observe(1000, 1000)
    halves = unknown.of([1, 1, 1, 1], unlike)
    assert [(sorted(each.requests), each.cells) for each in halves] == [([0, 2], 18), ([1, 3], 500)]


def test_what_tells_nothing_changes_nothing():
    cost = CellCost()
    for _ in range(100):
        cost.observe(64, 5000)
        cost.observe(0, 5000)
        cost.observe(64, 0)
    assert not cost.is_told and (cost.fixed_ns, cost.per_cell_ns) == (0.0, 0.0)


def test_an_accident_moves_it_as_little_as_what_took_twice_as_long():
    costs = [CellCost(), CellCost()]
    for _ in range(20):
        for each in costs:
            each.observe(10, 3000)
            each.observe(100, 12000)
    assert [c.fixed_ns for c in costs] == pytest.approx([2000] * 2)
    assert [c.per_cell_ns for c in costs] == pytest.approx([100] * 2)
    costs[0].observe(100, 10**12)
    costs[1].observe(100, int(12000 * FAR))
    assert costs[0].fixed_ns == pytest.approx(costs[1].fixed_ns)
    assert math.isclose(costs[0].per_cell_ns, costs[1].per_cell_ns, rel_tol=1e-9)


def test_a_model_that_has_become_slower_is_followed():
    cost = CellCost()
    for factor in (1, 20):
        for _ in range(400):
            cost.observe(10, factor * 3000)
            cost.observe(100, factor * 12000)
    assert cost.fixed_ns == pytest.approx(40000, rel=0.01)
    assert cost.per_cell_ns == pytest.approx(2000, rel=0.01)
