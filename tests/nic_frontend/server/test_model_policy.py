import pytest

from oracle.dispatch import Policy
from shunter.batching.page.records import Commands, GroupTelemetry, SlotCommands, SlotIdentity
from shunter.nic_frontend.server.model_policy import policy_of

FITTED = GroupTelemetry(group_fitted=3, group_fixed_ns=10, group_per_request_ns=20)
MODEL = SlotIdentity(registered_max_wait_us=9, slo_us=30)


def commands(**values):
    return Commands(SlotCommands(**values), ())


def test_without_a_server_nobody_is_held_back():
    assert Policy().threshold == 0 and Policy().max_wait_ns == 0


def test_without_commands_it_is_the_built_in_one_with_the_model_s_numbers():
    assert policy_of(None, MODEL, [FITTED]) == Policy(max_wait_ns=9000, slo_ns=30_000)


def test_what_the_operator_set_holds():
    told = commands(
        threshold_fixed_milli=2500,
        alpha_millionths=250_000,
        threshold_cap_milli=64_000,
        max_wait_us=3,
        margin_us=4,
        ageing_us=5,
        ahead_batches=0,
        latency_fixed_ns=6,
        latency_per_request_ns=7,
        mix_classes=1,
    )
    expected = Policy(2.5, 0.25, 64.0, 3000, 4000, 5000, 6, 7, 30_000, 0, 1)
    assert policy_of(told, MODEL, [FITTED]) == expected


@pytest.mark.parametrize(("commanded", "expected"), [(3, 3000), (9, 9000), (10, 9000)])
def test_nobody_is_held_back_longer_than_was_registered(commanded, expected):
    assert policy_of(commands(max_wait_us=commanded), MODEL, []).max_wait_ns == expected


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], (0, 0)),
        ([GroupTelemetry(group_fixed_ns=9)], (0, 0)),
        ([GroupTelemetry(), FITTED], (10, 20)),
    ],
)
def test_without_a_commanded_latency_it_begins_with_the_fitted_one(groups, expected):
    policy = policy_of(commands(), MODEL, groups)
    assert (policy.fixed_ns, policy.per_request_ns) == expected
