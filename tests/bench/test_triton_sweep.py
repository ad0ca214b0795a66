"""The claims of the Triton sweep are computed from its rows as its docstring says."""

import pytest


@pytest.fixture
def sweep(script):
    pytest.importorskip("psutil")
    return script("triton_sweep")


def load(rps, cpu_us, failed=0):
    return {"rps": rps, "cpu_us": cpu_us, "p50_us": 1, "p99_us": 2, "failed": failed}


def test_the_best_setting_is_that_of_the_cell(sweep):
    cells = [sweep.Cell("empty", "grpc", n) for n in (1, 8)]
    slow, fast = sweep.GRID[:2]
    rows = [
        {**vars(cell), **vars(setting), "rps": rps}
        for cell, rates in zip(cells, ((2, 1), (1, 2)), strict=True)
        for setting, rps in zip((slow, fast), rates, strict=True)
    ]
    assert [sweep.best(rows, cell) for cell in cells] == [slow, fast]


def test_ratios_are_of_paired_rounds_and_the_worst_cell_counts(sweep):
    setting = sweep.GRID[0]
    good = sweep.Found(setting, [load(400, 5)] * 2, [load(100, 20)] * 2)
    bad = sweep.Found(setting, [load(90, 10, 1)] * 2, [load(90, 10)] * 2)
    cells = [sweep.Cell("empty", "grpc", n) for n in (1, 8)]
    rows = sweep.rows_of(dict(zip(cells, (good, bad), strict=True)))
    assert sweep.headline(rows) == {
        "worst_throughput_vs_best_python_backend": 1,
        "geomean_vs_best_python_backend": 2,
        "cpu_per_request_vs_python_backend": 0.5,
        "worst_cpu_per_request_vs_python_backend": 1,
        "failed_requests": 2,
    }
