"""The statistics of the benchmarks, by numbers."""

import json
import math
from datetime import UTC, datetime

import pytest


@pytest.fixture(scope="module")
def common(script):
    return script("common")


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5], 0.5, 5),
        ([4, 1, 3, 2], 0.5, 2),
        ([4, 1, 3, 2], 0.51, 3),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 1001)), 0.999, 999),
        ([1, 2], 1.0, 2),
    ],
)
def test_a_percentile_is_the_smallest_value_that_covers_its_share(common, values, share, expected):
    assert common.percentile(values, share) == expected


def test_the_percentile_of_nothing_is_no_number(common):
    assert math.isnan(common.percentile([], 0.5))


def test_ratios_are_paired_before_the_median_is_taken(common):
    found = common.paired_ratio([10, 20, 90], [1, 10, 30])
    assert (found["median"], found["pairs"]) == (3, 3)


def test_a_round_in_which_the_other_side_answered_nothing_counts(common):
    assert common.paired_ratio([10, 20], [0, 10])["pairs"] == 2
    assert common.paired_ratio([10, 20, 5], [0, 0, 5])["median"] == float("inf")


def test_results_are_json_whatever_the_numbers(common, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "result_path", lambda name, quick: tmp_path / f"{name}.json")
    common.keep("x", True, {"partial": [float("nan")]})
    path = common.write_result("x", quick=True, rows=[{"ratio": float("inf")}], headline={})
    assert '"inf"' in path.read_text()
    assert not (tmp_path / "x.partial.json").exists()


def test_a_result_says_of_which_commit_it_is_and_whether_that_was_changed(common, repository):
    result = repository / "bench/results/a.json"
    result.parent.mkdir(parents=True)
    result.write_text("1")
    (repository / "code.py").write_text("1")
    commit = repository.commit()
    found = common.origin(repository.path)
    assert (found["commit"], found["dirty"]) == (commit, False)
    result.write_text("2")
    assert common.origin(repository.path)["dirty"] is False, "a benchmark's result is no code"
    (repository / "code.py").write_text("2")
    assert common.origin(repository.path)["dirty"] is True


def test_a_result_says_when_it_was_taken_and_how_busy_the_machine_was(common, tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    found = common.origin(tmp_path)
    assert before <= datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    assert len(found["load_average"]) == 3 and min(found["load_average"]) >= 0
    assert found["commit"] is None and found["dirty"] is None, "there is no repository"


def test_the_origin_stands_in_the_result_as_it_was_when_the_run_began(
    common, tmp_path, monkeypatch
):
    monkeypatch.setattr(common, "result_path", lambda name, quick: tmp_path / f"{name}.json")
    monkeypatch.setattr(common, "_began", {"commit": "abc", "load_average": [0.5, 0.5, 0.5]})
    path = common.write_result("x", quick=True, rows=[], headline={})
    assert json.loads(path.read_text())["origin"] == common._began
    common._began.clear()
    path = common.write_result("x", quick=True, rows=[], headline={})
    assert json.loads(path.read_text())["origin"].keys() == {
        "commit",
        "dirty",
        "date",
        "load_average",
    }


def test_the_interval_of_equal_samples_is_a_point(common):
    assert common.bootstrap([2.0] * 7) == (2.0, 2.0)


def test_the_interval_contains_the_median_and_repeats(common):
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    low, high = common.bootstrap(values)
    assert low <= 4.0 <= high
    assert low > 1.0 or high < 7.0
    assert common.bootstrap(values) == (low, high)
