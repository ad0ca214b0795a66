import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.cluster.sizing import (
    Demand,
    MachineShape,
    Sizing,
    Trend,
    machines,
    spares,
)

SHAPE = MachineShape(4, strict_most=0.5, most=1.0)


def demand(rate, strict=True, model="m"):
    return Demand(model, strict, rate, batch_size=100, batch_s=0.5)


@pytest.mark.parametrize(
    ("demands", "count"),
    [
        ([], 0),
        ([demand(0.0)], 0),
        ([demand(1.0)], 1),
        ([demand(800.0)], 2),
        ([demand(801.0)], 3),
        ([demand(800.0, strict=False)], 1),
        ([demand(800.0, strict=False), demand(400.0)], 2),
        ([demand(1.0, model="a"), demand(1.0, model="b"), demand(1.0, model="c")], 2),
    ],
)
def test_machines_by_hand(demands, count):
    assert machines(demands, SHAPE) == count


def test_a_trend_follows_a_ramp_and_not_its_noise():
    found, draw = Trend(), random.Random(1)
    for at in range(0, 3600, 10):
        found = found.after(float(at), 1000 + 0.5 * at + draw.uniform(-20, 20))
    assert found.ahead(120) == pytest.approx(1000 + 0.5 * 3710, rel=0.02)
    assert 2 < found.error < 30
    assert found.ahead(120, 2.0) == found.ahead(120) + 2 * found.error
    assert found.after(found.at, 9e9) is found


def test_a_falling_trend_is_not_forecast_below_what_comes():
    found = Trend().after(0.0, 100.0).after(10.0, 50.0)
    assert found.ahead(1e6) == found.level > 0


@given(st.floats(0, 500), st.floats(1e-4, 0.2))
def test_spares_are_the_quantile_of_a_poisson_distribution(mean, risk):
    count = spares(1, mean, 1.0, risk)
    log_mean = math.log(mean or 1e-300)
    terms = [math.exp(at * log_mean - mean - math.lgamma(at + 1)) for at in range(count + 1)]
    assert sum(terms) >= 1 - risk - 1e-9
    assert sum(terms[:-1]) < 1 - risk + 1e-9


def test_so_many_that_the_distribution_is_normal():
    assert 1000 < spares(10000, 0.1, 1.0) < 1150


def test_more_are_wanted_before_the_load_is_there_and_fewer_only_after_a_while():
    found = Sizing(SHAPE, start_s=600.0)
    assert found.wanted() == 1
    for at in range(0, 1200, 10):
        found = found.after(float(at), [demand(1000.0 + at)])
    assert found.wanted() > machines([demand(1000.0 + 1190)], SHAPE)
    assert found.wanted(spare=3) == found.wanted() + 3
    high = found.wanted()
    for at in range(1200, 1700, 10):
        found = found.after(float(at), [demand(100.0)])
        assert found.wanted() >= high - 1
    for at in range(1700, 4000, 10):
        found = found.after(float(at), [demand(100.0)])
    assert found.wanted() == 1


def test_a_model_that_went_is_forgotten_and_the_most_is_kept():
    found = Sizing(SHAPE, 60.0, most=5).after(0.0, [demand(1e6), demand(1.0, False, "b")])
    assert found.wanted(spare=9) == 5
    assert list(found.after(1.0, [demand(1.0)]).trends) == [("m", True)]
