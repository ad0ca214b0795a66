"""Closed-loop load that counts: each request sent gets one answer, and it is its own."""

from __future__ import annotations

import contextlib
import http.client
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from e2e_exchange import TIMEOUT_S, Answer


@dataclass
class _Client:
    sent: int = 0
    answers: list[Any] = field(default_factory=list)
    problem: str = ""


class Load:
    """Clients that each send the next request when the last one is answered.

    At its end every answer was 200 and named its request, or the test fails.
    """

    def __init__(
        self,
        model: Any,
        *,
        clients: int = 8,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> None:
        self._port = model.site.server.ports.inference
        self._model = model
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._body = body
        self._stop = threading.Event()
        self._clients = [_Client() for _ in range(clients)]
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(clients)
        ]

    @property
    def answers(self) -> list[Any]:
        """Every answer so far."""
        return [answer for client in self._clients for answer in client.answers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            problems = [client.problem for client in self._clients if client.problem]
            assert not problems, problems
            assert sum(client.sent for client in self._clients) == len(self.answers) > 0

    def _run(self, number: int) -> None:
        client = self._clients[number]
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        with contextlib.closing(link):
            try:
                while not self._stop.is_set() and not client.problem:
                    self._ask(link, client, f"c{number}-{client.sent}")
                self._look_for_more(link, client)
            except (OSError, http.client.HTTPException, ValueError) as error:
                client.problem = f"c{number}-{client.sent}: {error!r}"

    def _ask(self, link: http.client.HTTPConnection, client: _Client, request: str) -> None:
        client.sent += 1
        body = self._model.wrap({**self._body, "id": request})
        link.request("POST", self._model.address, body, self._headers)
        response = link.getresponse()
        found = Answer(response.status, {}, response.read(), request)
        if response.status != 200:
            client.problem = f"{request}: {response.status} {found.text}"
            return
        answer = self._model.unwrap(found).json
        client.answers.append(answer)
        if answer["id"] != request:
            client.problem = f"{request} got the answer of {answer['id']}"

    @staticmethod
    def _look_for_more(link: http.client.HTTPConnection, client: _Client) -> None:
        """A second answer to a request would lie unread on the connection."""
        if link.sock is not None:
            link.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.problem = client.problem or f"more on the connection: {link.sock.recv(99)!r}"


class Pings:
    """Asks all the time whether a server is well; the test fails unless it always was."""

    def __init__(self, site: Any) -> None:
        self._site = site
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: list[bool] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            assert self.answers and all(self.answers)

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            self.answers.append(self._site.is_healthy())
