"""``tritonclient``'s names, for code that was written for Triton: only its import changes."""

from shunter.nic_frontend.tritonlike.async_requests import InferAsyncRequest
from shunter.nic_frontend.tritonlike.client import InferenceServerClient
from shunter.nic_frontend.tritonlike.tensors import (
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
    InferResult,
)

__all__ = [
    "InferAsyncRequest",
    "InferInput",
    "InferRequestedOutput",
    "InferResult",
    "InferenceServerClient",
    "InferenceServerException",
]
