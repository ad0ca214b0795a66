import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.dispatch import Policy
from shunter.batching.page.records import Commands, GroupTelemetry, SlotCommands
from shunter.nic_frontend.server.model_policy import policy_of

FITTED = GroupTelemetry(group_fitted=3, group_fixed_ns=10, group_per_request_ns=20)


def commands(**values):
    return Commands(SlotCommands(**values), ())


def test_without_commands_it_is_the_built_in_one():
    assert policy_of(None, [FITTED]) == Policy()


def test_what_the_operator_set_holds():
    told = commands(
        threshold_fixed_milli=2500,
        max_wait_us=3,
        margin_us=4,
        ageing_us=5,
        ahead_batches=0,
        latency_fixed_ns=6,
        latency_per_request_ns=7,
    )
    assert policy_of(told, [FITTED]) == Policy(2.5, 3000, 4000, 5000, 6, 7, 0)


@pytest.mark.parametrize(
    ("fixed", "cap", "threshold"),
    [(0, 128_000, 1), (500, 128_000, 1), (4000, 2000, 2), (4000, 128_000, 4)],
)
def test_the_threshold_is_fixed_or_one(fixed, cap, threshold):
    told = commands(threshold_fixed_milli=fixed, threshold_cap_milli=cap)
    assert policy_of(told, []).threshold == threshold


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], (0, 0)),
        ([GroupTelemetry(group_fixed_ns=9)], (0, 0)),
        ([GroupTelemetry(), FITTED], (10, 20)),
    ],
)
def test_without_a_commanded_latency_it_is_the_fitted_one(groups, expected):
    policy = policy_of(commands(), groups)
    assert (policy.fixed_ns, policy.per_request_ns) == expected


@given(st.integers(0, 10**12), st.integers(1000, 10**12))
def test_it_never_waits_for_less_than_a_request(fixed, cap):
    told = commands(threshold_fixed_milli=fixed, threshold_cap_milli=cap)
    assert policy_of(told, []).threshold >= 1
