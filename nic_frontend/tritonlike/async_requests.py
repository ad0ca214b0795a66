"""Requests of ``async_infer``, in the shape of ``tritonclient``: they run in threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shunter.nic_frontend.tritonlike.tensors import InferenceServerException, InferResult

CANCELLED = "StatusCode.CANCELLED"
_LOG = logging.getLogger("shunter.tritonlike")


class InferAsyncRequest:
    """A request that waits for its turn, or runs, or has ended.

    What Triton's HTTP client returns (``get_result``), and what its gRPC client does (``cancel``).
    """

    def __init__(self, callback: Callable[..., Any] | None) -> None:
        """``callback`` is called once, with ``result`` and ``error``, one of which is None."""
        self._callback = callback
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._result: InferResult | None = None
        self._error: InferenceServerException | None = None

    def get_result(self, block: bool = True, timeout: float | None = None) -> InferResult:
        """The answer; wait for it, at most ``timeout`` seconds.

        Raises InferenceServerException when there is none, or none yet.
        """
        if not self._ended.wait(timeout if block else 0):
            raise InferenceServerException("failed to obtain inference response")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """It ends without an answer, if it has none; what runs already does so to its end."""
        self.end(None, InferenceServerException("cancelled by the application", CANCELLED))

    @property
    def has_ended(self) -> bool:
        """Whether it was answered, has failed, or was cancelled."""
        return self._ended.is_set()

    def end(self, result: InferResult | None, error: InferenceServerException | None) -> None:
        """Only the first end counts."""
        with self._lock:
            if self._ended.is_set():
                return
            self._result, self._error = result, error
            self._ended.set()
        if self._callback is not None:
            try:
                self._callback(result=result, error=error)
            except Exception:
                _LOG.exception("the callback of async_infer failed")


class Threads:
    """Ask at the same time, each thread one request after the other."""

    def __init__(self, count: int) -> None:
        """They begin with the first request."""
        self._ours = threading.local()
        self._pool = ThreadPoolExecutor(count, "async_infer", self._on_thread)
        self._waiting: dict[InferAsyncRequest, bool] = {}
        """Those that have not begun; who takes one out begins or cancels it."""

    def _on_thread(self) -> None:
        self._ours.is_one = True

    def run(
        self, ask: Callable[[], InferResult], callback: Callable[..., Any] | None
    ) -> InferAsyncRequest:
        """Ask as soon as there is a thread. Raises InferenceServerException after the end."""
        request = InferAsyncRequest(callback)

        def work() -> None:
            if not self._waiting.pop(request, False) or request.has_ended:
                return
            try:
                request.end(ask(), None)
            except InferenceServerException as error:
                request.end(None, error)
            except BaseException as error:
                request.end(None, InferenceServerException(repr(error), debug_details=error))
                raise

        self._waiting[request] = True
        try:
            self._pool.submit(work)
        except RuntimeError as error:
            self._waiting.pop(request, None)
            raise InferenceServerException("the client was closed", CANCELLED) from error
        return request

    def close(self, then: Callable[[], None]) -> None:
        """Cancel what has not begun, wait for the rest, then do what is to be done without them.

        From a callback it returns at once: its own request is one of the rest.
        """
        self._pool.shutdown(wait=False)
        for request in list(self._waiting):
            if self._waiting.pop(request, False):
                request.cancel()

        def finish() -> None:
            self._pool.shutdown()
            then()

        if getattr(self._ours, "is_one", False):
            threading.Thread(target=finish, name="async_infer_end").start()
        else:
            finish()
