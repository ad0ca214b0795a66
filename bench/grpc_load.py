"""TorchServe's gRPC Predictions as a target of load: prebuilt messages over several channels.

A message is encoded once per body, so that a call costs no encoding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import grpc
from accounting import GRPC_BASE
from http_client import BROKEN, REFUSED, TIMEOUT, Exchange

from shunter.plugins.torchserve.grpc_client import METHOD, predictions_request

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    # Channels of equal address would share one connection.
    ("grpc.use_local_subchannel_pool", 1),
)
_BROKEN = (
    "Socket closed",
    "Stream removed",
    "Connection reset",
    "Connection aborted",
    "Broken pipe",
    "Connection closed",
    "Transport closed",
    "recvmsg",
    "sendmsg",
    "GOAWAY",
    "ping timeout",
    "keepalive watchdog",
)
"""In gRPC's own texts about connections that end."""


def prebuilt(model: str, version: str, inputs: Mapping[str, bytes]) -> bytes:
    """The bytes of one PredictionsRequest."""
    return predictions_request(model, inputs, version).SerializeToString()


class GrpcTarget:
    """One server, called over several channels in turn."""

    def __init__(self, address: str, channels: int, timeout_s: float) -> None:
        """``timeout_s`` counts from the scheduled time of a request."""
        self._timeout_s, self._turn = timeout_s, 0
        self._channels = [
            grpc.aio.insecure_channel(address, options=_OPTIONS) for _ in range(channels)
        ]
        self._calls = [channel.unary_unary(METHOD) for channel in self._channels]
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, exchange: Exchange) -> None:
        """Call now."""
        exchange.taken = time.monotonic()
        self._turn = (self._turn + 1) % len(self._calls)
        task = asyncio.get_running_loop().create_task(self._one(exchange, self._turn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, exchange: Exchange, turn: int) -> None:
        exchange.sent = time.monotonic()
        # Never below zero: a call that is overdue already ends as such.
        left = max(0.0, exchange.due + self._timeout_s - exchange.sent)
        try:
            await self._calls[turn](exchange.body, timeout=left)
        except grpc.aio.AioRpcError as error:
            late = time.monotonic() >= exchange.due + self._timeout_s - 0.001
            exchange.finish(_status(error, late))
        except asyncio.CancelledError:
            exchange.finish(BROKEN)
            raise
        else:
            exchange.finish(200)

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            await channel.close(None)


def _status(error: grpc.aio.AioRpcError, late: bool) -> int:
    """The server's status, or why there is none: gRPC uses the same codes for both.

    Only the text tells a broken connection from a server that says it is not available.
    """
    code, text = error.code(), error.debug_error_string() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED and late:
        return TIMEOUT
    if code == grpc.StatusCode.UNAVAILABLE:
        if "failed to connect to" in text or "DNS resolution failed" in text:
            return REFUSED
        if any(sign in text for sign in _BROKEN):
            return BROKEN
    return GRPC_BASE + code.value[0]
