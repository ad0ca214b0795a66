"""The simulated market and day: what is paid, who is taken, that nothing is taken at work."""

import numpy as np
import pytest

from shunter.allocator.cluster.procurement import Acquire, Drain, Kind, Phase, Release


@pytest.fixture
def market(script):
    return lambda chance, **how: script("clouds.market").Market(
        chance, 30.0, 1, **{"in_zones": False, **how}
    )


def test_machines_are_paid_from_the_request_to_the_release(market):
    sold = market(0.0)
    sold.act(0.0, [Acquire(Kind.SPOT, 1), Acquire(Kind.ON_DEMAND, 2)])
    sold.until(100.0)
    assert sold.count[Phase.STARTING] == 3
    sold.until(130.0)
    assert sold.count[Phase.LIVE] == 3
    sold.act(1800.0, [Drain("m2", ""), Release("m1", "")])
    assert sold.count == {
        Kind.SPOT: 0,
        Kind.ON_DEMAND: 2,
        Phase.STARTING: 0,
        Phase.LIVE: 1,
        Phase.DRAINING: 1,
    }
    sold.close(3600.0)
    assert sold.hours == {Kind.SPOT: 0.5, Kind.ON_DEMAND: 2.0}


def test_spot_machines_are_taken_after_a_notice_as_often_as_was_said(market):
    sold = market(0.5)
    sold.act(0.0, [Acquire(Kind.SPOT, 1000), Acquire(Kind.ON_DEMAND, 10)])
    assert 400 < sold.failed[Kind.SPOT] < 600
    assert sold.failed[Kind.ON_DEMAND] == 0
    had = 1000 - sold.failed[Kind.SPOT]
    for now in range(0, 7300, 10):
        sold.until(now)
        assert all(each.ends_at is None or each.ends_at > now for each in sold.machines.values())
    left = sum(each.kind == Kind.SPOT for each in sold.machines.values())
    assert 0.2 < left / had < 0.3
    # Nobody drained them; a few were still starting.
    assert 0.95 * (had - left) < sold.taken_at_work <= had - left


def test_a_zone_takes_all_its_machines_at_once(market):
    sold = market(1.0, in_zones=True)
    sold.act(0.0, [Acquire(Kind.SPOT, 120)])
    sold.until(3600.0)
    assert sold.evictions == 120
    sold.act(3700.0, [Acquire(Kind.SPOT, 10)])
    assert sold.failed[Kind.SPOT] == 10


def test_few_are_late_at_half_load_and_what_is_too_much_at_twice(script):
    late = script("clouds.curve").late_share
    assert late(0.4, 10, 1.0, 1) < 0.01
    assert late(2.0, 10, 1.0, 1) > 0.4


def test_between_and_beyond_the_simulated_loads(script):
    curve = script("clouds.curve").Curve([0.5, 1.0], [0.0, 0.2])
    found = curve.missed(np.array([0.1, 0.5, 0.75, 1.0, 1.6]))
    assert found == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.5])


@pytest.mark.parametrize("in_zones", [False, True])
def test_a_few_hours_cost_less_than_on_demand_and_are_as_good(script, market, in_zones):
    day, world = script("clouds.day"), script("clouds.world")
    curve = script("clouds.curve").Curve([0.6, 1.0], [0.0, 0.3])
    rates = np.full(7200, 20 * world.NODE_RATE)
    rates[3600:] *= 1.5
    schemes = {each.name: each for each in day.SCHEMES}
    found = {
        name: day.simulate(schemes[name], rates, 1.0, market(0.354, in_zones=in_zones), curve)
        for name in ("ours", "on demand only")
    }
    cost = {name: world.CLOUDS[0].cost(each.hours) for name, each in found.items()}
    assert cost["ours"] < 0.7 * cost["on demand only"]
    assert found["ours"].compliance > found["on demand only"].compliance - 0.01
    assert found["ours"].taken_at_work == 0
    assert found["ours"].evictions > 0
