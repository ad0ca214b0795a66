"""A new worker runs its sample before it says that it is loaded."""

import struct

import pytest

from shunter.handlers.sample import Sample, SampleError, sample_of, section_of
from shunter.handlers.torchserve import warm_up
from shunter.handlers.torchserve.metrics import LineMetric

JSON = Sample(b'{"a": 1}', "application/json")


class Handler:
    """Answers with a status and notes what it got."""

    def __init__(self, code=200):
        self.code, self.batches = code, []

    def answer(self, batch):
        self.batches.append(batch)
        return struct.pack("!i", self.code) + b"..."

    @property
    def sizes(self):
        return [len(inputs) for _, inputs, _ in self.batches]


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (0, [1, 1, 1]),
        (1, [1, 1, 1]),
        (3, [1, 1, 1, 2]),
        (4, [1, 1, 1, 2, 4]),
        (64, [1, 1, 1, 2, 4]),
    ],
)
def test_batches_grow_a_little(largest, sizes):
    handler = Handler()
    warm_up.warm_up(handler.answer, JSON, largest)
    assert handler.sizes == sizes


def test_requests_look_like_those_of_clients():
    handler = Handler()
    warm_up.warm_up(handler.answer, JSON, 2)
    headers, inputs, ids = handler.batches[-1]
    assert inputs == [{"body": {"a": 1}}] * 2 and inputs[0] is not inputs[1]
    assert len(set(ids.values())) == 2 and sorted(ids) == [0, 1]
    assert headers[0].get_request_property("body")["content-type"] == "application/json"


def test_no_batch_is_begun_when_the_budget_is_spent(monkeypatch):
    monkeypatch.setattr(warm_up, "BUDGET_S", -1)
    handler = Handler()
    warm_up.warm_up(handler.answer, JSON, 8)
    assert handler.sizes == []


def test_a_sample_that_is_refused_is_told_and_ends_it(caplog):
    handler = Handler(503)
    warm_up.warm_up(handler.answer, JSON, 8)
    assert handler.sizes == [1]
    assert "answered 503; the worker is not warmed up" in caplog.text


def test_metrics_of_it_are_not_written(capsys, caplog):
    caplog.set_level("INFO")
    metric = LineMetric("PredictionTime", "ms", ["Level"], "gauge")

    def answer(batch):
        metric.emit_metrics("r", 1.0, "Level:Model")
        return struct.pack("!i", 200)

    warm_up.warm_up(answer, JSON, 1)
    assert "PredictionTime" not in caplog.text + capsys.readouterr().out


@pytest.mark.parametrize("name", ["missing.json", "../outside.json", "/etc/hostname"])
def test_a_sample_must_be_a_file_of_the_archive(tmp_path, name):
    (tmp_path / "outside.json").write_text("{}")
    (tmp_path / "model").mkdir()
    with pytest.raises(SampleError, match="sample: "):
        sample_of(tmp_path / "model", {"sample": name})


def test_a_model_without_a_sample_has_none(tmp_path):
    assert section_of(None) == section_of({"shunter": 3}) == section_of({}) == {}
    assert sample_of(tmp_path, {}) is None


def test_the_type_of_a_sample_comes_from_its_name(tmp_path):
    path = tmp_path / "a.JPG"
    path.write_bytes(b"x")
    assert Sample.read(path) == Sample(b"x", "image/jpeg")
    assert Sample.read(path, "text/plain").content_type == "text/plain"
