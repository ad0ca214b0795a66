import heapq
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.batching.forming.latency import LatencyFit
from shunter.batching.forming.threshold import (
    IDLE,
    AdaptiveThreshold,
    hold_ns,
    step,
)

ALPHAS = st.floats(0, 0.999999)
CAPS = st.floats(1, 1e6)
COUNTS = st.floats(0, 1e6)


def run(t, counts, alpha=0.5, cap=128.0):
    seen = []
    for c in counts:
        t = step(t, c, alpha, cap)
        seen.append(t)
    return seen


def test_the_golden_table_holds(golden):
    rows = golden("threshold.json")["step"]["rows"]
    assert len(rows) >= 200
    for t, c, alpha, cap, expected in rows:
        assert step(t, c, alpha, cap) == expected


@pytest.mark.parametrize(
    ("t", "counts", "alpha", "expected"),
    [
        # worked by hand from the formula of the paper
        (1.0, [9, 9, 9], 0.5, [5.0, 7.0, 8.0]),
        (1.0, [9], 0.75, [3.0]),
        (4.0, [12], 0.0, [12.0]),
        (8.0, [7, 7, 7], 0.5, [4.0, 5.5, 6.25]),
        (8.0, [8, 8], 0.5, [8.0, 8.0]),
        (3.0, [0, 0], 0.5, [1.5, 1.0]),
        (100.0, [1000], 0.5, [128.0]),
    ],
)
def test_rises_by_averaging_and_falls_by_halving(t, counts, alpha, expected):
    assert run(t, counts, alpha) == expected


def test_seven_quiet_batches_bring_the_highest_threshold_of_the_paper_back_to_one():
    seen = run(128.0, [0] * 7)
    assert seen[-1] == IDLE == 1.0
    assert seen[-2] > 1.0


def test_a_constant_load_becomes_the_threshold():
    assert run(1.0, [20] * 60)[-1] == pytest.approx(20)


@given(st.data(), COUNTS, ALPHAS, CAPS)
def test_stays_between_one_and_the_cap(data, c, alpha, cap):
    t = data.draw(st.floats(1, cap))
    assert 1 <= step(t, c, alpha, cap) <= cap


@given(st.data(), COUNTS, ALPHAS, CAPS)
def test_moves_towards_the_load_and_never_rises_past_it(data, c, alpha, cap):
    t = data.draw(st.floats(1, cap))
    following = step(t, c, alpha, cap)
    if c > t:
        assert t <= following <= max(t, c * (1 + 1e-12))
    elif c < t:
        assert following == max(1.0, t / 2)
    else:
        assert following == t


@given(st.data(), COUNTS, COUNTS, ALPHAS, CAPS)
def test_more_arrivals_never_give_a_lower_threshold(data, few, more, alpha, cap):
    t = data.draw(st.floats(1, cap))
    few, more = sorted((few, more))
    assert step(t, few, alpha, cap) <= step(t, more, alpha, cap) * (1 + 1e-12)


MS = 1_000_000


class ClosedLoop:
    """Clients that send when they have an answer, workers, and the rule between them.

    A batch of n takes ``fixed + n * per_request`` ms, a client sends ``away`` ms after its answer.
    A worker is held back as the true fixed cost says, or as a ``fit`` to what was seen does.
    """

    def __init__(
        self, clients, workers=1, fixed=4.0, per_request=3.0, away=0.5, cap=64, seed=1, fit=None
    ):
        self.choose, self.rule = random.Random(seed), AdaptiveThreshold()
        self.fixed, self.per_request, self.away, self.cap = fixed, per_request, away, cap
        self.fit, self.hold = fit, hold_ns(fixed * MS, 5 * MS)
        self.events, self.order = [], 0
        self.queue, self.arrivals, self.now = [], 0, 0
        self.free = dict.fromkeys(range(workers), -1)
        self.sizes, self.waits, self.ends = [], [], []
        self.wanted = clients
        for client in range(clients):
            self.push(self.choose.randrange(MS), "arrive", client)

    def push(self, when, kind, what=None):
        self.order += 1
        heapq.heappush(self.events, (int(when), self.order, kind, what))

    def run(self, seconds):
        until = self.now + seconds * 1000 * MS
        while self.events and self.events[0][0] < until:
            self.now, _, kind, what = heapq.heappop(self.events)
            self.rule.settle(self.now, self.arrivals)
            if kind == "arrive" and what < self.wanted:
                self.arrivals += 1
                self.queue.append((self.now, what))
            elif kind == "answer":
                worker, batch, lasted = what
                if self.fit:
                    self.fit.observe(len(batch), int(lasted))
                    self.hold = hold_ns(self.fit.worth_ns, 50 * MS)
                self.free[worker] = self.now
                self.ends.append(self.now)
                self.rule.answered(self.now, len(batch), len(self.queue), self.arrivals, self.hold)
                for _, client in batch:
                    away = self.away * (0.5 + self.choose.random())
                    self.push(self.now + away * MS, "arrive", client)
            self.dispatch()
        self.now = until
        return self

    def dispatch(self):
        while self.queue and self.free:
            worth = self.rule.worth(self.now, len(self.free), min(self.free.values()))
            if len(self.queue) < min(worth, self.cap * len(self.free)):
                self.rule.held()
                self.push(self.rule.hold_end_ns(), "wake")
                return
            size = min(-(-len(self.queue) // len(self.free)), self.cap)
            batch, self.queue = self.queue[:size], self.queue[size:]
            self.waits.append(self.now - batch[-1][0])
            lasts = (self.fixed + size * self.per_request) * (0.95 + 0.1 * self.choose.random())
            self.sizes.append(size)
            worker = next(iter(self.free))
            del self.free[worker]
            self.push(self.now + lasts * MS, "answer", (worker, batch, lasts * MS))


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 8, 16, 29])
def test_one_worker_finds_the_number_of_clients(clients):
    loop = ClosedLoop(clients).run(3)
    assert statistics.median(loop.sizes[-20:]) == clients
    assert loop.rule.value <= clients


@pytest.mark.parametrize(("clients", "workers"), [(4, 2), (8, 2), (12, 3)])
def test_several_workers_find_their_share_of_the_clients(clients, workers):
    loop = ClosedLoop(clients, workers, fixed=10, per_request=1).run(4)
    assert statistics.mean(loop.sizes[-40:]) == pytest.approx(clients / workers, rel=0.1)


@settings(max_examples=25)
@given(st.integers(1, 24), st.integers(0, 1000))
def test_the_number_is_found_within_a_dozen_batches_or_so(clients, seed):
    loop = ClosedLoop(clients, seed=seed).run(5)
    assert statistics.median(loop.sizes[30:60]) == clients


@pytest.mark.parametrize("clients", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_line_without_fixed_cost_does_not_keep_batches_from_forming_for_long(clients, seed):
    # A slow first batch of two told the line that everything is by the request; while nobody is
    # waited for, only single ones follow, which say nothing else.
    fit = LatencyFit()
    for size, latency in [(1, 900), (1, 300), *[(1, 41), (2, 82)] * 20, *[(1, 41)] * 20]:
        fit.observe(size, latency * MS)
    loop = ClosedLoop(clients, fixed=19.0, per_request=22.0, away=1.0, seed=seed, fit=fit).run(8)
    assert statistics.mean(loop.sizes[-10:]) == clients


class NeverTries(LatencyFit):
    worth_ns = property(lambda self: int(self.fixed_ns))


@pytest.mark.parametrize("seed", range(6))
def test_trying_to_wait_costs_little_where_nothing_is_to_be_gained(seed):
    def answered(fit):
        loop = ClosedLoop(2, fixed=0.0, per_request=40.0, away=5.0, seed=seed, fit=fit).run(60)
        return sum(loop.sizes)

    assert answered(LatencyFit()) > 0.97 * answered(NeverTries())


def test_clients_that_take_long_are_not_waited_for():
    loop = ClosedLoop(8, away=20).run(3)
    assert loop.rule.returning < 0.75
    assert max(loop.waits) < 60 * MS


@settings(max_examples=25)
@given(st.integers(2, 24), st.integers(0, 1000))
def test_a_worker_waits_once_for_clients_that_are_gone(clients, seed):
    loop = ClosedLoop(clients, seed=seed).run(3)
    loop.wanted, loop.waits = 1, []
    loop.run(3)
    held = [wait for wait in loop.waits[1:] if wait > 0]
    assert len(held) <= 1
    assert max(held, default=0) <= loop.hold


@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_requests_that_come_whatever_the_server_does_are_not_waited_for(load):
    loop, choose, when = ClosedLoop(1), random.Random(2), 0.0
    loop.events.clear()
    loop.away = 1e9  # nobody comes back
    rate = load * 64 / (4 + 3 * 64)
    held = []
    loop.rule.held = lambda: held.append(loop.now)
    while when < 5000:
        when += choose.expovariate(rate)
        loop.push(when * MS, "arrive", 0)
    loop.run(5)
    assert len(loop.sizes) > 20
    assert len(held) <= len(loop.sizes) / 50


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), max_size=60))
def test_the_adaptive_value_stays_between_one_and_the_cap(steps):
    rule, now, arrivals = AdaptiveThreshold(cap=16), 0, 0
    for waiting, came in steps:
        now += 10 * MS
        rule.answered(now, 4, waiting, arrivals, 3 * MS)
        arrivals += came
        rule.settle(now + 3 * MS, arrivals)
        assert 1 <= rule.value <= 16
        assert 0 <= rule.returning <= 1


def test_a_worker_that_was_idle_before_is_never_held_back():
    rule, arrivals = AdaptiveThreshold(), 0
    for k in range(30):
        rule.answered(100 * MS * k, 8, 0, arrivals, 3 * MS)
        arrivals += 8
        rule.settle(100 * MS * k + 3 * MS, arrivals)
    rule.answered(5000 * MS, 8, 0, arrivals, 3 * MS)
    assert rule.worth(5001 * MS, 1, 5000 * MS) > 7
    assert rule.worth(5001 * MS, 1, 4000 * MS) == IDLE
    assert rule.worth(5003 * MS, 1, 5000 * MS) == IDLE
