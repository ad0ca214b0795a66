"""Which rung is chosen, how parts become segments."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.handlers.device.ladder import (
    Capabilities,
    Measured,
    Rung,
    RungError,
    choose,
    group,
    worker_environment,
)

P, S, G = Rung.PRIORITY, Rung.SEGMENTS, Rung.GATES
ALL = Capabilities(wait_value=True, host_memory=True)
GOOD, BETTER = Measured(90, 0.01, 0.5), Measured(90, 0.019, 0.7)
LATE, SLOW = Measured(101, 0.01, 0.9), Measured(20, 0.03, 0.9)


@pytest.mark.parametrize(
    ("capabilities", "measured", "wanted", "rung"),
    [
        (ALL, None, None, S),
        (ALL, {}, "", S),
        (Capabilities(graphs=False), None, None, P),
        (ALL, {S: GOOD, G: BETTER}, None, G),
        (ALL, {S: BETTER, G: GOOD}, None, S),
        (ALL, {S: LATE, G: GOOD}, None, G),
        (ALL, {S: SLOW, P: GOOD}, None, P),
        (ALL, {S: LATE, G: SLOW}, None, S),
        (Capabilities(wait_value=True), {G: BETTER, S: GOOD}, None, S),
        (Capabilities(), {G: BETTER}, None, S),
        (ALL, {S: GOOD, G: BETTER}, "priority", P),
        (ALL, None, "gates", G),
    ],
)
def test_the_rung_follows_what_can_be_done_what_was_measured_and_what_is_wanted(
    capabilities, measured, wanted, rung
):
    assert choose(capabilities, measured, wanted) is rung


@pytest.mark.parametrize(
    ("capabilities", "wanted", "message"),
    [
        (ALL, "fast", "SHUNTER_DEVICE_RUNG=fast; allowed: priority, segments, gates"),
        (Capabilities(), "gates", "needs what is not there: wait_value, host_memory"),
        (Capabilities(graphs=False), "segments", "not there: graphs"),
        (Capabilities(priorities=False), "priority", "not there: priorities"),
    ],
)
def test_a_rung_that_cannot_be_had_is_an_error_that_says_why(capabilities, wanted, message):
    with pytest.raises(RungError, match=message):
        choose(capabilities, None, wanted)


@given(st.lists(st.floats(0, 100)), st.floats(0.1, 200))
def test_segments_are_all_parts_in_order_and_no_longer_than_wanted_where_parts_allow(costs, target):
    segments = group(costs, target)
    assert [i for segment in segments for i in segment] == list(range(len(costs)))
    for segment in segments:
        assert len(segment) > 0
        longest = max(costs[i] for i in segment)
        assert sum(costs[i] for i in segment) <= max(target, longest) * 1.000001
    for before, after in pairwise(segments):
        assert sum(costs[i] for i in before) + costs[after[0]] > target


def test_workers_of_both_classes_get_what_keeps_their_streams_apart():
    for strict in (True, False):
        found = worker_environment(strict)
        assert found == {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}


def test_with_mps_best_effort_comes_second_and_may_be_capped():
    strict = worker_environment(True, mps_pipe="/pipe", best_effort_percent=40)
    other = worker_environment(False, mps_pipe="/pipe", best_effort_percent=40)
    assert strict["CUDA_MPS_PIPE_DIRECTORY"] == other["CUDA_MPS_PIPE_DIRECTORY"] == "/pipe"
    assert strict["CUDA_MPS_CLIENT_PRIORITY"] == "0"
    assert other["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert other["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in strict


@pytest.mark.parametrize("percent", [0, 101])
def test_a_share_of_multiprocessors_outside_1_to_100_is_refused(percent):
    with pytest.raises(ValueError, match="allowed: 1 to 100"):
        worker_environment(False, mps_pipe="/pipe", best_effort_percent=percent)
