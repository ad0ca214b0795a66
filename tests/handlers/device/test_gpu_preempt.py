"""The benchmark of preemption on a GPU, with toy models on the fake driver: what it measures is
nothing, but everything runs, failures lose nothing, and the budget is kept."""

import importlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.slow
BENCH = Path(__file__).parents[3] / "bench"


def build(name, **sizes):
    torch.manual_seed(len(name))
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(1, 8)


@pytest.fixture
def bench(monkeypatch):
    """The script, whose results are kept here."""
    monkeypatch.syspath_prepend(str(BENCH))
    script = importlib.import_module("gpu_preempt")
    written = {}
    monkeypatch.setattr(
        script, "write_result", lambda name, **content: written.update({name: content})
    )
    monkeypatch.setattr(script, "keep", lambda *_: None)
    monkeypatch.setattr(script.gpu_bed.disb_models, "build", build)
    script.written = written
    return script


@pytest.fixture(autouse=True)
def turns():
    """The clients spin, and each keeps the others from Python for a turn; a short one."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def short(bench, monkeypatch):
    """Two models and one workload."""
    monkeypatch.setattr(bench, "NAMES", ("vgg19", "resnet152"))
    monkeypatch.setattr(bench.gpu_disb, "workloads", lambda _: [bench.gpu_disb.disb_workloads.A])
    return bench


@pytest.fixture
def bed(bench, fake_executors):
    """A bed on the fake driver."""
    return bench.gpu_bed.Bed(
        driver=fake_executors.driver,
        device=torch.device("cpu"),
        gpu="NVIDIA Fake 1",
        recorder=lambda stream: fake_executors.recorder(),
        current=lambda stream: nullcontext(),
    )


PLENTY_S = 3600
"""A budget that is not spent on any machine."""


def trace(folder):
    path = folder / "trace.json"
    strict = {"type": "trace", "trace": [0, 5, 9]}
    tasks = [
        {"id": "a_rt", "load": strict, "client": {"model_name": "vgg19-imagenet"}},
        {
            "id": "b_be",
            "load": {"type": "continuous"},
            "client": {"model_name": "inceptionv3-imagenet"},
        },
    ]
    path.write_text(json.dumps({"time": 1, "tasks": tasks}))
    return path


def test_everything_is_measured_and_written(bench, bed, tmp_path, capsys):
    session = bench.Session(PLENTY_S, True)
    session.seconds = lambda what, cells: 0.01
    bench.measure_on(bed, session, 1, trace(tmp_path))
    assert session.failures == []
    preempt, disb = bench.written["fake/preempt"], bench.written["fake/disb"]
    kinds = {row["kind"] for row in preempt["rows"]}
    assert kinds == {"attributes", "captured", "gate_cost", "latency", "ladder"}
    ways = {(row["model"], row["way"]) for row in preempt["rows"] if row["kind"] == "latency"}
    assert ways == {(name, way) for name in bench.NAMES for way in bench.WAYS}
    labels = [row["label"] for row in preempt["rows"] if row["kind"] == "ladder"]
    assert len(labels) == len(set(labels)) == 1 + 1 + 5 + 5 + 4
    assert {row["workload"] for row in disb["rows"]} == {*"ABCDE", "REAL"}
    assert len(disb["rows"]) == 6 * 4
    assert preempt["headline"]["wrong_answers"] == 0
    assert preempt["headline"]["kernel_p50_us"] is None
    assert set(disb["headline"]["throughput_vs_rt_only"]) == {*"ABCDE", "REAL"}
    json.dumps([preempt["rows"], disb["rows"]])
    assert "V2 segment 50 us" in capsys.readouterr().out


def test_what_fails_is_noted_and_the_rest_is_measured(short, bed, monkeypatch):
    bench = short
    session = bench.Session(PLENTY_S, True)
    session.seconds = lambda what, cells: 0.01
    real = bench.gpu_ladder.latencies

    def latencies(desk, name, way, seconds):
        if name == "vgg19":
            raise TimeoutError("the device does not come to stand still")
        return real(desk, name, way, seconds)

    monkeypatch.setattr(bench.gpu_ladder, "latencies", latencies)
    monkeypatch.setattr(bench.gpu_ladder, "gate_cost", lambda *_: 1 / 0)
    bench.measure_on(bed, session, 1, None)
    failures = [row for row in bench.written["fake/preempt"]["rows"] if row["kind"] == "failure"]
    assert [row["what"] for row in failures] == ["latency"] * len(bench.WAYS) + ["gate_cost"]
    assert "stand still" in failures[0]["failed"]
    assert bench.written["fake/disb"]["rows"]


def test_without_gates_the_lower_rungs_are_measured(short, bed, fake_executors):
    bench = short
    fake_executors.cuda.failing["cuMemHostRegister"] = 801
    session = bench.Session(PLENTY_S, True)
    session.seconds = lambda what, cells: 0.01
    bench.measure_on(bed, session, 1, None)
    # Where the device cannot write memory of the host, nothing tells how far it is.
    assert {row["what"] for row in session.failures} == {"latency"}
    assert bench.written["fake/disb"]["headline"]["rung"] == "segments"
    labels = {row.get("label", "") for row in bench.written["fake/preempt"]["rows"]}
    assert not any(label.startswith("V2") for label in labels)


def test_when_the_budget_is_spent_the_rest_is_noted_as_skipped(bench, bed):
    session = bench.Session(0, True)
    bench.measure_on(bed, session, 1, None)
    rows = bench.written["fake/preempt"]["rows"]
    assert {row["kind"] for row in rows} == {"failure"}
    assert all(row["skipped"] for row in rows)
    assert bench.written["fake/disb"]["headline"]["strict_mean_overhead_worst"] is None


def test_a_wrong_answer_is_counted(bench, bed, fake_executors):
    with bed.executor() as desk:
        runner = desk.best_effort("vgg19", bench.Rung.SEGMENTS)
        with bench.gpu_clients.Background(bed, {"vgg19": runner}, lambda: False) as background:
            runner.parks = 1
            background._wanted["vgg19"] = background._wanted["vgg19"] + 1
            runner.run = lambda inputs: runner.captured.outputs
            background._pass("vgg19", runner)
            assert [one.right for one in background.passes] == [False]
