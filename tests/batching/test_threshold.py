import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.threshold import IDLE, step

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
