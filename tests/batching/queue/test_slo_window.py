"""The share of the last minute."""

from dataclasses import replace

import pytest

from shunter.batching.page.records import NetworkTelemetry
from shunter.batching.queue.slo_window import NONE, SloWindow

SECOND = 1_000_000_000
START = 10**15


@pytest.fixture
def look():
    """Looks at counters of strict requests: those that were in time, those that were late."""
    window = SloWindow()

    def look(second, met, late, **more):
        told = NetworkTelemetry(network_slo_met=(met, 0), network_slo_late=(late, 0), **more)
        return window.attainment_ppm(told, START + int(second * SECOND))

    return look


def test_without_a_deadline_there_is_no_share(look):
    assert look(0, 0, 0, network_answered=(7, 7)) == (NONE, NONE)


def test_what_was_counted_before_the_first_look_counts(look):
    assert look(0, 3, 1) == (750_000, NONE)


def test_what_is_older_than_a_minute_does_not_count(look):
    for second in range(100):
        met = min(second, 30)
        share, _ = look(second, met, second - met)
        if second == 59:
            assert share == 30 * 1_000_000 // 59
    assert share == 0
    for second in range(100, 161):
        share, _ = look(second, 30, 69)
    assert share == NONE


def test_looks_that_follow_one_another_fast_take_no_room():
    window = SloWindow()
    for tick in range(5 * 200):
        window.attainment_ppm(NetworkTelemetry(), START + tick * SECOND // 5)
    assert len(window._seen) <= 62


def test_counters_that_begin_anew_are_another_function_s(look):
    assert look(0, 0, 100) == (0, NONE)
    assert look(5, 1, 0) == (1_000_000, NONE)


@pytest.mark.parametrize(
    "name", ["expired", "slo_late", "slo_rejected", "slo_failed", "slo_abandoned"]
)
def test_every_way_to_miss_counts(name):
    told = NetworkTelemetry(network_slo_met=(1, 3))
    told = replace(told, **{f"network_{name}": (1, 1)})
    assert SloWindow().attainment_ppm(told, START) == (500_000, 750_000)
