"""A session with one model, in one event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from shunter.nic_frontend.client.connecting import (
    CONNECT_S,
    PAUSE_S,
    Address,
    Target,
    reason_of,
    segment_of,
)
from shunter.nic_frontend.client.exchange import TICK_NS, Exchange
from shunter.nic_frontend.client.requests.batch import Batch
from shunter.nic_frontend.client.requests.calls import DEFAULT, Array, Call, Options, Tensors
from shunter.nic_frontend.client.requests.errors import (
    InferenceError,
    TooLargeError,
    UnreachableError,
)
from shunter.nic_frontend.client.requests.stream import AHEAD, begin
from shunter.nic_frontend.wire.keys import SharedKey

_MOST_AT_ONCE = 16
"""Times that something is taken before others in the loop have their turn."""


class AsyncSession:
    """A session with one model, in one event loop. Made by :meth:`AsyncClient.model`."""

    def __init__(
        self,
        address: Address,
        model: str,
        version: str,
        key: SharedKey | None,
        protect: int,
        timeout_s: float,
        window: int,
        *,
        fail_fast: bool = False,
        shared_memory: bool = True,
    ) -> None:
        """Nothing is sent before :meth:`open`."""
        self._address, self._timeout_s = address, timeout_s
        self._loop = asyncio.get_running_loop()
        how = {"fail_fast": fail_fast, "shared_memory": shared_memory}
        self._exchange = Exchange(model, version, window, key, protect, self._unwatch, **how)
        self._targets: list[Target] = []
        self._pause_s = 0.0
        self._watched: int | None = None
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None

    async def open(self, ends_ns: int) -> None:
        """Until there is a session. Raises InferenceError."""
        exchange = self._exchange
        while exchange.core is None:
            left_s = (ends_ns - time.monotonic_ns()) / 1e9
            try:
                exchange.check_opening(is_over=left_s <= 0)
            except TooLargeError:
                if (other := self._address.for_large()) is None:
                    raise
                self._address, self._targets, exchange.failure = other, [], None
            self._opened = self._loop.create_future()
            self._after()
            await asyncio.wait([self._opened], timeout=left_s)

    async def infer(
        self,
        inputs: Sequence[Array],
        options: Options = DEFAULT,
        *,
        out: Sequence[Array] | None = None,
        **more: Any,
    ) -> list[Array]:
        """Ask once; the outputs. Raises InferenceError; a cancelled call is taken back.

        The arrays must not change before this has ended. ``out``: arrays that take the outputs.
        ``more``: fields of :class:`Options`.
        """
        if more:
            options = Options(**more)
        call = self._call(inputs, options, out)
        await self._wait((call,))
        return call.answer()

    async def infer_many(
        self,
        requests: Sequence[Sequence[Array]],
        options: Options = DEFAULT,
        *,
        out: Sequence[Sequence[Array]] | None = None,
        **more: Any,
    ) -> list[list[Array] | InferenceError]:
        """Ask many times at once, as far as there is credit; for each its outputs or its error."""
        if more:
            options = Options(**more)
        now_ns = time.monotonic_ns()
        calls = self.tensors.calls(requests, options, now_ns, self._timeout_s, out)
        await self._wait([each for each in calls if isinstance(each, Call)])
        return [each if isinstance(each, InferenceError) else each.result for each in calls]

    async def infer_batch(
        self,
        inputs: Sequence[Array],
        options: Options = DEFAULT,
        *,
        out: Sequence[Array] | None = None,
        **more: Any,
    ) -> list[Array]:
        """Arrays ``[n, ...]`` are n requests, their answers arrays ``[n, ...]``.

        Raises BatchError when some of them failed, which has the others' answers.
        """
        batch = Batch(self.tensors, inputs, out)
        found = await self.infer_many(batch.requests, options, out=batch.places, **more)
        return batch.outputs(found)

    async def stream(
        self, inputs: Sequence[Any], options: Options = DEFAULT, *, ahead: int = AHEAD, **more: Any
    ) -> AsyncIterator[list[Array]]:
        """Ask a model whose answers come in parts: the outputs of each, as :meth:`Session.stream`.

        Who stops before the end closes what this returns (:func:`contextlib.aclosing`).
        """
        how = options, self._timeout_s, ahead, more, time.monotonic_ns()
        parts = begin(self._exchange, inputs, *how)
        try:
            while (head := parts.head) is not None:
                await self._until(head)
                if (found := parts.take(time.monotonic_ns())) is not None:
                    yield found
        finally:
            parts.close()
            self._after()

    async def _until(self, call: Call) -> None:
        """It has ended."""
        ended = self._loop.create_future()
        call.on_end = lambda _: ended.done() or ended.set_result(None)
        self._after()
        if not call.done:
            await ended

    @property
    def tensors(self) -> Tensors:
        """Of one request."""
        assert self._exchange.tensors is not None
        return self._exchange.tensors

    def _call(self, inputs: Sequence[Array], options: Options, out: Sequence[Array] | None) -> Call:
        return self.tensors.call(inputs, options, time.monotonic_ns(), self._timeout_s, out)

    async def _wait(self, calls: Sequence[Call]) -> None:
        """Until all have ended."""
        left, ended = len(calls), self._loop.create_future()

        def on_end(_: Call) -> None:
            nonlocal left
            left -= 1
            if not left and not ended.done():
                ended.set_result(None)

        for call in calls:
            call.on_end = on_end
        try:
            if calls:
                self._exchange.submit(calls)
                self._after()
                await ended
        finally:
            for call in calls:
                self._exchange.cancel(call)
            self._after()

    async def close(self) -> None:
        """End the session; calls that have no answer end with UnreachableError."""
        self._exchange.close()
        if self._timer is not None:
            self._timer.cancel()
        if (connecting := self._connecting) is not None:
            connecting.cancel()
            await asyncio.wait([connecting])

    # ---- the loop

    @property
    def _is_wanted(self) -> bool:
        """Whether somebody waits for the network."""
        is_opening = self._opened is not None and not self._opened.done()
        return not self._exchange.closed and (self._exchange.is_busy or is_opening)

    def _after(self) -> None:
        """Something has changed: watch what must be watched now."""
        exchange, opened = self._exchange, self._opened
        is_decided = exchange.core is not None or exchange.is_hopeless
        if opened is not None and not opened.done() and is_decided:
            opened.set_result(None)
        self._watch()
        if self._is_wanted:
            if exchange.socket is None and self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
            if self._timer is None:
                self._timer = self._loop.call_later(TICK_NS / 1e9, self._on_time)

    def _watch(self) -> None:
        connection = self._exchange.socket
        if connection is None:
            return
        if self._watched is None:
            self._watched = connection.fileno()
            self._loop.add_reader(self._watched, self._on_ready)
        if self._exchange.is_stuck != self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(self._watched, self._on_ready)
            else:
                self._loop.remove_writer(self._watched)

    def _unwatch(self) -> None:
        """Before the socket is closed."""
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._loop.remove_writer(self._watched)
        self._watched, self._is_writing = None, False

    def _on_ready(self) -> None:
        """There is something to be read, or a stream takes more of what it did not take."""
        exchange = self._exchange
        for _ in range(_MOST_AT_ONCE):
            if not exchange.receive():
                break
            self._pause_s = 0.0
        if exchange.now - exchange.ticked_ns > TICK_NS:
            exchange.tick(exchange.now)
        self._after()

    def _on_time(self) -> None:
        self._timer = None
        self._exchange.receive()  # which also sends what is due
        self._exchange.tick(time.monotonic_ns())
        self._after()

    # ---- connecting

    async def _connect(self) -> None:
        """Try the next address that the name stands for."""
        exchange = self._exchange
        try:
            if not self._targets:
                await asyncio.sleep(self._pause_s)
                self._pause_s = PAUSE_S
                self._targets = await self._address.targets_in(self._loop)
            target = self._targets.pop(0)
            exchange.has_more = bool(self._targets)
            connection = await self._connected(target)
            exchange.attach(connection, segment_of(connection))
        except (OSError, UnreachableError) as error:
            exchange.lose(reason_of(error))
        finally:
            self._connecting = None
        self._after()

    async def _connected(self, target: Target) -> socket.socket:
        connection = target.socket()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.sock_connect(connection, target.where)
        except BaseException:
            connection.close()
            raise
        return connection
