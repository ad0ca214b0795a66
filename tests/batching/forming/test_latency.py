import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.forming.latency import SKIP, LatencyFit

MS = 1_000_000


def fitted(
    batches, *, fixed=4.0, per_request=3.0, sizes=(1, 2, 4, 8), noise=0.05, seed=1, fit=None
):
    """A fit after batches of a model that takes ``fixed + n * per_request`` ms."""
    choose, fit = random.Random(seed), fit or LatencyFit()
    for _ in range(batches):
        size = choose.choice(sizes)
        fit.observe(size, int((fixed + size * per_request) * MS * choose.gauss(1, noise)))
    return fit


def test_the_golden_table_holds(golden):
    for observed, known in golden("latency.json")["fit"]["rows"]:
        fit, found = LatencyFit(), []
        for size, latency in observed:
            fit.observe(size, latency)
            found.append([fit.fixed_ns, fit.per_request_ns, fit.error_ns, fit.worth_ns])
        assert found == known


def test_a_line_without_noise_is_found():
    fit = fitted(60, noise=0)
    assert fit.predict_ns(1) == pytest.approx(7 * MS, rel=1e-3)
    assert fit.predict_ns(32) == pytest.approx(100 * MS, rel=1e-2)
    assert fit.error_ns < 0.05 * MS


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_averaged_and_told_as_error(seed):
    fit = fitted(200, seed=seed)
    assert fit.predict_ns(4) == pytest.approx(16 * MS, rel=0.06)
    assert 0.2 * MS < fit.error_ns < 2 * MS


def test_nothing_is_known_before_the_warm_up_is_over():
    fit = LatencyFit()
    for _ in range(SKIP):
        assert not fit.known
        fit.observe(1, 900 * MS)
    assert not fit.known
    fit.observe(2, 10 * MS)
    assert fit.known
    assert fit.predict_ns(2) == 10 * MS


def test_until_sizes_differ_all_is_taken_for_fixed_and_the_first_others_correct_it():
    fit = fitted(50, sizes=(1,), noise=0)
    assert fit.predict_ns(1) == pytest.approx(7 * MS, rel=1e-6)
    assert fit.predict_ns(4) == pytest.approx(7 * MS, rel=1e-6)
    fitted(12, sizes=(1, 4), noise=0, fit=fit)
    assert fit.predict_ns(4) == pytest.approx(16 * MS, rel=0.25)


@pytest.mark.parametrize("factor", [0.01, 100])
def test_a_model_that_became_altogether_different_is_followed_within_a_dozen_batches(factor):
    fit = fitted(200)
    fitted(12, fixed=4 * factor, per_request=3 * factor, fit=fit)
    assert fit.predict_ns(4) == pytest.approx(16 * MS * factor, rel=0.5)


def test_the_slope_is_kept_while_all_batches_have_one_size():
    fit = fitted(100, noise=0)
    slope = fit.per_request_ns
    fitted(300, sizes=(4,), noise=0.05, fit=fit)
    assert fit.per_request_ns == pytest.approx(slope, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_few_outliers_hardly_move_the_line(seed):
    choose, fit = random.Random(seed), fitted(60, seed=seed)
    for i in range(100):
        size = choose.choice((1, 2, 4, 8))
        latency = (4 + 3 * size) * MS * choose.gauss(1, 0.05)
        fit.observe(size, int(latency * (10 if i % 25 == 7 else 1)))
    assert fit.predict_ns(4) == pytest.approx(16 * MS, rel=0.2)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_model_that_became_slower_or_faster_is_followed(factor):
    fit = fitted(200)
    fitted(80, fixed=4 * factor, per_request=3 * factor, fit=fit)
    assert fit.predict_ns(4) == pytest.approx(16 * MS * factor, rel=0.15)


def test_a_line_that_is_known_from_elsewhere_holds_until_batches_were_seen():
    fit = LatencyFit(4.0 * MS, 3.0 * MS)
    assert fit.predict_ns(8) == 28 * MS
    assert not fit.known


def test_what_a_batch_less_saves_is_the_fixed_cost_once_sizes_tell_it():
    fit = fitted(60, noise=0)
    assert fit.worth_ns == int(fit.fixed_ns)
    assert fit.worth_ns == pytest.approx(4 * MS, rel=0.01)


def test_now_and_again_it_is_half_of_the_latency_while_all_batches_have_one_size():
    fit = fitted(300, fixed=0.0, per_request=41.0, sizes=(1, 2), noise=0)
    assert fit.worth_ns < MS
    worth = []
    for i in range(400):
        fitted(1, fixed=19.0, per_request=22.0, sizes=(1,), seed=i, fit=fit)
        worth.append(fit.worth_ns)
    assert fit.fixed_ns < 3 * MS  # the slope that it was told, and no sign of anything else
    tries = [w for w in worth[-256:] if w > 10 * MS]
    assert len(tries) == 256 // 2
    assert tries == pytest.approx([20.5 * MS] * 128, rel=0.1)
    fitted(2, fixed=19.0, per_request=22.0, sizes=(2,), noise=0, fit=fit)
    assert fit.worth_ns == int(fit.fixed_ns)  # two of another size say what it is


def test_caution_is_twice_the_error():
    fit = fitted(100)
    assert fit.caution_ns == pytest.approx(2 * fit.error_ns, abs=1)


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 3_600_000_000_000)), max_size=80))
def test_predictions_are_never_negative_and_grow_with_the_size(observed):
    fit = LatencyFit()
    for size, latency in observed:
        fit.observe(size, latency)
        assert fit.fixed_ns >= -1e-3 * fit.predict_ns(1) - 1
        assert fit.per_request_ns >= 0
        assert fit.error_ns >= 0
        assert fit.predict_ns(2) >= fit.predict_ns(1)
