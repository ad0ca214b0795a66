"""The rules in C give what the golden tables say, and what those in Python give."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.batching.forming import release, threshold
from shunter.batching.forming.latency import LatencyFit
from shunter.batching.forming.threshold import AdaptiveThreshold
from shunter.nic_frontend import build

MS = 1_000_000
HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS
MOST = 1 << 20
"""The largest batch of the page."""

TIMES_US = st.integers(0, DAY_NS // 1000)
SLACKS_US = st.none() | st.integers(-DAY_NS // 1000, DAY_NS // 1000)
SIZES = st.integers(1, 64) | st.integers(1, MOST)
COUNTS = st.integers(0, 80) | st.integers(0, MOST)
CAPS = st.lists(st.integers(0, 9) | st.integers(0, MOST), max_size=64)
LATENCIES = st.integers(0, 60) | st.integers(0, HOUR_NS)
FLAGS = st.booleans()
REALS = st.floats(1, 1e9) | st.integers(1, 80).map(float)
ALPHAS = st.floats(0, 0.999999)


# ---- golden tables

RELEASE = (
    "should_release",
    "split",
    "split_by_latency",
    "fit_deadlines",
    "is_too_late",
    "too_late_at_ns",
    "staggered_size",
    "predicted_wait_ns",
    "may_send_ahead",
    "wake_after_us",
)


@pytest.mark.parametrize("table", RELEASE)
def test_the_release_rules_are_the_golden_ones(c_rules, golden, table):
    for *arguments, expected in golden("release.json")[table]["rows"]:
        found = getattr(c_rules, table)(*arguments)
        found = list(found) if isinstance(found, tuple) else found
        assert (found, type(found)) == (expected, type(expected)), arguments


@pytest.mark.parametrize("table", ["step", "hold_ns"])
def test_the_formulas_of_the_threshold_are_the_golden_ones(c_rules, golden, table):
    for *arguments, expected in golden("threshold.json")[table]["rows"]:
        assert getattr(c_rules, table)(*arguments) == expected, arguments


def test_the_adaptive_threshold_is_the_golden_one(c_rules, golden):
    for events, expected in golden("threshold.json")["adaptive"]["rows"]:
        rule, states = c_rules.adaptive(), []
        for kind, *numbers in events:
            name = ("answered", "settle", "worth", "held")[kind]
            worth = getattr(rule, name)(*numbers)
            states.append([rule.value, rule.returning, worth if name == "worth" else 0.0])
        assert states == expected


def test_the_latency_fit_is_the_golden_one(c_rules, golden):
    for observed, expected in golden("latency.json")["fit"]["rows"]:
        rule, known = c_rules.fit(), []
        for seen in observed:
            rule.observe(*seen)
            worth = float(rule.worth_ns())
            known.append([rule.fixed_ns, rule.per_request_ns, rule.error_ns, worth])
        assert known == expected


def test_every_golden_table_of_these_rules_is_compared(golden):
    assert set(golden("release.json")) == set(RELEASE)
    assert set(golden("threshold.json")) == {"step", "hold_ns", "adaptive"}


# ---- as in Python, whatever the numbers


def same(c_rules, name, *arguments):
    module = release if hasattr(release, name) else threshold
    assert getattr(c_rules, name)(*arguments) == getattr(module, name)(*arguments)


@given(st.tuples(COUNTS, TIMES_US, SLACKS_US, REALS, TIMES_US, COUNTS, TIMES_US, TIMES_US))
def test_a_batch_leaves_when_it_does_in_python(c_rules, numbers):
    same(c_rules, "should_release", *numbers)


@given(st.tuples(TIMES_US, SLACKS_US, TIMES_US, TIMES_US, TIMES_US))
def test_the_timer_is_that_of_python(c_rules, numbers):
    same(c_rules, "wake_after_us", *numbers)


FEW = st.integers(0, 2)


@given(st.tuples(COUNTS, REALS, SIZES, FEW, FEW, FEW, FLAGS, FLAGS, FLAGS))
def test_a_batch_is_sent_ahead_when_it_is_in_python(c_rules, numbers):
    same(c_rules, "may_send_ahead", *numbers)


@given(COUNTS, CAPS)
def test_a_split_is_that_of_python(c_rules, queued, caps):
    same(c_rules, "split", queued, caps)


WORKERS = st.lists(
    st.tuples(st.integers(0, 9) | st.integers(0, MOST), LATENCIES, LATENCIES), max_size=8
)


@given(COUNTS, WORKERS)
def test_a_split_by_latency_is_that_of_python(c_rules, queued, workers):
    columns = [list(column) for column in zip(*workers, strict=True)] or [[], [], []]
    same(c_rules, "split_by_latency", queued, *columns)


@given(
    st.tuples(SIZES, LATENCIES, LATENCIES, st.lists(LATENCIES | st.integers(0, 4000), max_size=8))
)
def test_a_staggered_size_is_that_of_python(c_rules, numbers):
    same(c_rules, "staggered_size", *numbers)


@st.composite
def deadlines(draw):
    """What fit_deadlines is asked: often near what a batch takes, with and without deadlines."""
    cap, waiting = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    fixed, per_request = draw(LATENCIES), draw(LATENCIES)
    count = min(waiting, 2 * cap + 1)
    edges = st.builds(
        lambda n, d: fixed + n * per_request + d, st.integers(0, 2 * cap), st.integers(-1, 1)
    )
    slack = st.integers(-50, 900) | edges | st.just((1 << 63) - 1)
    slacks = sorted(draw(st.lists(slack, min_size=count, max_size=count)))
    size = draw(st.integers(1, min(cap, waiting)))
    next_free = draw(st.sampled_from([0, 1, (1 << 63) - 1]) | LATENCIES)
    return slacks, waiting, size, cap, fixed, per_request, next_free


@settings(max_examples=500)
@given(deadlines(), st.data())
def test_the_cut_for_deadlines_is_that_of_python(c_rules, numbers, data):
    same(c_rules, "fit_deadlines", *numbers)
    slacks, waiting, *others = numbers
    count = len(slacks)
    rows = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    waiting = sum(rows) + data.draw(st.sampled_from([0, 1, waiting]))
    same(c_rules, "fit_deadlines", slacks, waiting, *others, rows)


@given(LATENCIES, st.integers(-DAY_NS, DAY_NS), LATENCIES)
def test_what_is_too_late_is_so_in_python(c_rules, now, left, needed):
    same(c_rules, "is_too_late", now, now + left, needed)
    same(c_rules, "too_late_at_ns", now, now + left, needed)
    for edge in (needed - 1, needed, needed + 1):
        same(c_rules, "is_too_late", now, now + edge, needed)
        same(c_rules, "too_late_at_ns", now, now + edge, needed)


@given(st.tuples(COUNTS, SIZES, LATENCIES, LATENCIES))
def test_the_predicted_wait_is_that_of_python(c_rules, numbers):
    same(c_rules, "predicted_wait_ns", *numbers)


@given(st.tuples(REALS, st.floats(0, 1e9) | REALS, ALPHAS, REALS))
def test_a_step_of_the_threshold_is_that_of_python(c_rules, numbers):
    same(c_rules, "step", *numbers)


@given(st.tuples(st.floats(0, 1e15) | st.floats(399_999, 400_001), st.integers(0, HOUR_NS)))
def test_a_hold_is_that_of_python(c_rules, numbers):
    same(c_rules, "hold_ns", *numbers)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(SIZES, st.integers(0, 20 * MS) | st.integers(0, HOUR_NS)), max_size=90),
    st.sampled_from([(0.0, 0.0), (4e6, 3e6)]),
)
def test_a_latency_fit_is_that_of_python(c_rules, observed, start):
    ours, theirs = c_rules.fit(*start), LatencyFit(*start)
    for seen in observed:
        ours.observe(*seen)
        theirs.observe(*seen)
        assert (ours.fixed_ns, ours.per_request_ns) == (theirs.fixed_ns, theirs.per_request_ns)
        assert (ours.error_ns, ours.batches) == (theirs.error_ns, theirs.batches)
        assert (ours.known(), ours.caution_ns()) == (theirs.known, theirs.caution_ns)
        assert ours.worth_ns() == theirs.worth_ns
        line = ours.line()
        assert (line.fixed_ns, line.per_request_ns) == (
            int(theirs.fixed_ns),
            int(theirs.per_request_ns),
        )


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("answered"), st.integers(1, 40), st.integers(0, 40), LATENCIES),
        st.tuples(st.just("settle")),
        st.tuples(st.just("came"), st.integers(1, 40)),
        st.tuples(st.just("worth"), st.integers(1, 9), st.integers(0, 9 * MS)),
        st.tuples(st.just("held")),
        st.tuples(st.just("tune"), ALPHAS, REALS),
    ),
    max_size=80,
)


@settings(max_examples=300)
@given(EVENTS, st.lists(st.integers(0, 5 * MS), min_size=80, max_size=80), st.integers(0, 9 * MS))
def test_an_adaptive_threshold_is_that_of_python(c_rules, events, pauses, hold):
    ours, theirs = c_rules.adaptive(), AdaptiveThreshold()
    now = arrivals = 0
    for (kind, *numbers), pause in zip(events, pauses, strict=False):
        now += pause
        if kind == "answered":
            *numbers, long_hold = numbers
            arguments = (now, *numbers, arrivals, long_hold if long_hold < 60 else hold)
            ours.answered(*arguments)
            theirs.answered(*arguments)
        elif kind == "worth":
            free, since = numbers
            found = ours.worth(now, free, max(0, now - since))
            assert found == theirs.worth(now, free, max(0, now - since))
        elif kind == "held":
            theirs.held()
            assert ours.held() == theirs.hold_end_ns()
        elif kind == "tune":
            theirs.alpha, theirs.cap = ours._state.alpha, ours._state.cap = numbers
        else:
            ours.settle(now, arrivals)
            theirs.settle(now, arrivals)
            arrivals += sum(numbers)
        assert (ours.value, ours.returning) == (theirs.value, theirs.returning)


# ---- edges that Python does not have


@pytest.mark.parametrize("fixed", [1e30, float("inf")])
def test_a_number_that_is_too_large_becomes_the_largest(c_rules, fixed):
    assert c_rules.hold_ns(fixed, 5 * MS) == 5 * MS
    assert c_rules.fit(fixed, -fixed).line().fixed_ns == (1 << 63) - 1
    assert c_rules.fit(fixed, -fixed).line().per_request_ns == -(1 << 63)


def test_the_rules_are_not_compiled_with_relaxed_arithmetic(tmp_path):
    for flag in ("-Ofast", "-ffast-math"):
        with pytest.raises(build.BuildError, match="not with -ffast-math"):
            build.build(tmp_path / "relaxed.so", more=(flag, "-fsyntax-only"))
