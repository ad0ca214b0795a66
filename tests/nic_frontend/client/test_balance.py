"""Which front end is asked, by tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.nic_frontend.client import BadRequestError, TooLateError, UnreachableError
from shunter.nic_frontend.client.requests.balance import (
    FIRST_PAUSE_NS,
    MOST_FAILURES,
    MOST_PAUSE_NS,
    Balancer,
    Health,
    health_of,
    may_go_elsewhere,
)
from shunter.nic_frontend.client.requests.errors import error_of, unsent

GOOD, FAILED, GONE, UNKNOWN = Health.GOOD, Health.FAILED, Health.GONE, Health.UNKNOWN
S = 1_000_000_000


def of(*outstanding, draws=()):
    """A balancer whose random numbers are these, then zeros."""
    left = list(draws)
    found = Balancer(len(outstanding), lambda n: left.pop(0) % n if left else 0)
    for endpoint, count in zip(found.endpoints, outstanding, strict=True):
        endpoint.outstanding = count
    return found


@pytest.mark.parametrize(
    ("outstanding", "draws", "tried", "expected"),
    [
        ([0], [], [], 0),
        ([3, 1], [0, 0], [], 1),
        ([3, 1], [1, 0], [], 1),
        ([2, 2], [1, 0], [], 1),  # the first drawn
        ([5, 1, 0], [0, 0], [], 1),  # the third was not drawn
        ([5, 1, 0], [0, 1], [], 2),
        ([5, 1, 0], [0, 0], [1], 2),
        ([5, 1, 0], [0, 0], [1, 2], 0),
        ([5, 1], [], [0, 1], None),
    ],
)
def test_of_two_the_less_busy_one_is_asked(outstanding, draws, tried, expected):
    balancer = of(*outstanding, draws=draws)
    assert balancer.pick(0, tried) == expected
    if expected is not None:
        assert balancer.endpoints[expected].outstanding == outstanding[expected] + 1


@pytest.mark.parametrize(
    ("ends", "is_left_alone"),
    [
        ([GONE], True),
        ([FAILED] * (MOST_FAILURES - 1), False),
        ([FAILED] * MOST_FAILURES, True),
        ([FAILED, FAILED, GOOD, FAILED, FAILED], False),
        ([FAILED, FAILED, UNKNOWN, FAILED], True),
        ([UNKNOWN] * 9, False),
        ([GONE, GOOD], False),
    ],
)
def test_who_fails_is_left_alone(ends, is_left_alone):
    balancer = of(0, 9)
    for end in ends:
        balancer.endpoints[0].outstanding += 1
        balancer.ended(0, end, S)
    assert balancer.pick(S + 1) == (1 if is_left_alone else 0)


def test_after_its_pause_one_request_at_a_time_tries_it():
    balancer = of(1, 0)
    balancer.ended(0, GONE, S)
    back = S + FIRST_PAUSE_NS
    assert balancer.pick(back - 1) == 1
    assert balancer.pick(back) == 0
    assert balancer.pick(back) == 1  # one is on its way already
    balancer.ended(0, GOOD, back)
    balancer.endpoints[1].outstanding = 9
    assert [balancer.pick(back) for _ in "12"] == [0, 0]


def test_the_pause_doubles_up_to_a_limit_and_begins_anew_when_it_was_well():
    balancer, now, pauses = of(0, 0), S, []
    for _ in range(8):
        balancer.endpoints[0].outstanding += 1
        balancer.ended(0, GONE, now)
        pauses.append(balancer.endpoints[0].ejected_until_ns - now)
        now = balancer.endpoints[0].ejected_until_ns
    assert pauses == [S, 2 * S, 4 * S, 8 * S, 16 * S] + [MOST_PAUSE_NS] * 3
    balancer.endpoints[0].outstanding += 2
    balancer.ended(0, GOOD, now)
    balancer.ended(0, GONE, now)
    assert balancer.endpoints[0].ejected_until_ns == now + FIRST_PAUSE_NS


def test_many_that_fail_at_once_are_one_failure():
    balancer = of(5)
    for _ in range(5):
        balancer.ended(0, GONE, S)
    assert balancer.endpoints[0].ejected_until_ns == S + FIRST_PAUSE_NS


def test_where_all_have_failed_the_one_whose_pause_ends_first_is_asked():
    balancer = of(1, 1, 1)
    for at, now in ((1, 3 * S), (2, S), (0, 2 * S)):
        balancer.ended(at, GONE, now)
    assert balancer.pick(3 * S - 1) == 2  # which is due
    assert balancer.pick(3 * S - 1) == 2 or balancer.endpoints[2].outstanding == 1
    assert of(0).pick(0) == 0


MAY_NOT, IF_IDEMPOTENT, MAY = range(3)


@pytest.mark.parametrize(
    ("error", "health", "elsewhere"),
    [
        (BadRequestError("x"), GOOD, MAY_NOT),
        (TooLateError("x"), GOOD, MAY_NOT),
        (error_of(500), GOOD, MAY_NOT),
        (error_of(504), GOOD, MAY_NOT),
        (error_of(429), GOOD, MAY),
        (error_of(426), GOOD, MAY_NOT),
        (error_of(502), FAILED, IF_IDEMPOTENT),
        (error_of(410), FAILED, IF_IDEMPOTENT),
        (error_of(521), FAILED, MAY),
        (error_of(503), FAILED, MAY),
        (UnreachableError("x"), GONE, IF_IDEMPOTENT),
        (unsent(UnreachableError("x")), GONE, MAY),
    ],
)
def test_what_an_error_says_of_the_server_and_whether_another_may_be_asked(
    error, health, elsewhere
):
    assert health_of(error) is health
    found = [may_go_elsewhere(error, idempotent=each) for each in (False, True)]
    assert found == [elsewhere == MAY, elsewhere in (MAY, IF_IDEMPOTENT)]


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Health))))
def test_somebody_is_always_asked_and_what_is_on_its_way_is_counted(count, ends):
    balancer, now, on_way = Balancer(count), 0, []
    for which, health in ends:
        now += which * S
        found = balancer.pick(now)
        assert found is not None
        on_way.append(found)
        if len(on_way) > which:
            balancer.ended(on_way.pop(which), health, now)
        counts = [on_way.count(i) for i in range(count)]
        assert [each.outstanding for each in balancer.endpoints] == counts
