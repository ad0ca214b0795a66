"""The benchmark of a worker on a GPU, on the fake driver: what it measures is nothing, but every
side runs and answers what the network says."""

import importlib
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shunter.handlers.queue.device_model import DeviceModel

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """The script."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("gpu_queue")


@pytest.fixture
def make(make_executors, fake):
    """Makes models on fake devices."""

    def made(infer, models, specs, batch, device, *, graphs):
        executors = make_executors()
        stream = executors.driver.stream()

        def launch(inputs, outputs):
            executors.cuda.launch(stream, lambda: infer(inputs, outputs))

        on = executors.driver, fake.view, lambda: stream
        found = DeviceModel(infer if graphs else launch, specs, batch, *on)
        if graphs:
            current = {"current": lambda stream: nullcontext()}
            found.capture(models, lambda stream: executors.recorder(), **current)
        return found

    return made


def test_every_side_is_measured(bench, make):
    cells = [bench.measure("lenet", batch, 2, 0.01, torch.device("cpu"), make) for batch in (1, 3)]
    rows, headline = bench.summarise(cells)
    assert [set(row["requests_per_s"]) for row in rows] == [set(bench.SIDES)] * 2
    assert all(number > 0 for row in rows for number in row["requests_per_s"].values())
    assert set(headline) == {
        f"{ratio}_{end}" for ratio in bench.RATIOS for end in ("worst", "best")
    }
    json.dumps([rows, headline])


def test_wrong_results_are_seen(bench, make):
    network = bench.networks.LeNet().eval()
    specs = [bench.TensorSpec("in", "uint8", (784,)), bench.TensorSpec("out", "float32", (10,))]
    with bench.front_of(specs, 2) as front, pytest.raises(AssertionError, match="wrong results"):
        bench.check(front, network, torch.device("cpu"))


def test_a_model_that_is_not_captured_is_not_measured_as_if_it_were(bench, make, monkeypatch):
    eager = lambda *what, graphs: make(*what, graphs=False)  # noqa: E731
    with pytest.raises(RuntimeError, match="lenet is not captured"):
        bench.measure("lenet", 2, 1, 0.01, torch.device("cpu"), eager)


def test_without_a_gpu_nothing_is_measured_and_that_is_said(bench, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = SimpleNamespace(quick=True, rounds=1)
    monkeypatch.setattr(bench.Parser, "arguments", lambda self: given)
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("it measured"))
    bench.main()
    assert "nothing is measured: there is no NVIDIA GPU" in capsys.readouterr().err
