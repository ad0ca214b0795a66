"""TorchServe's metrics cache, whose lines leave the process in groups.

Handlers see the interface and the text they know. What differs: the line is built with a host name
that is asked for once a second instead of once per line, and it goes to
:mod:`shunter.handlers.torchserve.output` directly while logging is set up as the worker left it.
Once a handler has changed the logging of these lines (levels, filters, handlers, formats), they
take TorchServe's own way.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ts.metrics.caching_metric import CachingMetric
from ts.metrics.dimension import Dimension
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.metrics.metric_type_enum import MetricTypes

from shunter.handlers.torchserve.output import LINES, LineHandler

_logger = logging.getLogger("ts.metrics.caching_metric")
_root = logging.getLogger()

_route: dict[str, Any] = {"handler": None, "formatter": None, "muted": False}
_stamp: dict[str, Any] = {"second": -1, "text": ""}


def use_direct_route(handler: LineHandler) -> None:
    """Let metric lines pass logging by as long as ``handler`` alone would write them."""
    _route["handler"] = handler
    _route["formatter"] = handler.formatter


@contextmanager
def muted() -> Iterator[None]:
    """No metric is written inside: nobody asked for what is measured there."""
    _route["muted"] = True
    try:
        yield
    finally:
        _route["muted"] = False


def _is_direct() -> bool:
    """Whether logging would do no more than hand the bare line to our handler."""
    handlers = _root.handlers
    if len(handlers) != 1 or handlers[0] is not _route["handler"]:
        return False
    handler = handlers[0]
    return (
        _logger.parent is _root
        and _logger.propagate
        and not (_logger.handlers or _logger.filters or handler.filters)
        and handler.formatter is _route["formatter"]
        and handler.level <= logging.INFO
    )


def _host_and_time() -> str:
    """Return host name and time as they stand in a line; both are made anew each second."""
    second = int(time.time())
    if second != _stamp["second"]:
        _stamp["text"] = f"#hostname:{socket.gethostname()},{second}"
        _stamp["second"] = second
    return _stamp["text"]


class LineMetric(CachingMetric):
    """A metric whose lines are written in groups."""

    def emit_metrics(self, request_id: str, value: float, dimension_string: str) -> None:
        """Write one line, in TorchServe's words."""
        if _route["muted"] or not _logger.isEnabledFor(logging.INFO):
            return
        if not _is_direct():
            super().emit_metrics(request_id, value, dimension_string)
            return
        suffix = f",{request_id}" if request_id else ""
        LINES.add(
            f"[METRICS]{self.metric_name}.{self.unit}:{value}|#{dimension_string}|"
            f"#type:{self.metric_type.name}|{_host_and_time()}{suffix}"
        )


class LineMetricsCache(MetricsCacheYamlImpl):
    """TorchServe's cache with :class:`LineMetric` in it."""

    @classmethod
    def adopt(cls, stock: MetricsCacheYamlImpl) -> LineMetricsCache:
        """Return a cache with everything that ``stock`` has read from its file."""
        cache = cls.__new__(cls)
        cache.__dict__.update(stock.__dict__)
        cache.cache = {
            metric_type: {name: _as_line_metric(metric) for name, metric in metrics.items()}
            for metric_type, metrics in stock.cache.items()
        }
        return cache

    def _add_default_dims(self, idx: str | None, dimensions: list[Dimension]) -> list[Dimension]:
        # A copy: TorchServe appends to the default list of its methods, which all caches of a
        # process share, so that every model of a pool had the name of the first.
        dims: list[Dimension] = super()._add_default_dims(idx, list(dimensions))
        return dims

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> LineMetric:
        """Add a metric, with TorchServe's checks and warnings."""
        metric = super().add_metric_to_cache(
            metric_name, unit, [] if dimension_names is None else dimension_names, metric_type
        )
        line_metric = _as_line_metric(metric)
        self.cache[metric_type][metric_name] = line_metric
        return line_metric


def _as_line_metric(metric: CachingMetric) -> LineMetric:
    return LineMetric(metric.metric_name, metric.unit, metric.dimension_names, metric.metric_type)
