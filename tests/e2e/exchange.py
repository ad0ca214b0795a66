"""One HTTP exchange, and the two ways in which a test waits."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Headers = Mapping[str, str]
START_S = 600
"""A server has started by then."""
TIMEOUT_S = 110
"""Of a request; the test handler runs longer than that when it is held."""
PATIENCE_S = 100
"""Nothing that a test waits for takes so long, even on a machine that is busy otherwise."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Headers
    body: bytes
    request: str = field(compare=False)
    """The name that the server gave the request."""

    @property
    def text(self) -> str:
        return self.body.decode()

    @cached_property
    def json(self) -> Any:
        return json.loads(self.text)

    def __getitem__(self, key: str) -> Any:
        return self.json[key]


def wait_until(what: str, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Return the first true value of ``condition``; fail when there is none in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s: {what}"
        time.sleep(0.01)
    return value


def call(
    port: int,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: Headers | None = None,
) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    with contextlib.closing(connection) as link:
        link.request(method, path, body, dict(headers or {}))
        answer = link.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        request = named.pop("x-request-id", "")
        return Answer(answer.status, named, answer.read(), request)


class Gate:
    """Requests that carry its path run until it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.mark = {"gate": str(path)}

    def open(self) -> None:
        self._path.touch()

    def reached(self) -> set[str]:
        """Ids of the requests that a worker runs or ran."""
        prefix = f"{self._path.name}."
        return {p.name.removeprefix(prefix) for p in self._path.parent.glob(f"{prefix}*")}

    def wait_reached(self, *ids: str) -> None:
        wait_until(f"{ids} run", lambda: self.reached() >= set(ids))
