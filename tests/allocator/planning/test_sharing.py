"""Cores for several models at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.sharing import Demand, share_cores


def table(fixed=1.0, per_request=1.0, threads=16, batch=16):
    """Latency that halves with twice the threads."""
    t, b = np.ogrid[1 : threads + 1, 1 : batch + 1]
    return LatencyTable(fixed + per_request * b / t)


def test_a_model_alone_may_have_everything():
    assert share_cores([8, 4], {3: Demand(table(), 4, 1.0)}) == {3: [8, 4]}


def test_equal_models_share_evenly_and_the_busier_one_gets_more():
    same = Demand(table(), 8, 4.0)
    assert share_cores([8], {0: same, 1: same}) == {0: [4], 1: [4]}
    shares = share_cores([8], {0: Demand(table(), 8, 40.0), 1: same})
    assert shares[0][0] > shares[1][0] >= 1
    assert shares[0][0] + shares[1][0] == 8


def test_a_share_lies_on_one_node_where_it_can():
    shares = share_cores([4, 8], {0: Demand(table(), 8, 1.0), 1: Demand(table(), 8, 4.0)})
    assert all(sum(n > 0 for n in share) == 1 for share in shares.values())


def test_more_models_than_cores_get_one_each():
    demands = {slot: Demand(table(), 1, 1.0) for slot in range(4)}
    assert share_cores([2], demands) == {0: [1], 1: [1], 2: [1], 3: [1]}


def test_a_batch_that_no_share_can_hold_still_leaves_everyone_a_core():
    demands = {0: Demand(table(batch=2), 64, 1.0), 1: Demand(table(batch=2), 1, 1.0)}
    shares = share_cores([4], demands)
    assert sum(map(sum, shares.values())) <= 4 and all(map(any, shares.values()))


def test_batches_that_do_not_fit_together_are_shared_out_as_rounds():
    small = table(batch=4)
    shares = share_cores([8], {0: Demand(small, 32, 40.0), 1: Demand(small, 16, 4.0)})
    assert shares[0][0] > shares[1][0] >= 1


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=3).filter(any),
    st.lists(st.tuples(st.integers(1, 16), st.floats(0.1, 100)), min_size=1, max_size=4),
)
def test_no_core_is_promised_twice_while_there_are_enough(nodes, models):
    demands = {i: Demand(table(threads=8), b, w) for i, (b, w) in enumerate(models)}
    shares = share_cores(nodes, demands)
    assert all(sum(share) >= 1 for share in shares.values())
    if sum(nodes) >= len(models):
        for node, size in enumerate(nodes):
            assert sum(share[node] for share in shares.values()) <= size
