"""Clients of the network front end: all that users import."""

from shunter.nic_frontend.client.async_client import AsyncClient
from shunter.nic_frontend.client.client import Client
from shunter.nic_frontend.client.requests.calls import Options
from shunter.nic_frontend.client.requests.errors import (
    AuthenticationError,
    BadRequestError,
    BatchError,
    InferenceError,
    NoCipherError,
    ServerError,
    TooLateError,
    TooSlowError,
    UnavailableError,
    UnreachableError,
)
from shunter.nic_frontend.client.session import Session

__all__ = [
    "AsyncClient",
    "AuthenticationError",
    "BadRequestError",
    "BatchError",
    "Client",
    "InferenceError",
    "NoCipherError",
    "Options",
    "ServerError",
    "Session",
    "TooLateError",
    "TooSlowError",
    "UnavailableError",
    "UnreachableError",
]
