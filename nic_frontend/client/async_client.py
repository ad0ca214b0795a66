"""The client of the front end for asyncio: concurrent calls share a session, and no thread.

    async with AsyncClient("udp://127.0.0.1:8083") as client:
        answers = await asyncio.gather(*(client.infer("resnet50", each) for each in images))
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from shunter.nic_frontend.client.calls import DEFAULT, Array, Options, one_or_all
from shunter.nic_frontend.client.connecting import (
    CONNECT_S,
    PAUSE_S,
    Address,
    Key,
    Target,
    key_of,
    protection_of,
    reason_of,
    segment_of,
)
from shunter.nic_frontend.client.errors import InferenceError, UnreachableError
from shunter.nic_frontend.client.exchange import TICK_NS, Exchange

_MOST_AT_ONCE = 16
"""Times that something is taken before others in the loop have their turn."""


class AsyncSession:
    """A session with one model, in one event loop. Made by :meth:`AsyncClient.model`."""

    def __init__(
        self,
        address: Address,
        model: str,
        version: str,
        key: bytes | None,
        protect: int,
        timeout_s: float,
        window: int,
    ) -> None:
        """Nothing is sent before :meth:`open`."""
        self._address, self._timeout_s = address, timeout_s
        self._loop = asyncio.get_running_loop()
        self._exchange = Exchange(model, version, window, key, protect, self._unwatch)
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
            exchange.check_opening(is_over=left_s <= 0)
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
        tensors = self._exchange.tensors
        assert tensors is not None
        call = tensors.call(inputs, options, time.monotonic_ns(), self._timeout_s, out)
        ended = self._loop.create_future()
        call.on_end = lambda _: ended.done() or ended.set_result(None)
        try:
            self._exchange.submit([call])
            self._after()
            await ended
        finally:
            self._exchange.cancel(call)
            self._after()
        if call.error is not None:
            raise call.error
        return call.outputs

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
        is_decided = exchange.core is not None or exchange.is_refused
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
            connection = await self._connected(self._targets.pop(0))
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


class AsyncClient:
    """All models of a server, for the tasks of one event loop.

    Calls to the same model share its session, which is opened by the first; beyond its credit they
    wait in the order in which they came. Use as an asynchronous context manager, or close it.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Key | None = None,
        encrypt: bool = False,
        crc: bool = False,
        timeout_s: float = 5.0,
        window: int = 64,
    ) -> None:
        """``timeout_s``: for every request that does not say otherwise, and to open a session.

        ``window``: most requests on their way to one model. ``encrypt`` and ``crc`` as of Session.
        Raises ValueError for a wrong address or key file, NoCipherError.
        """
        self.url = url
        self._address, self._key = Address.parse(url), key_of(key)
        protect = protection_of(self._key, encrypt=encrypt, crc=crc)
        self._settings = protect, timeout_s, window
        self._timeout_s = timeout_s
        self._sessions: dict[tuple[str, str], asyncio.Task[AsyncSession]] = {}

    async def model(self, name: str, version: str = "") -> AsyncSession:
        """The session with a model. Raises InferenceError."""
        task = self._sessions.get((name, version))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(name, version))
            self._sessions[name, version] = task
        try:
            return await asyncio.shield(task)
        except InferenceError:
            if self._sessions.get((name, version)) is task:
                del self._sessions[name, version]  # the next caller tries again
            raise

    async def _open(self, name: str, version: str) -> AsyncSession:
        session = AsyncSession(self._address, name, version, self._key, *self._settings)
        try:
            await session.open(time.monotonic_ns() + int(self._timeout_s * 1e9))
        except BaseException:
            await session.close()
            raise
        return session

    async def infer(
        self, model: str, inputs: Array | Sequence[Array], *, version: str = "", **options: Any
    ) -> Any:
        """Ask once: an array, or a list of them when the model has several outputs.

        ``options``: fields of :class:`Options`. Raises InferenceError.
        """
        session = await self.model(model, version)
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        return one_or_all(await session.infer(arrays, Options(**options)))

    async def close(self) -> None:
        """End all sessions; calls that have no answer end with UnreachableError."""
        tasks = list(self._sessions.values())
        self._sessions.clear()
        for task in tasks:
            if not task.done():
                task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, AsyncSession):
                await found.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
