"""A batch is given to the handler, as TorchServe gives it; what comes back, or why nothing does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ts.service import PREDICTION_METRIC, Service
from ts.utils.util import PredictionException

from shunter.handlers.torchserve.receive import Batch

# The name under which TorchServe logs these, for users who set its level.
logger = logging.getLogger("ts.service")


class Failed(NamedTuple):
    """A batch has failed as a whole: what TorchServe answers to each of its requests."""

    message: str
    code: int


def results_of(
    service: Service, batch: Batch, entry: Callable[..., Any] | None = None
) -> list[Any] | Failed:
    """What the handler answers, one result for each request. Its headers and statuses are in
    ``service.context.request_processor``.

    ``entry``: how the handler is called, if not as the service does.
    """
    headers, inputs, ids = batch
    context = service.context
    context.request_ids = ids
    context.request_processor = headers
    metrics = context.metrics
    metrics.request_ids = ids
    context.cl_socket = service.cl_socket

    start = time.time()
    try:
        results = (entry or service._entry_point)(inputs, context)
    except Exception as error:
        return _explain(error)
    problem = _check(results, len(inputs), context.model_name)
    if problem:
        return Failed(problem, 503)
    metrics.add_time(PREDICTION_METRIC, round((time.time() - start) * 1000, 2))
    return results


def _explain(error: Exception) -> Failed:
    """Log ``error`` and return the message and code that TorchServe gives for it."""
    if isinstance(error, MemoryError):
        logger.error("System out of memory", exc_info=True)
        return Failed("Out of resources", 507)
    if isinstance(error, PredictionException):
        logger.error("Prediction error", exc_info=True)
        return _told(error)
    if "CUDA" in str(error):
        logger.error("CUDA out of memory", exc_info=True)
        return Failed("Out of resources", 507)
    logger.warning("Invoking custom service failed.", exc_info=True)
    return Failed("Prediction failed", 503)


def _told(error: PredictionException) -> Failed:
    """What it says, if that can be sent: a text, and a number of 32 bits."""
    code = error.error_code
    if not isinstance(code, int) or not -(2**31) <= code < 2**31:
        code = 503
    return Failed(str(error.message).encode("utf-8", "replace").decode("utf-8"), code)


def _check(results: Any, expected: int, model_name: str) -> str | None:
    """Return what is wrong with the form of the handler's answer, and log it."""
    if not isinstance(results, list):
        logger.warning("model: %s, Invalid return type: %s.", model_name, type(results))
        return "Invalid model predict output"
    if len(results) != expected:
        logger.warning(
            "model: %s, number of batch response mismatched, expect: %d, got: %d.",
            model_name,
            expected,
            len(results),
        )
        return "number of batch response mismatched"
    return None
