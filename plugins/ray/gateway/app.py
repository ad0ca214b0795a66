"""The HTTP side of a gateway: an ASGI application that forwards requests to machines."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from typing import Any

import aiohttp
from yarl import URL

from shunter.plugins.ray.gateway.dispatch import Chosen, Dispatch, Nowhere
from shunter.plugins.ray.gateway.exchange import Exchange, Receive, Send, Whole, as_json
from shunter.plugins.ray.gateway.forwarding import (
    Outcome,
    is_refusal,
    may_try_again,
    passed_back,
    passed_on,
    target,
    terms,
)
from shunter.plugins.ray.records.directory import Directory
from shunter.plugins.ray.records.settings import GatewaySettings

CONNECT_S = 1.0
IDLE_S = 30.0
WHOLE_BYTES = 1 << 20
"""An answer up to this size is passed on once it is complete: a cut one can be had again."""
_NO_DEFAULTS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
HEALTH = ("ping", "v2/health/live", "v2/health/ready")


class _ClientGoneError(Exception):
    """Nobody waits for the answer."""


class App:
    """The application. All but :meth:`soon` and :meth:`counted` is the event loop's."""

    def __init__(self, dispatch: Dispatch, settings: GatewaySettings) -> None:
        """Nothing is open yet: that comes with the server's start."""
        self._dispatch, self._settings = dispatch, settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._flights: dict[str, set[asyncio.Task[Any]]] = {}
        self._counts: Counter[str] = Counter()

    def soon(self, directory: Directory) -> None:
        """Let the event loop learn a directory; from any thread."""
        if self._loop is None or self._loop.is_closed():
            self._dispatch.learn(directory)  # nothing is under way yet
        else:
            self._loop.call_soon_threadsafe(self._learn, directory)

    def counted(self) -> dict[str, Any]:
        """What it did, for the status."""
        flights = sum(len(each) for each in list(self._flights.values()))
        return {"in_flight": flights, "counters": dict(sorted(self._counts.items()))}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                await self._request(scope, receive, send)
            except _ClientGoneError:
                self._counts["abandoned"] += 1

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._loop = asyncio.get_running_loop()
                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                    skip_auto_headers=_NO_DEFAULTS,
                    auto_decompress=False,
                )
                # Else it sends GET and PUT once more by itself, whether or not they may run twice.
                self._session._retry_connection = False
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._session is not None:
                    await self._session.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _learn(self, directory: Directory) -> None:
        for machine in self._dispatch.learn(directory):
            for each in self._flights.get(machine, ()):
                each.cancel()

    # ---- one request

    async def _request(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        began = time.monotonic()
        path = scope["raw_path"].decode("latin-1")
        pairs = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
        model = target(path)
        said = terms(model or "", dict(pairs))
        if query := scope["query_string"].decode("latin-1"):
            path += f"?{query}"
        exchange = Exchange(scope["method"], path, pairs, b"", said, began, send)
        if model is None:
            await self._other(exchange)
            return
        body = await self._body(receive)
        if body is None:
            limit = self._settings.max_body_mb
            text = f"the request is larger than {limit} MB, gateways.max_body_mb of cluster.toml"
            await exchange.say(413, "RequestTooLarge", text)
            return
        exchange.body = body
        leaves = asyncio.ensure_future(receive())
        work = asyncio.ensure_future(self._answer(exchange))
        try:
            await asyncio.wait({leaves, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise _ClientGoneError
            await work
        finally:
            work.cancel()
            leaves.cancel()

    async def _body(self, receive: Receive) -> bytes | None:
        """All of it; None: it is too large."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGoneError
            part = message.get("body", b"")
            size += len(part)
            if size > self._settings.max_body_mb << 20:
                return None
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts) if len(parts) > 1 else parts[0]

    async def _other(self, exchange: Exchange) -> None:
        """What is of the gateway, and not of a model."""
        path = exchange.path.partition("?")[0].strip("/")
        if path not in HEALTH:
            text = f"no model is served at /{path}: /predictions/NAME or /v2/models/NAME/infer"
            await exchange.say(404, "ResourceNotFoundException", text)
            return
        is_well = self._dispatch.is_serving or path.endswith("live")
        body = json.dumps({"status": "Healthy" if is_well else "Unhealthy"}).encode()
        await exchange.answer(200 if is_well else 503, as_json(body), body)

    async def _answer(self, exchange: Exchange) -> None:
        """Try machines until there is one answer."""
        tried: list[str] = []
        held: Whole | None = None
        outcome: Outcome | None = None
        while True:
            if exchange.left_s <= 0:
                self._counts["expired"] += 1
                text = f"its deadline passed after {len(tried)} machines were tried"
                await exchange.say(504, "DeadlineExceeded", text)
                return
            now = time.monotonic()
            found = self._dispatch.choose(exchange.terms, exchange.left_s, frozenset(tried), now)
            if isinstance(found, Nowhere):
                if tried:
                    await self._give_up(exchange, outcome, held)
                else:
                    await self._no_machine(exchange, found)
                return
            tried.append(found.machine)
            outcome, held = await self._attempt(exchange, found)
            if outcome is None:
                self._counts["answered"] += 1
                return
            may_repeat = self._dispatch.may_repeat(exchange.terms)
            if outcome is Outcome.REFUSED and held is not None and not may_repeat:
                outcome = outcome if is_refusal(held.body) else Outcome.LOST
            self._counts[outcome.value] += 1
            if not may_try_again(
                outcome, may_repeat=may_repeat, tried=len(tried), left_s=exchange.left_s
            ):
                await self._give_up(exchange, outcome, held)
                return
            self._counts["tried again"] += 1

    async def _no_machine(self, exchange: Exchange, found: Nowhere) -> None:
        if found.is_unknown:
            self._counts["unknown"] += 1
            await exchange.say(404, "ModelNotFoundException", found.reason)
        else:
            self._counts["nowhere"] += 1
            await exchange.say(503, "ServiceUnavailableException", found.reason)

    async def _give_up(
        self, exchange: Exchange, outcome: Outcome | None, held: Whole | None
    ) -> None:
        """What became of the last attempt is the answer."""
        if outcome is Outcome.ANSWER_CUT:
            raise ConnectionError("the machine ended in the middle of an answer")
        if held is not None:
            await exchange.answer(held.status, held.headers, held.body)
        elif outcome is Outcome.LOST:
            text = "the machine ended while the request was there, and it is not run again"
            await exchange.say(502, "MachineLost", text)
        else:
            await exchange.say(503, "ServiceUnavailableException", "no machine takes requests")

    # ---- one attempt

    async def _attempt(
        self, exchange: Exchange, to: Chosen
    ) -> tuple[Outcome | None, Whole | None]:
        """None: an answer was passed on. The flight is cancelled when its machine is lost."""
        flight = asyncio.ensure_future(self._fly(exchange, to))
        flights = self._flights.setdefault(to.machine, set())
        flights.add(flight)
        try:
            return await flight
        except asyncio.CancelledError:
            if not flight.cancelled() or asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise  # the client left
            return self._lost(exchange), None
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError):
            self._dispatch.avoid(to.machine, time.monotonic())
            return Outcome.NOT_SENT, None
        except TimeoutError:
            if exchange.answered:
                return Outcome.ANSWER_CUT, None
            text = f"{to.machine} did not answer in {self._settings.longest_s} s"
            await exchange.say(504, "ResponseTimeout", text)
            return None, None
        except aiohttp.ClientError:
            self._dispatch.avoid(to.machine, time.monotonic())
            return self._lost(exchange), None
        finally:
            flight.cancel()
            flights.discard(flight)

    @staticmethod
    def _lost(exchange: Exchange) -> Outcome:
        return Outcome.ANSWER_CUT if exchange.answered else Outcome.LOST

    async def _fly(
        self, exchange: Exchange, to: Chosen
    ) -> tuple[Outcome | None, Whole | None]:
        assert self._session is not None
        spent_s = time.monotonic() - exchange.began
        async with asyncio.timeout(self._settings.longest_s) as patience:
            async with self._session.request(
                exchange.method,
                URL(to.inference + exchange.path, encoded=True),
                headers=passed_on(exchange.headers, spent_s=spent_s),
                data=exchange.body or None,
                allow_redirects=False,
            ) as answer:
                head = passed_back(
                    (n.decode("latin-1"), v.decode("latin-1")) for n, v in answer.raw_headers
                )
                if (answer.content_length or math.inf) <= WHOLE_BYTES:
                    whole = Whole(answer.status, head, await answer.read())
                    if answer.status == 503:
                        return Outcome.REFUSED, whole
                    await exchange.answer(whole.status, whole.headers, whole.body)
                    return None, None
                patience.reschedule(None)  # its parts take as long as they do
                await exchange.start(answer.status, head)
                async for part in answer.content.iter_any():
                    await exchange.send(
                        {"type": "http.response.body", "body": part, "more_body": True}
                    )
                await exchange.send({"type": "http.response.body", "body": b""})
                return None, None
