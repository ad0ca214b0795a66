"""A request at a gateway, and its answer."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from shunter.plugins.ray.gateway.forwarding import Headers, Terms

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass
class Exchange:
    """One request of a client, and whether an answer to it has begun."""

    method: str
    path: str
    headers: Headers
    body: bytes
    terms: Terms
    began: float
    send: Send
    answered: bool = False

    @property
    def left_s(self) -> float:
        """Until its deadline."""
        return self.terms.deadline_s - (time.monotonic() - self.began)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """All of an answer."""
        await self.start(status, headers)
        await self.send({"type": "http.response.body", "body": body})

    async def start(self, status: int, headers: Headers) -> None:
        """The head of one."""
        self.answered = True
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})

    async def say(self, status: int, kind: str, text: str) -> None:
        """An answer of the gateway itself, in the words of the servers."""
        told = {"code": status, "type": kind, "message": text, "error": text}
        body = json.dumps(told).encode()
        await self.answer(status, as_json(body), body)


@dataclass(frozen=True)
class Whole:
    """An answer that has come in full and has not been passed on."""

    status: int
    headers: Headers
    body: bytes


def as_json(body: bytes) -> Headers:
    """Headers of a JSON body."""
    return [("content-type", "application/json"), ("content-length", str(len(body)))]
