"""The statistics of the benchmarks, by numbers."""

import importlib.util
import math
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def common():
    path = Path(__file__).parents[2] / "bench/common.py"
    spec = importlib.util.spec_from_file_location("bench_common", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_the_interval_of_equal_samples_is_a_point(common):
    assert common.bootstrap([2.0] * 7) == (2.0, 2.0)


def test_the_interval_contains_the_median_and_repeats(common):
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    low, high = common.bootstrap(values)
    assert low <= 4.0 <= high
    assert low > 1.0 or high < 7.0
    assert common.bootstrap(values) == (low, high)
