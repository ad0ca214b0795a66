"""The adaptive profile against the exhaustive one, on models made of formulas."""

import numpy as np
import pytest

from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile import batch_sizes
from shunter.allocator.planning.profile_plan import ProfilePlan, exhaustive_cells
from shunter.allocator.planning.profile_table import cautious, interpolate

T = 16

MODELS = {
    "amdahl": lambda t, b: 3 + 4 * b * (0.05 + 0.95 / t),
    "half serial": lambda t, b: 5 + 3 * b * (0.5 + 0.5 / t),
    "wholly parallel": lambda t, b: 0.5 + 10 * b / t,
    "cost per thread": lambda t, b: 2 + 5 * b * (0.02 + 0.98 / t) + 0.4 * t,
    "small model": lambda t, b: 1 + 0.05 * b * (0.1 + 0.9 / t) + 0.3 * t,
    "second NUMA node": lambda t, b: (3 + 4 * b * (0.03 + 0.97 / t)) * (1.6 if t > T / 2 else 1),
    "odd threads": lambda t, b: (2 + 4 * b * (0.05 + 0.95 / t)) * (1.15 if t % 2 else 1),
    "cache of a core": lambda t, b: 2 + 4 * b * (0.04 + 0.96 / t) * (1.5 if b > 8 * t else 1),
    "cache of a batch": lambda t, b: 2 + 4 * (0.04 + 0.96 / t) * (b + 0.6 * max(0, b - 16)),
    "weights": lambda t, b: max(120 / t**2, 5.0) + b * (20 / t + 1),
    "vectors of eight": lambda t, b: 1 + 4 * (0.05 + 0.95 / t) * (6.4 * -(-b // 8) + 0.2 * b),
}
"""Latency in ms by threads and batch size."""


def measure(plan, latency, most=10_000):
    """Measure what the plan wants, at most so many cells; return them in order."""
    cells = []
    while len(cells) < most and (cell := plan.next()) is not None:
        assert cell not in cells
        cells.append(cell)
        plan.add(*cell, latency(*cell))
    return cells


def noisy(latency, noise, seed):
    """The same with an error of each cell that does not change."""

    def measured(t, b):
        error = np.random.default_rng((seed, t, b)).uniform(-noise, noise)
        return latency(t, b) * (1 + error)

    return measured


def regret(latency, measured, threads, batch):
    """How much slower the worst choice is than the best one, as a share, in truth."""
    cells = exhaustive_cells(threads, batch)
    truth = LatencyTable(interpolate({c: latency(*c) for c in cells}, threads, batch))
    known = LatencyTable(cautious(measured, threads, batch))

    def of(size):
        best = minimise_latency(truth, (threads,), size)
        choice = minimise_latency(known, (threads,), size).configuration
        return max(truth.of(g.threads, g.batch) for g in choice) / best.latency_ms - 1

    return max(map(of, batch_sizes(batch)))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [64, 256])
@pytest.mark.parametrize("model", MODELS)
def test_choices_are_within_2_percent_of_the_exhaustive_ones_for_a_fifth_of_the_time(model, batch):
    latency, plan = MODELS[model], ProfilePlan(T, batch)
    cells = measure(plan, latency)
    everything = sum(latency(*cell) for cell in exhaustive_cells(T, batch))
    assert sum(latency(*cell) for cell in cells) <= 0.2 * everything
    assert regret(latency, plan.measured, T, batch) <= 0.02
    assert 0 <= plan.gap <= plan.tolerance


@pytest.mark.parametrize("model", MODELS)
def test_noise_of_2_percent_adds_no_more_than_itself(model):
    """Two cells that are compared may be off by 2 % each, in opposite directions."""
    latency, plan = MODELS[model], ProfilePlan(T, 64)
    cells = measure(plan, noisy(latency, 0.02, seed=1))
    everything = sum(latency(*cell) for cell in exhaustive_cells(T, 64))
    assert sum(latency(*cell) for cell in cells) <= 0.2 * everything
    assert regret(latency, plan.measured, T, 64) <= 0.02 + 0.04


@pytest.mark.parametrize("threads", [1, 2, 3, 14])
@pytest.mark.parametrize("batch", [1, 2, 24, 64])
def test_few_threads_and_odd_sizes_are_profiled_as_well(threads, batch):
    latency, plan = MODELS["amdahl"], ProfilePlan(threads, batch)
    cells = measure(plan, latency)
    assert set(cells) <= set(exhaustive_cells(threads, batch))
    assert regret(latency, plan.measured, threads, batch) <= 0.02


def test_the_exhaustive_plan_measures_every_cell_row_by_row():
    plan = ProfilePlan(3, 6, exhaustive=True)
    expected = [(t, b) for t in (1, 2, 3) for b in (1, 2, 4, 6)]
    assert exhaustive_cells(3, 6) == expected
    assert plan.remaining() == expected
    assert measure(plan, MODELS["amdahl"]) == expected
    assert plan.remaining() == []


def limited(plan, latency, possible):
    """Measure; what is not possible is said to be so. Returns all cells that were wanted."""
    wanted = []
    while (cell := plan.next()) is not None:
        assert cell not in wanted
        wanted.append(cell)
        if possible(*cell):
            plan.add(*cell, latency(*cell))
        else:
            plan.add_impossible(*cell)
    return wanted


@pytest.mark.parametrize("exhaustive", [False, True])
def test_no_batch_larger_than_an_impossible_one_is_tried(exhaustive):
    plan = ProfilePlan(8, 64, exhaustive=exhaustive)
    wanted = limited(plan, MODELS["amdahl"], lambda t, b: b <= 4 * t)
    for t in range(1, 9):
        assert sum(of == t and b > 4 * t for of, b in wanted) <= 1


def test_the_largest_possible_batches_are_chosen_where_larger_ones_are_not():
    latency, plan = MODELS["amdahl"], ProfilePlan(4, 64)
    limited(plan, latency, lambda t, b: b <= 8)
    known = LatencyTable(cautious(plan.measured, 4, 64))
    assert minimise_latency(known, (4,), 32).latency_ms == latency(1, 8)
    assert plan.gap <= plan.tolerance


def test_a_plan_for_which_nothing_is_possible_ends():
    plan = ProfilePlan(4, 8)
    assert limited(plan, MODELS["amdahl"], lambda t, b: False) == [(4, 1), (1, 1), (2, 1)]
    assert plan.measured == {}


@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_plan_goes_on_where_it_was(model):
    latency = noisy(MODELS[model], 0.02, seed=2)
    whole = ProfilePlan(T, 64)
    cells = measure(whole, latency)
    first = ProfilePlan(T, 64)
    done = measure(first, latency, most=len(cells) // 2)
    second = ProfilePlan(T, 64)
    for cell in sorted(done):  # as a file keeps them
        second.add(*cell, latency(*cell))
    assert done + measure(second, latency) == cells
    assert (second.measured, second.margin, second.gap) == (whole.measured, whole.margin, whole.gap)


def test_a_finished_plan_wants_nothing_more():
    latency, first = MODELS["weights"], ProfilePlan(T, 64)
    cells = measure(first, latency)
    again = ProfilePlan(T, 64)
    for cell in reversed(cells):
        again.add(*cell, latency(*cell))
    assert again.remaining() == []
    assert again.next() is None


@pytest.mark.parametrize("model", MODELS)
def test_what_remains_begins_with_the_next_cell_and_changes_nothing(model):
    plan, latency = ProfilePlan(T, 64), MODELS[model]
    for _ in range(12):
        following = plan.next()
        ahead = plan.remaining()
        assert ahead[0] == following == plan.next()
        assert len(ahead) == len(set(ahead))
        assert not set(ahead) & plan.measured.keys()
        plan.add(*following, latency(*following))
    assert all(plan.estimate(cell) > 0 for cell in plan.remaining())


def test_an_estimate_is_what_was_measured_or_follows_from_its_neighbours():
    plan = ProfilePlan(4, 4)
    assert plan.estimate((1, 1)) == np.inf
    known = {(4, 1): 3.0, (4, 2): 4.0, (4, 4): 6.0, (1, 1): 9.0, (1, 2): 10.0}
    for _ in known:
        cell = plan.next()
        plan.add(*cell, known[cell])
    plan.next()
    assert {cell: plan.estimate(cell) for cell in known} == known
    assert plan.estimate((1, 4)) == 12.0  # one more for each request
    assert plan.estimate((2, 1)) == pytest.approx(5.0)  # 1 + 8 / threads
    assert plan.estimate((3, 2)) == pytest.approx(2 + 8 / 3)
