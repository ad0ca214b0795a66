"""Our errors as those of Triton's clients."""

from __future__ import annotations

from shunter.nic_frontend.client.requests.errors import (
    AuthenticationError,
    BadRequestError,
    InferenceError,
    TooLateError,
    UnavailableError,
    UnreachableError,
)
from shunter.nic_frontend.tritonlike.shared_regions import RegionError
from shunter.nic_frontend.tritonlike.tensors import InferenceServerException

_STATUS: tuple[tuple[type[Exception], str], ...] = (
    (BadRequestError, "StatusCode.INVALID_ARGUMENT"),
    (RegionError, "StatusCode.INVALID_ARGUMENT"),
    (TooLateError, "StatusCode.DEADLINE_EXCEEDED"),
    (UnreachableError, "StatusCode.UNAVAILABLE"),
    (UnavailableError, "StatusCode.UNAVAILABLE"),
    (AuthenticationError, "StatusCode.UNAUTHENTICATED"),
    (InferenceError, "StatusCode.INTERNAL"),
)


def as_triton(error: Exception) -> InferenceServerException:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return InferenceServerException(str(error), status, error)
