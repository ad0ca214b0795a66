"""``shunter trace``: an access log as spans, by the real SDK."""

import json
import threading
import time

import pytest

from shunter.plugins.cli import main as cli
from shunter.plugins.cli.observe import trace
from shunter.plugins.errors import UserError

sdk = pytest.importorskip("opentelemetry.sdk.trace")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOLD = {
    "id": "4f1d",
    "model": "digits/1.0",
    "class": "strict",
    "arrived_unix_ms": 1_790_000_000_123.5,
    "deadline_ms": 40.0,
    "waited_ms": 12.25,
    "ran_ms": 20.0,
    "batch": 3,
    "group": 0,
    "deaths": 0,
    "status": 200,
    "in_time": True,
    "why": "",
    "traceparent": TRACE,
}


@pytest.fixture
def spans():
    """What is made of requests."""
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(sdk.export.SimpleSpanProcessor(exporter))

    def spans(told):
        exporter.clear()
        trace.spans_of(told, provider.get_tracer("test"))
        return {span.name.split()[0]: span for span in exporter.get_finished_spans()}

    return spans


def test_a_request_is_a_part_of_its_callers_trace(spans):
    found = spans(TOLD)
    whole, queue, batch = found["infer"], found["queue"], found["batch"]
    assert f"{whole.context.trace_id:032x}" == TRACE.split("-")[1]
    assert f"{whole.parent.span_id:016x}" == TRACE.split("-")[2]
    assert {queue.parent.span_id, batch.parent.span_id} == {whole.context.span_id}
    begun = whole.start_time
    assert abs(begun - 1_790_000_000_123_500_000) < 1000  # what a float has of microseconds
    assert whole.start_time == queue.start_time == begun
    assert queue.end_time == batch.start_time == begun + 12_250_000
    assert whole.end_time == batch.end_time == begun + 32_250_000
    assert whole.attributes["shunter.deadline_ms"] == 40
    assert batch.attributes["shunter.batch_size"] == 3
    assert whole.status.is_unset or whole.status.is_ok


def test_one_that_was_refused_has_no_batch(spans):
    why = "The deadline cannot be met"
    refused = {"group": None, "ran_ms": 0, "status": 504, "why": why, "deadline_ms": None}
    found = spans(TOLD | refused)
    assert set(found) == {"infer", "queue"}
    assert found["infer"].status.description == why
    assert "shunter.deadline_ms" not in found["infer"].attributes


@pytest.mark.parametrize("parent", ["", "nonsense", None])
def test_without_a_trace_it_is_one_of_its_own(spans, parent):
    told = {key: value for key, value in TOLD.items() if key != "traceparent"}
    told |= {} if parent is None else {"traceparent": parent}
    assert spans(told)["infer"].parent is None


def test_a_log_is_read_whatever_is_in_it(tmp_path):
    log = tmp_path / "log"
    lines = [json.dumps(TOLD), "", "{", '{"left_out": 3}', "[]", json.dumps(TOLD | {"id": "b"})]
    log.write_text("\n".join(lines) + "\n" + json.dumps(TOLD)[:20])
    assert [told["id"] for told in trace.lines_of(log, follow=False)] == ["4f1d", "b"]
    with pytest.raises(UserError, match="cannot be read"):
        next(trace.lines_of(tmp_path / "none", follow=False))


def test_a_log_that_goes_on_and_is_moved_away_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "_LOOK_S", 0.01)
    log, seen = tmp_path / "log", []
    log.write_text(json.dumps(TOLD | {"id": "0"}) + "\n")
    enough = threading.Event()

    def follow():
        for told in trace.lines_of(log, follow=True):
            seen.append(told["id"])
            if told["id"] == "end":
                enough.set()
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()

    def until(count):
        end = time.monotonic() + 60
        while len(seen) < count:
            assert time.monotonic() < end
            time.sleep(0.01)

    until(1)
    text = json.dumps(TOLD | {"id": "1"}) + "\n"
    with log.open("a") as file:  # a line that comes in two parts
        file.write(text[:30])
        file.flush()
        time.sleep(0.05)
        file.write(text[30:])
    until(2)
    log.rename(tmp_path / "old")
    time.sleep(0.05)
    log.write_text(json.dumps(TOLD | {"id": "end"}) + "\n")
    assert enough.wait(60)
    assert seen == ["0", "1", "end"]


def test_the_command_sends_what_has_a_trace(tmp_path, capsys, monkeypatch):
    log = tmp_path / "log"
    other = {key: value for key, value in TOLD.items() if key != "traceparent"}
    log.write_text(json.dumps(TOLD) + "\n" + json.dumps(other) + "\n")
    sent = []
    exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    monkeypatch.setattr(
        exporters.OTLPSpanExporter,
        "export",
        lambda self, spans: sent.extend(spans) or sdk.export.SpanExportResult.SUCCESS,
    )
    for options, count in (((), 1), (("--every",), 2)):
        sent.clear()
        with pytest.raises(SystemExit) as ended:
            cli.main(["trace", str(log), "--once", *options])
        assert not ended.value.code
        assert f"{count} requests sent" in capsys.readouterr().out
        assert len(sent) == 3 * count
