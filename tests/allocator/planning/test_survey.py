"""Profiles of an invented host that is disturbed for a while."""

import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.allocator.planning.latency_table import LatencyTable
from shunter.allocator.planning.measurement import Effort, estimate, is_enough
from shunter.allocator.planning.optimizer import minimise_latency
from shunter.allocator.planning.profile import Cell, batch_sizes
from shunter.allocator.planning.profile_plan import exhaustive_cells
from shunter.allocator.planning.profile_table import cautious, interpolate
from shunter.allocator.planning.survey import Survey

MODELS = {
    "amdahl": lambda t, b: 3 + 4 * b * (0.05 + 0.95 / t),
    "half serial": lambda t, b: 5 + 3 * b * (0.5 + 0.5 / t),
    "wholly parallel": lambda t, b: 0.5 + 10 * b / t,
    "cost per thread": lambda t, b: 2 + 5 * b * (0.02 + 0.98 / t) + 0.4 * t,
    "cache of a core": lambda t, b: 2 + 4 * b * (0.04 + 0.96 / t) * (1.5 if b > 8 * t else 1),
}
EFFORT = Effort()
RUNS = 8
WARM_UP = {1: 2, 2: 1}
"""Runs by the number of cells."""


class Host:
    """Its clock goes on by what it runs; between ``begin`` and ``end`` all takes longer."""

    def __init__(self, latency, seed=0, begin=0.0, end=0.0, factor=1.0):
        self._latency, self._random = latency, random.Random(seed)
        self._begin, self._end, self._factor = begin, end, factor
        self.ms = 0.0
        self.visits = Counter()

    def visit(self, keys):
        """Each cell, and the ratio of two."""
        self.visits[keys] += 1
        effort = EFFORT.again if len(keys) == 2 else EFFORT
        for _ in range(WARM_UP[len(keys)]):
            self._runs(keys)
        rounds, begin = [], self.ms
        found = []
        while not is_enough(found, (self.ms - begin) / 1e3, effort):
            rounds.append(self._runs(keys))
            found.append(rounds[-1][-1] / (rounds[-1][0] if len(keys) == 2 else 1))
        cells = []
        for key, times in zip(keys, zip(*rounds, strict=True), strict=True):
            found = estimate(times)
            cells.append(Cell(*key, found.median, found.low, found.high, found.runs))
        return cells, estimate([each[-1] / each[0] for each in rounds])

    def _runs(self, keys):
        return [self._run(*key) for key in keys]

    def _run(self, threads, batch):
        disturbed = self._begin <= self.ms < self._end
        ms = self._latency(threads, batch) * (1 + 0.01 * abs(self._random.gauss()))
        ms *= self._factor if disturbed else 1
        self.ms += ms
        return ms


def measure(host, threads, batch, visits=EFFORT.visits, **options):
    survey = Survey(threads, batch, visits=visits, **options)
    while (visit := survey.next()) is not None:
        begin, again = host.ms, len(visit) == 2
        cells, ratio = host.visit(visit)
        if again:
            survey.compare(*cells, ratio, host.ms - begin)
        else:
            survey.add(*cells, host.ms - begin)
    return survey.cells, survey


def regret(latency, cells, threads, batch):
    """How much slower the worst choice is than the best one, as a share, in truth."""
    every = {cell: latency(*cell) for cell in exhaustive_cells(threads, batch)}
    truth = LatencyTable(interpolate(every, threads, batch))
    known = LatencyTable(cautious({key: c.ms for key, c in cells.items()}, threads, batch))

    def of(size):
        best = minimise_latency(truth, (threads,), size)
        choice = minimise_latency(known, (threads,), size).configuration
        return max(truth.of(g.threads, g.batch) for g in choice) / best.latency_ms - 1

    return max(map(of, batch_sizes(batch)))


def disturbed(model, seed, begin, factor, threads, batch):
    """A host that is disturbed for 30 % of the time of a profile."""
    latency = MODELS[model]
    quiet = Host(latency)
    measure(quiet, threads, batch, visits=1)
    return Host(latency, seed, begin * quiet.ms, (begin + 0.3) * quiet.ms, factor)


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(sorted(MODELS)),
    size=st.sampled_from([(2, 8), (3, 6), (4, 16)]),
    seed=st.integers(0, 999),
    begin=st.floats(0, 0.7),
    factor=st.floats(1.1, 1.9),
)
def test_a_disturbed_period_costs_no_choice_more_than_5_percent(model, size, seed, begin, factor):
    cells, _ = measure(disturbed(model, seed, begin, factor, *size), *size)
    assert regret(MODELS[model], cells, *size) <= 0.05


def test_with_one_visit_of_each_it_would_cost_much_more():
    found = [
        regret(MODELS[model], measure(disturbed(model, 1, begin, 1.5, 2, 8), 2, 8, 1)[0], 2, 8)
        for model in MODELS
        for begin in (0.0, 0.2, 0.4, 0.6)
    ]
    assert max(found) > 0.2


@pytest.mark.parametrize("exhaustive", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_on_a_quiet_host_repeating_takes_at_most_60_percent_more(model, exhaustive):
    once, again = Host(MODELS[model]), Host(MODELS[model])
    measure(once, 4, 16, visits=1, exhaustive=exhaustive)
    _, survey = measure(again, 4, 16, exhaustive=exhaustive)
    assert again.ms <= 1.6 * once.ms
    assert survey.undecided() == ()


def test_a_host_that_is_never_quiet_does_not_keep_a_profile_for_ever():
    noise = random.Random(1)

    def latency(t, b):
        return MODELS["amdahl"](t, b) * noise.uniform(1, 2)

    host, once = Host(latency), Host(latency)
    measure(once, 4, 16, visits=1)
    _, survey = measure(host, 4, 16)
    assert max(host.visits.values()) <= EFFORT.visits - 1
    assert host.ms <= 3 * once.ms
    told = survey.undecided()
    assert told
    assert len({each.batch for each in told}) == len(told)
    assert all(each.noise > each.apart for each in told)


def test_what_was_measured_before_is_gone_on_with():
    host = Host(MODELS["amdahl"])
    cells, _ = measure(host, 4, 16)
    spent = host.ms
    known, survey = measure(host, 4, 16, cells=[cells[key] for key in sorted(cells)])
    assert (known, host.ms) == (cells, spent)
    assert 0 <= survey.gap <= 0.02


def test_a_cell_that_fails_is_not_asked_for_again_and_a_pair_that_fails_is_kept():
    survey, asked = Survey(2, 8), []
    while (visit := survey.next()) is not None:
        asked.append(visit)
        if len(visit) == 2 or visit[0][1] > 4:
            survey.fail(visit)
        else:
            survey.add(Cell(*visit[0], *[MODELS["amdahl"](*visit[0])] * 3, RUNS), 1.0)
    assert len(asked) == len(set(asked))
    assert (1, 1) in survey.cells and (2, 8) not in survey.cells
    assert any(len(visit) == 2 for visit in asked)
    assert len([visit for visit in asked if visit[0][1] == 8]) <= 2


class Drifting(Host):
    """Its speed differs by 10 % from moment to moment, and by as much for a second or two."""

    def __init__(self, latency, seed):
        super().__init__(latency, seed)
        self._slow, self._until = 1.0, 0.0

    def _run(self, threads, batch):
        if self.ms >= self._until:
            self._until = self.ms + self._random.expovariate(1 / 1500)
            self._slow = math.exp(self._random.gauss(0, 0.1))
        ms = self._latency(threads, batch) * self._slow * math.exp(self._random.gauss(0, 0.03))
        self.ms += ms
        return ms


def test_a_host_whose_speed_varies_costs_little_where_cells_take_turns():
    """Visits by themselves differ by more than most of what is chosen among."""
    found = [
        regret(latency, measure(Drifting(latency, seed), 2, 16)[0], 2, 16)
        for latency in (lambda t, b: 20 + 50 * b / t, lambda t, b: 10 + 60 * b * (0.1 + 0.9 / t))
        for seed in range(10)
    ]
    assert statistics.fmean(found) <= 0.02
    assert max(found) <= 0.08
