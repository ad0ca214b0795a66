"""The knapsack over threads against trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.planning.packing import Packing, convolve, pack

WORTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def item_of(worths):
    """Worth by threads; nothing for no thread."""
    return np.array([0.0, *worths])


def multisets(capacity, most):
    """Threads of every set of instances on one node."""
    for n in range(min(most, capacity) + 1):
        for threads in itertools.combinations_with_replacement(range(1, capacity + 1), n):
            if sum(threads) <= capacity:
                yield threads


def every_packing(item, capacities, most):
    """Threads of every set of instances on all nodes."""
    for parts in itertools.product(*(list(multisets(c, most)) for c in capacities)):
        found = [t for part in parts for t in part]
        if len(found) <= most:
            yield sum(item[t] for t in found), len(found), sum(found)


@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(-np.inf), min_size=1, max_size=7).flatmap(
        lambda left: st.tuples(
            st.just(left),
            st.lists(st.floats(-1e6, 1e6), min_size=len(left), max_size=len(left)),
        )
    )
)
def test_the_product_is_the_best_split_of_the_threads(pair):
    left, right = map(np.array, pair)
    expected = [max(left[a] + right[c - a] for a in range(c + 1)) for c in range(len(left))]
    assert convolve(left, right).tolist() == expected


@given(WORTHS, st.integers(0, 7))
def test_a_row_holds_the_most_of_so_many_instances_at_each_capacity(worths, instances):
    item = item_of(worths)
    expected = [
        max(worth for worth, _, _ in every_packing(item, (capacity,), instances))
        for capacity in range(len(item))
    ]
    assert Packing(item).row(instances).tolist() == expected


@given(WORTHS)
def test_without_a_limit_one_instance_a_thread_is_the_most_there_can_be(worths):
    item = item_of(worths)
    expected = [
        max(worth for worth, _, _ in every_packing(item, (capacity,), capacity))
        for capacity in range(len(item))
    ]
    assert Packing(item).unlimited().tolist() == expected


@given(WORTHS, st.data())
def test_a_packing_has_the_fewest_instances_and_then_the_fewest_threads(worths, data):
    item = item_of(worths)
    most = data.draw(st.integers(1, 6))
    wanted = data.draw(st.integers(1, 20))
    capacity = len(worths)
    enough = [(n, t) for worth, n, t in every_packing(item, (capacity,), most) if worth >= wanted]
    found = pack(item, (capacity,), wanted, most)
    if not enough:
        assert found is None
    else:
        assert (len(found), sum(found)) == min(enough)
        assert sum(item[t] for t in found) >= wanted


@given(st.lists(st.integers(0, 9), min_size=4, max_size=4), st.data())
def test_on_several_nodes_a_packing_has_the_fewest_instances(worths, data):
    item = item_of(worths)
    nodes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    most = data.draw(st.integers(1, 6))
    wanted = data.draw(st.integers(1, 25))
    enough = [n for worth, n, _ in every_packing(item, nodes, most) if worth >= wanted]
    found = pack(item, nodes, wanted, most)
    if not enough:
        assert found is None
    else:
        assert len(found) == min(enough)
        assert sum(item[t] for t in found) >= wanted
        assert fits(found, nodes)


def fits(threads, nodes):
    """Whether instances of so many threads find room, none on two nodes."""
    if not threads:
        return True
    first, *others = sorted(threads, reverse=True)
    return any(
        fits(others, [*nodes[:i], nodes[i] - first, *nodes[i + 1 :]])
        for i in range(len(nodes))
        if nodes[i] >= first
    )


@pytest.mark.parametrize("capacity", [1, 2, 3, 127, 128])
def test_every_capacity_is_used_to_its_end_by_single_threads(capacity):
    item = np.zeros(capacity + 1)
    item[1] = 1
    assert pack(item, (capacity,), capacity, capacity) == [1] * capacity
    assert pack(item, (capacity,), capacity + 1, capacity) is None
    assert pack(item, (capacity,), capacity, capacity - 1) is None
