"""The optimizer against trying everything, and against the paper's dynamic program."""

import functools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shunter.allocator.planning.configuration import MAX_GROUPS, parse_configuration
from shunter.allocator.planning.latency_table import LatencyTable, Memory
from shunter.allocator.planning.optimizer import (
    NoConfiguration,
    maximise_rate,
    minimise_latency,
    spread_over,
)
from shunter.allocator.planning.sharing import latency_curve, share_threads

INF = math.inf


@st.composite
def tables(draw, threads, batch):
    """Small whole latencies, so plateaus and ties abound; some ends and some rows impossible."""
    t, b = draw(threads), draw(batch)
    steps = st.lists(st.sampled_from([0, 0, 1, 2, 5, INF]), min_size=b - 1, max_size=b - 1)
    rows = [np.cumsum([draw(st.sampled_from([1, 2, 4, INF])), *draw(steps)]) for _ in range(t)]
    return LatencyTable(np.array(rows, dtype=float))


SMALL = tables(st.integers(1, 4), st.integers(1, 5))
NODES = st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any)
ONE_NODE = st.lists(st.integers(1, 7), min_size=1, max_size=1)


def moves(table, nodes):
    """Every way to start one more instance: the nodes that are left, its threads and its row."""
    for i, node in enumerate(nodes):
        for t in range(1, min(node, table.threads) + 1):
            left = tuple(sorted([*nodes[:i], node - t, *nodes[i + 1 :]]))
            yield left, t, table.ms[t - 1]


def lowest_latency(table, nodes, batch, most):
    """Least latency of ``batch`` requests, by trying every instance in every place."""

    @functools.cache
    def best(nodes, batch, most):
        if batch == 0:
            return 0.0
        if most == 0:
            return INF
        return min(
            (
                max(row[b - 1], best(left, batch - b, most - 1))
                for left, _, row in moves(table, nodes)
                for b in range(1, min(batch, table.batch) + 1)
            ),
            default=INF,
        )

    return best(tuple(sorted(nodes)), batch, most)


def fewest(table, nodes, batch, latency):
    """Fewest instances, and then threads, that hold ``batch`` within ``latency``."""

    @functools.cache
    def best(nodes, batch):
        if batch <= 0:
            return 0, 0
        found = [(INF, INF)]
        for left, t, row in moves(table, nodes):
            held = int((row <= latency).sum())
            if held:
                instances, threads = best(left, batch - held)
                found.append((instances + 1, threads + t))
        return min(found)

    return best(tuple(sorted(nodes)), batch)


def highest_rate(table, nodes, slo_ms, most):
    """Most requests per second with batches within the SLO."""

    @functools.cache
    def best(nodes, most):
        found = [0.0]
        for left, _, row in moves(table, nodes) if most else ():
            rates = [b / row[b - 1] for b in range(1, table.batch + 1) if row[b - 1] <= slo_ms]
            found += [rate + best(left, most - 1) for rate in rates]
        return max(found)

    return 1e3 * best(tuple(sorted(nodes)), most)


def papers_program(table, threads, batch):
    """``opt[t, b]`` of section 3.3, over both t and b; cores may stay idle."""
    opt = np.full((threads + 1, batch + 1), INF)
    opt[:, 0] = 0
    latency = np.full((threads + 1, batch + 1), INF)
    t, b = min(threads, table.threads), min(batch, table.batch)
    latency[1 : t + 1, 1 : b + 1] = table.ms[:t, :b]
    earlier = np.arange(batch + 1)[:, None] - np.arange(batch + 1)
    for t in range(1, threads + 1):
        for own in range(1, t + 1):
            others = np.where(earlier >= 0, opt[t - own][np.maximum(earlier, 0)], INF)
            both = np.maximum(others, latency[own])
            opt[t] = np.minimum(opt[t], both.min(axis=1))
    return opt


def assert_sound(choice, table, nodes, batch):
    """It holds exactly ``batch``, fits the nodes and the page, and says its true latency."""
    groups = choice.configuration
    assert sum(g.instances * g.batch for g in groups) == batch
    assert choice.threads == sum(g.instances * g.threads for g in groups) <= sum(nodes)
    assert choice.instances == sum(g.instances for g in groups)
    assert len(groups) <= MAX_GROUPS
    assert max(g.threads for g in groups) <= max(nodes)
    assert choice.latency_ms == max(table.of(g.threads, g.batch) for g in groups)
    rates = [g.instances * g.batch / table.of(g.threads, g.batch) for g in groups]
    assert choice.rate == pytest.approx(1e3 * sum(rates))


def synthetic(threads, batch, seed=0, noise=0.0, serial=0.05, fixed=4.0):
    """Amdahl with a cost per run and per thread, whole batch sizes, noise on each cell."""
    t, b = np.arange(1, threads + 1)[:, None], np.arange(1, batch + 1)
    ms = fixed + 2.0 * b * (serial + (1 - serial) / t) + 0.1 * t
    factor = 1 + np.random.default_rng(seed).uniform(-noise, noise, ms.shape)
    return LatencyTable(np.maximum.accumulate(ms * factor, axis=1))


@given(SMALL, NODES | ONE_NODE, st.integers(1, 9))
def test_the_latency_is_what_trying_everything_finds(table, nodes, batch):
    expected = lowest_latency(table, nodes, batch, sum(nodes))
    if expected == INF:
        with pytest.raises(NoConfiguration):
            minimise_latency(table, nodes, batch)
    else:
        choice = minimise_latency(table, nodes, batch)
        assert choice.latency_ms == expected
        assert_sound(choice, table, nodes, batch)


@given(SMALL, NODES, st.integers(1, 9), st.integers(0, 3), st.integers(0, 1), st.integers(0, 20))
def test_a_memory_budget_is_kept_and_used(table, nodes, batch, instance, request, budget):
    bounds = [n for n in range(10) if n * instance + batch * request <= budget]
    expected = lowest_latency(table, nodes, batch, max(bounds, default=0))
    memory = Memory(instance, request, budget)
    if expected == INF:
        with pytest.raises(NoConfiguration):
            minimise_latency(table, nodes, batch, memory)
    else:
        choice = minimise_latency(table, nodes, batch, memory)
        assert choice.latency_ms == expected
        assert choice.instances * instance + batch * request <= budget


@given(SMALL, ONE_NODE, st.integers(1, 9))
def test_among_equals_the_fewest_instances_win_and_then_the_fewest_threads(table, nodes, batch):
    latency = lowest_latency(table, nodes, batch, sum(nodes))
    assume(latency < INF)
    choice = minimise_latency(table, nodes, batch)
    assert (choice.instances, choice.threads) == fewest(table, nodes, batch, latency)


@given(SMALL, NODES, st.integers(1, 9))
def test_on_several_nodes_the_fewest_instances_win(table, nodes, batch):
    latency = lowest_latency(table, nodes, batch, sum(nodes))
    assume(latency < INF)
    choice = minimise_latency(table, nodes, batch)
    assert choice.instances == fewest(table, nodes, batch, latency)[0]


@settings(max_examples=25)
@given(tables(st.integers(5, 16), st.integers(20, 64)), st.integers(1, 16), st.integers(1, 64))
def test_the_latency_is_that_of_the_papers_program(table, threads, batch):
    expected = papers_program(table, threads, batch)[threads, batch]
    if expected == INF:
        with pytest.raises(NoConfiguration):
            minimise_latency(table, (threads,), batch)
    else:
        choice = minimise_latency(table, (threads,), batch)
        assert choice.latency_ms == expected
        assert_sound(choice, table, (threads,), batch)


@pytest.mark.parametrize("seed", range(4))
def test_on_a_noisy_profile_every_batch_agrees_with_the_papers_program(seed):
    table = synthetic(16, 64, seed, noise=0.1, serial=0.02 * seed)
    expected = papers_program(table, 16, 64)[16]
    for batch in range(1, 65):
        choice = minimise_latency(table, (16,), batch)
        assert choice.latency_ms == expected[batch]
        assert_sound(choice, table, (16,), batch)


def bert(threads):
    """Shaped like the paper's BERT: r(t) + b (w / t + s).

    Reading the weights takes r(t) = max(120 / t², 5) ms, since more threads have more cache; a
    request is w = 20 ms of work that is split over the threads and s = 1 ms that is not.
    """
    t, b = np.arange(1, threads + 1)[:, None], np.arange(1, 1025)
    return LatencyTable(np.maximum(120 / t**2, 5.0) + b * (20.0 / t + 1.0))


TABLE_2 = {
    8: "2x8x4",
    16: "4x4x4",
    32: "4x4x8",
    64: "4x4x16",
    128: "4x4x32",
    256: "8x2x32",
    512: "8x2x64",
    1024: "8x2x128",
}


def powers_of_two_only(table):
    """A batch costs what the next power of two does, as if no other size could be run."""
    batch = np.arange(1, table.batch + 1)
    return LatencyTable(table.ms[:, 2 ** np.ceil(np.log2(batch)).astype(int) - 1])


@pytest.mark.parametrize("batch", TABLE_2)
def test_sixteen_cores_give_the_papers_uniform_instances(batch):
    """Appendix B, table 2, T = 16; the paper tries powers of two as batch sizes."""
    choice = minimise_latency(powers_of_two_only(bert(16)), (16,), batch)
    assert choice.configuration == parse_configuration(TABLE_2[batch])


@pytest.mark.parametrize("batch", [8, 16, 32, 64, 128, 256])
def test_fourteen_cores_give_a_mix_that_beats_all_uniform_ones(batch):
    """Appendix B, table 2, T = 14: mixes such as 1x6x8,2x4x4.

    The mixes are not the paper's own: all batch sizes are tried here, and the model is a guess.
    """
    table = bert(14)
    choice = minimise_latency(table, (14,), batch)
    uniform = min(table.of(14 // i, -(-batch // i)) for i in range(1, 15))
    assert len({g.threads for g in choice.configuration}) > 1
    assert choice.latency_ms < uniform
    assert choice.latency_ms == papers_program_near(table, 14, batch, choice.latency_ms)


def papers_program_near(table, threads, batch, latency):
    """``latency`` if no lower level is possible, by a knapsack over threads in plain Python."""
    level = table.levels[np.searchsorted(table.levels, latency) - 1]
    held = [0, *(int((row <= level).sum()) for row in table.ms)]
    most = [0] * (threads + 1)
    for c in range(1, threads + 1):
        most[c] = max(held[t] + most[c - t] for t in range(1, c + 1))
    return latency if most[threads] < batch else level


def whole_nodes(latencies):
    """Within the first latency t threads take t², within the second one more request."""
    t, b = np.arange(1, 13)[:, None], np.arange(1, 160)
    first, second = latencies
    return LatencyTable(np.where(b <= t * t, first, np.where(b <= t * t + 1, second, 50.0 + b)))


def test_kinds_of_equal_threads_are_merged_at_no_cost():
    """Sixteen kinds, two for each number of threads, on a page that has room for eight."""
    table, nodes = whole_nodes((1.0, 2.0)), (*range(1, 9), *range(1, 9))
    batch = 2 * sum(t * t for t in range(1, 9)) + 8
    choice = minimise_latency(table, nodes, batch)
    assert choice.latency_ms == 2.0
    assert len(choice.configuration) <= MAX_GROUPS
    assert sum(g.instances * g.batch for g in choice.configuration) >= batch
    assert choice.threads <= sum(nodes)


def test_too_many_numbers_of_threads_cost_latency_and_the_choice_says_so():
    table, nodes = whole_nodes((1.0, 2.0)), tuple(range(1, 13))
    batch = sum(t * t for t in nodes)
    choice = minimise_latency(table, nodes, batch)
    assert len(choice.configuration) == MAX_GROUPS
    assert sum(g.instances * g.batch for g in choice.configuration) >= batch
    assert choice.threads <= sum(nodes)
    assert choice.latency_ms == max(table.of(g.threads, g.batch) for g in choice.configuration) > 1


def test_too_many_numbers_of_threads_never_break_the_objective_of_a_rate():
    table, nodes = whole_nodes((1.0, 2.0)), tuple(range(1, 13))
    choice = maximise_rate(table, nodes, slo_ms=1.0)
    assert len(choice.configuration) == MAX_GROUPS
    assert choice.latency_ms <= 1.0
    assert choice.threads <= sum(nodes)


@given(SMALL, NODES | ONE_NODE, st.sampled_from([0.5, 1, 2, 3, 6, 20, INF]))
def test_the_rate_is_what_trying_everything_finds(table, nodes, slo_ms):
    expected = highest_rate(table, nodes, slo_ms, sum(nodes))
    if expected == 0:
        with pytest.raises(NoConfiguration):
            maximise_rate(table, nodes, slo_ms)
    else:
        choice = maximise_rate(table, nodes, slo_ms)
        assert choice.rate == pytest.approx(expected)
        assert choice.latency_ms <= slo_ms
        assert choice.threads <= sum(nodes)


@given(SMALL, NODES, st.integers(1, 5), st.integers(1, 20))
def test_a_rate_uses_all_of_a_budget_that_counts_instances_only(table, nodes, instance, budget):
    expected = highest_rate(table, nodes, 6, min(sum(nodes), budget // instance))
    if expected == 0:
        with pytest.raises(NoConfiguration):
            maximise_rate(table, nodes, 6, Memory(instance, 0, budget))
    else:
        choice = maximise_rate(table, nodes, 6, Memory(instance, 0, budget))
        assert choice.rate == pytest.approx(expected)


@given(SMALL, NODES, st.integers(0, 5), st.integers(1, 3), st.integers(0, 20))
def test_a_rate_never_needs_more_memory_than_there_is(table, nodes, instance, request, budget):
    alone = instance + request <= budget
    possible = alone and highest_rate(table, nodes, INF, 1) > 0
    try:
        groups = maximise_rate(table, nodes, INF, Memory(instance, request, budget)).configuration
    except NoConfiguration:
        assert not possible
    else:
        assert sum(g.instances * (instance + g.batch * request) for g in groups) <= budget


@settings(max_examples=50)
@given(tables(st.integers(1, 6), st.integers(1, 8)), st.integers(1, 9), st.integers(1, 12))
def test_the_curve_is_the_best_latency_at_each_capacity(table, threads, batch):
    curve = latency_curve(table, threads, batch)
    expected = [lowest_latency(table, (c,), batch, c) for c in range(threads + 1)]
    assert curve.tolist() == expected


CURVES = st.lists(st.sampled_from([0, 1, 2, 5, 9, INF]), min_size=6, max_size=6)


@given(st.lists(st.tuples(CURVES, st.sampled_from([0.5, 1, 3])), min_size=1, max_size=4))
def test_cores_are_shared_so_that_the_weighted_sum_is_least(models):
    curves = [np.sort(curve)[::-1].astype(float) for curve, _ in models]
    weights = [weight for _, weight in models]

    def cost(split):
        return sum(w * c[t] for w, c, t in zip(weights, curves, split, strict=True))

    every = [s for s in np.ndindex(*[6] * len(models)) if sum(s) <= 5]
    expected = min(map(cost, every))
    if expected == INF:
        with pytest.raises(NoConfiguration) as error:
            share_threads(curves, weights)
        assert str(error.value) == f"5 cores are too few for {len(models)} models"
    else:
        split = share_threads(curves, weights)
        assert sum(split) <= 5
        assert cost(split) == pytest.approx(expected)


@given(SMALL, st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 12))
def test_present_instances_get_the_best_batch_sizes(table, threads, batch):
    rows = [[0.0, *table.ms[min(t, table.threads) - 1]] for t in threads]
    sizes = (s for s in np.ndindex(*[table.batch + 1] * len(rows)) if sum(s) == batch)
    latencies = (max(row[b] for row, b in zip(rows, s, strict=True)) for s in sizes)
    expected = min(latencies, default=INF)
    if expected == INF:
        with pytest.raises(NoConfiguration) as error:
            spread_over(table, threads, batch)
        assert str(error.value) == f"{len(threads)} instances do not hold a batch of {batch}"
    else:
        choice = spread_over(table, threads, batch)
        assert choice.latency_ms == expected
        assert sum(g.instances * g.batch for g in choice.configuration) == batch
        assert {g.threads for g in choice.configuration} <= set(threads)


@pytest.mark.parametrize(
    ("row", "batch", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], 4, 4),  # as many per second at every size
        ([5.0, 6.0, 7.0, 8.0], 4, 4),
        ([5.0, 6.0, 7.0, 8.0], 3, 3),
        ([5.0, 6.0, 7.0, 8.0], 64, 64),  # the table ends, its trend does not
        ([2.0, 3.0, 6.0, 9.0], 4, 2),
        ([2.0, 3.0, 6.0, 9.0], 64, 2),
        ([2.0, 3.0, 4.6, 9.0], 4, 3),  # 2 % fewer per second
        ([1.0, 9.0, 9.0, 9.0], 4, 1),
        ([1.0, INF, INF, INF], 8, 1),
    ],
)
def test_a_batch_is_no_larger_than_it_is_good_for(row, batch, expected):
    assert LatencyTable(np.array([row])).efficient(1, batch) == expected


TINY = LatencyTable(np.array([[1.0, 2.0], [0.5, INF]]))
MIB = 2**20


@pytest.mark.parametrize(
    ("nodes", "batch", "memory", "message"),
    [
        ((), 1, Memory(), "no core is free"),
        ((0, 0), 1, Memory(), "no core is free"),
        (
            (2,),
            2,
            Memory(90 * MIB, 5 * MIB, 99 * MIB),
            "one instance with a batch of 2 needs 100 MiB, 99 MiB are free",
        ),
        (
            (2, 1),
            9,
            Memory(),
            "3 cores and at most 3 instances, each with a batch of at most 2, "
            "do not hold a batch of 9",
        ),
        (
            (4,),
            4,
            Memory(30, 0, 50),
            "4 cores and at most 1 instances, each with a batch of at most 2, "
            "do not hold a batch of 4",
        ),
    ],
)
def test_what_is_short_is_said(nodes, batch, memory, message):
    with pytest.raises(NoConfiguration) as error:
        minimise_latency(TINY, nodes, batch, memory)
    assert str(error.value) == message


def test_a_target_that_no_request_meets_is_said():
    with pytest.raises(NoConfiguration) as error:
        maximise_rate(TINY, (2,), 0.4)
    assert str(error.value) == "no batch is done within 0.4 ms, not even one of 1 request"


def test_where_nothing_runs_nothing_is_promised():
    table = LatencyTable(np.full((2, 3), INF))
    for search in (
        lambda: minimise_latency(table, (2,), 1),
        lambda: maximise_rate(table, (2,), INF),
        lambda: spread_over(table, (1, 2), 1),
    ):
        with pytest.raises(NoConfiguration):
            search()
    assert latency_curve(table, 2, 1).tolist() == [INF] * 3


def test_a_batch_below_one_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="batch 0; allowed: at least 1"):
        minimise_latency(TINY, (1,), 0)


@pytest.mark.parametrize(
    "rows",
    [[[]], [1.0, 2.0], [[math.nan, 1.0]], [[-1.0, 1.0]], [[0.0, 1.0]]],
    ids=["empty", "one-dimensional", "nan", "negative", "zero"],
)
def test_a_table_that_is_none_is_refused(rows):
    with pytest.raises(ValueError, match="threads x batch sizes of latencies above 0"):
        LatencyTable(np.array(rows))


@pytest.mark.parametrize("row", [[2.0, 1.0], [INF, 1.0], [1e305, 1e304]])
def test_a_table_whose_latency_falls_with_the_batch_is_refused(row):
    with pytest.raises(ValueError, match="latency falls with the batch size"):
        LatencyTable(np.array([row]))
