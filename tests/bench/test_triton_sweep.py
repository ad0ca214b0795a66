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


@pytest.mark.parametrize(
    ("took", "rate"), [("finished in 500.00ms, 1", 200), ("finished in 2.00s, 1", 50)]
)
def test_a_load_that_ends_when_all_is_answered_has_the_rate_of_its_own_time(
    script, monkeypatch, took, rate
):
    h2load = script("rpc.h2load")

    def run(command, **_):
        log = command[command.index("--log-file") + 1]
        count = int(command[command.index("-n") + 1])
        with open(log, "w") as file:
            file.write("1\t200\t70\n" * count)
        printed = (
            f"{took} req/s\n"
            f"requests: {count} total, {count} started, {count} done, {count} succeeded, 0 failed\n"
            f"traffic: 1KB (1) total, 1B (1) headers (space savings 0%), 1B ({count * 12}) data\n"
        )
        return h2load.subprocess.CompletedProcess(command, 0, printed, "")

    monkeypatch.setattr(h2load.subprocess, "run", run)
    monkeypatch.setattr(h2load, "_FIRST", 100)
    found = h2load.complete(h2load.Call(1, "/x", b"x", 7), clients=1, seconds=1)
    assert (found["requests"], found["asked"], found["failed"]) == (rate, 100 + rate, 0)
    assert found["rps"] == rate * rate / 100
