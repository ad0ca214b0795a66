"""Packrat's claims through the server are computed from the rounds as the docstrings say."""

import argparse

import numpy as np
import pytest


@pytest.fixture(scope="module")
def serving(script):
    return script("packrat_serving")


@pytest.fixture(scope="module")
def reconfigure(script):
    return script("packrat_reconfigure")


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_what_batches_answer_in_a_second_does_not_hang_on_where_counting_ends(script, batches):
    """Sixteen clients, whose batches begin one after the other and take 0.6 s each."""
    rate, each = script("sides").closed_rate, 16 // batches
    begins = np.arange(8)[:, None] * 0.6 + np.arange(batches) * 0.6 / batches
    sent = np.repeat(begins.ravel(), each)
    took = np.full(len(sent), 0.6)
    for count in range(64, len(sent), 7):
        assert rate(sent[:count], took[:count], 16) == pytest.approx(16 / 0.6)


def test_too_few_answers_are_no_rate(script):
    rate, sent = script("sides").closed_rate, np.repeat([0.0, 0.6, 1.2, 1.8, 2.4], 4)
    assert rate(sent[:16], np.full(16, 0.6), 4) == pytest.approx(4 / 0.6)
    assert rate(sent[:15], np.full(15, 0.6), 4) is None
    assert rate(sent[:4], np.full(4, 0.6), 4) is None


def test_a_side_is_not_measured_with_settings_that_its_server_would_refuse(script, tmp_path):
    unknown = "[configuration]\ntimeout_s = 4\nwindow = 20\n"
    with pytest.raises(ValueError, match=r"configuration\.window = 20 is unknown"):
        script("sides").Side(tmp_path, shunter=False, settings=unknown)


def test_the_worst_row_counts_against_stocks_best(serving):
    batches, names = (4, 8), serving.SAME_MEMORY
    selection = {batch: dict.fromkeys(names, serving.Setting()) for batch in batches}
    samples = [
        {"batch": batch, "configuration": "2x1x32", "shunter": 10.0}
        | dict(zip(names, rates, strict=True))
        for batch, rates in ((4, (5.0, 8.0)), (8, (5.0, 12.5)))
        for _ in range(4)
    ]
    rows, headline = serving.summarise(samples, selection, names)
    assert headline["geomean_vs_fat_same_memory"] == pytest.approx(2)
    assert headline["worst_vs_best_stock_same_memory"] == pytest.approx(0.8)
    assert "worst_vs_best_stock" not in headline
    assert rows[1]["vs_best_stock_same_memory"]["high"] == pytest.approx(0.8)


@pytest.mark.parametrize(("rates", "rounds"), [((10, 9, 11, 10), 7), ((9, 9, 9, 9), 4)])
def test_a_tie_is_broken_by_more_rounds(serving, monkeypatch, rates, rounds):
    asked = {"ours": 0, "best": 0}

    def ask(url, batch, seconds):
        asked[url] += 1
        return 10.0 if url == "ours" else float(rates[asked[url] % len(rates)])

    monkeypatch.setattr(serving, "ask", ask)
    urls = {"shunter": "ours", serving.SAME_MEMORY[1]: "best"}
    args = argparse.Namespace(rounds=4, quick=False, seconds=1)
    assert len(list(serving.rounds_of(urls, 4, args))) == rounds


def test_every_window_as_long_as_the_period_has_as_many_arrivals(reconfigure):
    times = reconfigure.arrivals(11.7, 60, seed=1)["times"]
    counts = {
        sum(begin <= t < begin + reconfigure.QUIET_S for t in times) for begin in (3, 17.3, 40)
    }
    assert len(counts) == 1 and times == sorted(times)


def rounds_of_changes(reconfigure, ended):
    """Two rounds; 100 ms with the configuration for 8, 200 ms with the one for 64."""
    times = reconfigure.arrivals(10, 60, seed=1)["times"]
    changed = {"to": "x", "asked": 18.0, "serves": 30.0, "ended": ended}
    shared = {"model": "m", "rate": 10, "seconds": 60, "change": changed, "due_s": times}
    return [
        {**shared, "step": step, "round": number, "status": [200] * len(times)}
        | {"latency_ms": [before if t < 33 else after for t in times]}
        for number in range(2)
        for step, before, after in (("8 -> 64", 100, 200), ("64 -> 8", 200, 100))
    ]


def test_what_a_configuration_is_by_nature_is_no_aftermath(reconfigure):
    rows, headline = reconfigure.summarise(rounds_of_changes(reconfigure, 33.0))
    assert headline["p99_after_vs_before"] == 2 and headline["p99_after_vs_settled"] == 1
    assert headline["failed_requests"] == 0 and headline["change_seconds"] == 12
    assert rows[0]["after"]["p99_ms"] == {"value": 200, "low": 200, "high": 200, "rounds": 2}


def test_after_a_change_that_took_too_long_nothing_is_claimed(reconfigure):
    _, headline = reconfigure.summarise(rounds_of_changes(reconfigure, 50.0))
    assert headline["p99_after_vs_before"] is None and headline["p50_after_vs_before"] is None
