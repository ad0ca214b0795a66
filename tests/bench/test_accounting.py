"""Sums over samples, by numbers."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def accounting(script):
    return script("accounting")


def samples(accounting, rows):
    """Rows of (due s, latency ms, status)."""
    due, latency, status = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(due))
    return accounting.Samples(due, zeros, zeros, latency / 1e3, status.astype(int), zeros)


@pytest.fixture
def mixed(accounting):
    rows = [(0.1, 10, 200), (0.2, 30, 200), (0.3, 5, 503), (0.6, 900, -1), (0.7, 20, 200)]
    return samples(accounting, [*rows, (0.8, 1, 1008), (1.9, 4, -2), (1.95, 50, 200)])


def test_refused_late_and_unanswered_requests_are_misses(accounting, mixed):
    found = accounting.summary(mixed, 2.0, slo_ms=30)
    assert found["sent"] == 8
    expected = {"200": 4, "503": 1, "RESOURCE_EXHAUSTED": 1, "broken": 1, "timeout": 1}
    assert found["statuses"] == expected
    assert (found["ok"], found["good"], found["unanswered"]) == (4, 3, 2)
    assert (found["goodput_per_s"], found["ok_per_s"], found["offered_per_s"]) == (1.5, 2, 4)
    assert found["attainment"] == 0.375
    assert (found["p50_ms"], found["p99_ms"], found["max_ms"]) == (20, 50, 50)


def test_without_an_slo_every_answer_is_good(accounting, mixed):
    assert accounting.summary(mixed, 2.0, slo_ms=None)["good"] == 4


def test_nothing_sent_and_nothing_answered_have_no_percentiles(accounting, mixed):
    nothing = accounting.summary(mixed.between(5, 6), 1.0, slo_ms=1)
    assert (nothing["sent"], nothing["attainment"], nothing["p50_ms"]) == (0, None, None)
    refused = accounting.summary(mixed.where(mixed.status == 503), 1.0, slo_ms=1)
    assert (refused["attainment"], refused["p99_ms"]) == (0, None)


def test_windows_go_by_scheduled_time(accounting, mixed):
    series = accounting.windows(mixed, 2.0, width_s=0.5, slo_ms=20)
    assert series["start_s"] == [0, 0.5, 1, 1.5]
    assert series["sent"] == [3, 3, 0, 2]
    assert series["ok"] == [2, 1, 0, 1]
    assert series["good"] == [1, 1, 0, 0]
    assert series["unanswered"] == [0, 1, 0, 1]
    assert series["p50_ms"] == [10, 20, None, 50]


def test_samples_come_back_from_a_file(accounting, mixed, tmp_path):
    mixed.save(tmp_path / "x.npz")
    again = accounting.Samples.read(tmp_path / "x.npz")
    assert again.status.tolist() == mixed.status.tolist()
    assert len(again.of(0)) == len(mixed) and len(again.of(1)) == 0
