"""What can go wrong with a request, one exception for each who is to blame. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shunter.nic_frontend.wire.layout import WireStatus


class InferenceError(Exception):
    """A request was not answered; the subclasses say whose fault that is."""

    may_have_run = True
    """False: it is certain that it has not."""


class BadRequestError(InferenceError):
    """The caller's: the tensors are not those of the model, or there is no such model."""

    may_have_run = False


class TooLargeError(BadRequestError):
    """The path's: datagrams cannot carry the tensors of the model. A stream can."""


class AuthenticationError(InferenceError):
    """The key's: the server does not know it, it is not for this, or one side has none."""

    may_have_run = False


class ServerError(InferenceError):
    """The server's: the handler failed, its worker died, or the server came to an end."""

    def __init__(self, message: str, status: int) -> None:
        """``status``: as on the wire."""
        super().__init__(message)
        self.status = status


class UnavailableError(ServerError):
    """The server's, for now: the model has no worker, so the request did not run; try again."""

    may_have_run = False


class TooLateError(InferenceError):
    """The time's: the deadline has passed, or a server that is there needs longer than allowed."""


class TooSlowError(InferenceError):
    """The reader's: it took the parts of an answer so slowly that others would have waited."""


class UnreachableError(InferenceError):
    """The network's, or the server is not there: nothing came in time."""


class BatchError(InferenceError):
    """Of the requests of a batch some were not answered."""

    def __init__(self, outputs: Sequence[Any], errors: Mapping[int, InferenceError]) -> None:
        """``outputs``: the arrays, ``[n, ...]``. ``errors``: by the numbers of the requests."""
        first = min(errors)
        super().__init__(f"{len(errors)} failed; request {first}: {errors[first]}")
        self.outputs, self.errors = outputs, dict(errors)


class NoCipherError(Exception):
    """Encryption is wanted, and there is no libcrypto; the message says what to install."""

    def __init__(self) -> None:
        """There is one reason."""
        super().__init__("encryption needs OpenSSL's libcrypto (Debian: apt-get install libssl3)")


_REASONS: dict[int, tuple[type[InferenceError], str]] = {
    WireStatus.BAD_REQUEST: (BadRequestError, "the server refused the sizes of the tensors"),
    WireStatus.UNKNOWN_FUNCTION: (BadRequestError, "the server has no such model"),
    WireStatus.TOO_LATE: (TooLateError, "the deadline had passed before the request could run"),
    WireStatus.WOULD_BE_LATE: (
        TooLateError,
        "the request did not run: its answer was predicted to miss the deadline",
    ),
    WireStatus.TOO_SLOW: (
        TooSlowError,
        "the parts were taken too slowly: others of the batch would have waited for them",
    ),
    WireStatus.TOO_LARGE: (
        TooLargeError,
        "the tensors are too large for datagrams of this path: use tcp:// or shunter://",
    ),
    WireStatus.UNAUTHORIZED: (AuthenticationError, "the server does not accept the key"),
    WireStatus.FORBIDDEN: (AuthenticationError, "the key is not for this"),
    WireStatus.MUST_ENCRYPT: (AuthenticationError, "the server serves encrypted sessions only"),
    WireStatus.CANNOT_ENCRYPT: (AuthenticationError, "the server cannot encrypt"),
}
_SERVER_REASONS: dict[int, str] = {
    WireStatus.HANDLER_FAILED: "the handler failed",
    WireStatus.WORKER_DIED: "the worker died; it is not known whether the request ran",
    WireStatus.LOST_ANSWER: "the request ran, but its answer is no longer kept",
    WireStatus.UNKNOWN_SESSION: "the server has lost the session; "
    "it is not known whether the request ran",
    WireStatus.RETRY_LATER: "the server has no room",
}


_HAS_NOT_RUN = (WireStatus.RETRY_LATER, WireStatus.WOULD_BE_LATE)


def error_of(status: int) -> InferenceError:
    """The exception for a status that is not OK."""
    if status == WireStatus.NO_WORKER:
        return UnavailableError("the request did not run: the model has no worker", status)
    if status in _REASONS:
        kind, text = _REASONS[status]
        error = kind(text)
    else:
        error = ServerError(_SERVER_REASONS.get(status, f"status {status}"), status)
    return unsent(error) if status in _HAS_NOT_RUN else error


def unsent(error: InferenceError) -> InferenceError:
    """The same, of a request that has certainly not run."""
    error.may_have_run = False
    return error


def refusal(status: int, reason: str) -> InferenceError:
    """The same for a hello, of which the server may say why."""
    error = error_of(status)
    if reason:
        error.args = (f"{error}: {reason}",)
    return error


def no_worker(model: str, reason: str) -> UnavailableError:
    """The exception for a model that is known, and has no worker now."""
    text = f"model {model} has no network worker now: {reason}"
    return UnavailableError(text, WireStatus.NO_WORKER)
