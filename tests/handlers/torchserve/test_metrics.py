import copy
import io
import logging
import pickle
import socket
import time

import pytest
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

from shunter.handlers.torchserve import metrics, output
from shunter.handlers.torchserve.metrics import LineMetric, LineMetricsCache, use_direct_route
from shunter.handlers.torchserve.output import LineHandler, LineWriter


@pytest.fixture
def root(monkeypatch):
    """The root logger without handlers, as a worker finds it; pytest's come back afterwards."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    yield root
    root.setLevel(level)


@pytest.fixture(autouse=True)
def frozen(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1234.5)
    monkeypatch.setattr(socket, "gethostname", lambda: "node")
    monkeypatch.setitem(metrics._stamp, "second", -1)


@pytest.fixture
def lines(monkeypatch):
    lines = LineWriter(io.StringIO(), interval=3600)
    monkeypatch.setattr(metrics, "LINES", lines)
    monkeypatch.setattr(output, "LINES", lines)
    return lines


def use_metrics(cache):
    """What handlers do, the odd things included."""
    cache.request_ids = {0: "r0", 1: "r1"}
    cache.add_time("PredictionTime", 1.25)
    cache.add_time("PredictionTime", 3, idx=1, unit="s")
    cache.add_counter("Requests", 1, dimensions=[Dimension("Kind", "a%sb")])
    cache.add_counter("Requests", -1, dimensions=[Dimension("Kind", "x")])
    cache.add_percent("Load", 50.0, idx=0)
    cache.add_size("Bytes", 7, unit="B")
    cache.add_error("Oops", 1)
    cache.add_metric("Own", 2, "things", metric_type=MetricTypes.HISTOGRAM)
    metric = cache.add_metric_to_cache("More", "ms", ["A"], MetricTypes.GAUGE)
    metric.add_or_update(1, ["x"])
    metric.add_or_update(1, ["x", "too many"])
    metric.update(2, "r9", [Dimension("B", "y")])
    cache.get_metric("PredictionTime", MetricTypes.GAUGE).add_or_update(5, ["m", "l"], "r")
    cache.request_ids = None
    cache.add_time("HandlerTime", 2)


def stock_text(root, cache):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    use_metrics(cache)
    return stream.getvalue()


def our_handler(root, lines):
    stream = lines.stream
    handler = LineHandler(lines)
    lines.stream = stream
    handler.setFormatter(logging.Formatter("%(message)s"))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    use_direct_route(handler)
    return handler


def test_every_line_has_the_text_of_torchserve(root, lines, stock_metrics):
    ours = LineMetricsCache.adopt(copy.deepcopy(stock_metrics))
    expected = stock_text(root, stock_metrics)
    our_handler(root, lines)
    use_metrics(ours)
    lines.flush()
    assert lines.stream.getvalue() == expected
    assert expected.count("[METRICS]") >= 10


def test_the_host_name_is_asked_for_once_a_second(root, lines, stock_metrics, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "gethostname", lambda: asked.append(1) or "node")
    our_handler(root, lines)
    ours = LineMetricsCache.adopt(stock_metrics)
    ours.request_ids = {0: "r0"}
    for second in (1.0, 1.5, 1.9, 2.0):
        monkeypatch.setattr(time, "time", lambda second=second: second)
        ours.add_time("PredictionTime", 1)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda root, handler: root.setLevel(logging.WARNING),
        lambda root, handler: handler.setLevel(logging.WARNING),
        lambda root, handler: handler.addFilter(lambda record: "Own" not in record.msg),
        lambda root, handler: handler.setFormatter(logging.Formatter("%(name)s %(message)s")),
        lambda root, handler: root.handlers.clear(),
        lambda root, handler: root.addHandler(logging.NullHandler()),
    ],
)
def test_what_a_handler_does_to_logging_holds_for_metric_lines(root, lines, stock_metrics, change):
    handler = our_handler(root, lines)
    change(root, handler)
    ours = LineMetricsCache.adopt(copy.deepcopy(stock_metrics))
    use_metrics(ours)
    lines.flush()
    got = lines.stream.getvalue()

    stream = io.StringIO()
    stock_handler = logging.StreamHandler(stream)
    stock_handler.setFormatter(logging.Formatter("%(message)s"))
    root.handlers[:] = [stock_handler]
    root.setLevel(logging.INFO)
    change(root, stock_handler)
    use_metrics(stock_metrics)
    assert got == stream.getvalue()


def test_metrics_can_be_copied_and_pickled_like_torchserve_s(stock_metrics):
    ours = LineMetricsCache.adopt(stock_metrics)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert twin.cache_keys() == stock_metrics.cache_keys()
        assert all(
            type(metric) is LineMetric for kind in twin.cache.values() for metric in kind.values()
        )


def test_models_of_one_process_each_write_their_own_name(root, lines, stock_metrics):
    for shared in filter(None, LineMetricsCache.add_time.__defaults__):
        if isinstance(shared, list):  # what stock's own caches left there
            shared.clear()
    our_handler(root, lines)
    twins = []
    for name in ("first", "second"):
        twins.append(LineMetricsCache.adopt(stock_metrics))
        twins[-1].model_name, twins[-1].request_ids = name, {0: "r"}
    for twin in (*twins, twins[0]):
        twin.add_time("PredictionTime", 1)
    lines.flush()
    written = lines.stream.getvalue().splitlines()
    names = [line.split("ModelName:")[1].split(",")[0] for line in written]
    assert names == ["first", "second", "first"]
