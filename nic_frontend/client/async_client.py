"""The client of the front end for asyncio: concurrent calls share a session, and no thread.

    async with AsyncClient("udp://127.0.0.1:8083") as client:
        answers = await asyncio.gather(*(client.infer("resnet50", each) for each in images))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from shunter.nic_frontend.client.async_session import AsyncSession
from shunter.nic_frontend.client.connecting import Address, Key, key_of, protection_of
from shunter.nic_frontend.client.requests.attempts import Attempts, Many
from shunter.nic_frontend.client.requests.balance import Balancer
from shunter.nic_frontend.client.requests.batch import Batch
from shunter.nic_frontend.client.requests.calls import DEFAULT, Array, Options, Tensors, one_or_all
from shunter.nic_frontend.client.requests.errors import InferenceError
from shunter.nic_frontend.wire.hello import DEFAULT_KEY

_Found = TypeVar("_Found")


class AsyncClient:
    """All models of a server, for the tasks of one event loop.

    Calls to the same model share its session, which is opened by the first; beyond its credit they
    wait in the order in which they came. Use as an asynchronous context manager, or close it.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        key: Key | None = None,
        key_id: str = DEFAULT_KEY,
        encrypt: bool = False,
        crc: bool = False,
        timeout_s: float = 5.0,
        window: int = 64,
        shared_memory: bool = True,
    ) -> None:
        """``timeout_s``: for every request that does not say otherwise, and to open a session.

        ``window``: most requests on their way to one model. ``key``, ``key_id``, ``encrypt``,
        ``crc`` and ``shared_memory`` as of Session.
        Several URLs: as of Client, and calls at the same time spread over all servers.
        Raises ValueError for a wrong address or key file, NoCipherError.
        """
        self.urls = [url] if isinstance(url, str) else list(url)
        if not self.urls:
            raise ValueError("no URL")
        self.url = self.urls[0]
        self._addresses = [Address.parse(each) for each in self.urls]
        self._key = key_of(key, key_id)
        protect = protection_of(self._key, encrypt=encrypt, crc=crc)
        self._balancer = Balancer(len(self.urls))
        self._settings = protect, timeout_s, window
        self._shared_memory = shared_memory
        self._timeout_s = timeout_s
        self._sessions: dict[tuple[str, str, int], asyncio.Task[AsyncSession]] = {}

    async def model(self, name: str, version: str = "", server: int = 0) -> AsyncSession:
        """The session with a model. Raises InferenceError. ``server``: which URL."""
        which = name, version, server
        task = self._sessions.get(which)
        if task is not None and task.done() and task.exception() is None:
            return task.result()
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(*which))
            self._sessions[which] = task
        try:
            return await asyncio.shield(task)
        except InferenceError:
            if self._sessions.get(which) is task:
                del self._sessions[which]  # the next caller tries again
            raise

    async def _open(self, name: str, version: str, server: int) -> AsyncSession:
        session = AsyncSession(
            self._addresses[server],
            name,
            version,
            self._key,
            *self._settings,
            fail_fast=len(self.urls) > 1,
            shared_memory=self._shared_memory,
        )
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
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        given = Options(**options) if options else DEFAULT
        if len(self.urls) == 1:
            session = await self.model(model, version)
            return one_or_all(await session.infer(arrays, given))
        found = await self._somewhere(
            model, version, given, lambda each, left: each.infer(arrays, left)
        )
        return one_or_all(found)

    async def infer_many(
        self,
        model: str,
        requests: Sequence[Array | Sequence[Array]],
        *,
        version: str = "",
        **options: Any,
    ) -> list[Any]:
        """Ask one server many times at once; for each what :meth:`infer` returns, or its error."""
        arrays = [each if isinstance(each, list | tuple) else [each] for each in requests]
        found = await self._many(model, version, Options(**options), arrays, None)
        return [each if isinstance(each, InferenceError) else one_or_all(each) for each in found]

    async def stream(
        self, model: str, inputs: Array | Sequence[Array], *, version: str = "", **options: Any
    ) -> AsyncIterator[Any]:
        """Ask a model whose answers come in parts: of each what :meth:`infer` returns.

        ``options`` as of :meth:`AsyncSession.stream`. It is never asked of another server.
        """
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]

        async def look(session: AsyncSession, _: Options) -> AsyncSession:
            return session

        session = await self._somewhere(model, version, DEFAULT, look)
        async with aclosing(session.stream(arrays, **options)) as parts:
            async for part in parts:
                yield one_or_all(part)

    async def infer_batch(
        self, model: str, inputs: Array | Sequence[Array], *, version: str = "", **options: Any
    ) -> Any:
        """Arrays ``[n, ...]`` are n requests; as :meth:`infer`, with all answers as ``[n, ...]``.

        Raises BatchError when some of them failed, which has the others' answers.
        """
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        found = Options(**options)

        async def look(session: AsyncSession, _: Options) -> Tensors:
            return session.tensors

        tensors = await self._somewhere(model, version, found, look)
        batch = Batch(tensors, arrays)
        answers = await self._many(model, version, found, batch.requests, batch.places)
        return one_or_all(batch.outputs(answers))

    async def _many(
        self,
        model: str,
        version: str,
        options: Options,
        requests: Sequence[Sequence[Array]],
        out: Sequence[Sequence[Array]] | None,
    ) -> list[Any]:
        many = Many(len(requests))

        async def ask(session: AsyncSession, left: Options) -> None:
            places = None if out is None else [out[i] for i in many.left]
            asked = [requests[i] for i in many.left]
            many.take(await session.infer_many(asked, left, out=places), options)

        try:
            await self._somewhere(model, version, options, ask)
        except InferenceError as error:
            many.end(error)
        return many.found

    async def _somewhere(
        self,
        model: str,
        version: str,
        options: Options,
        ask: Callable[[AsyncSession, Options], Awaitable[_Found]],
    ) -> _Found:
        """What a server says; another is asked as long as that may and can be."""
        attempts = Attempts(self._balancer, options, self._timeout_s)
        while True:
            server, error = attempts.begin(time.monotonic_ns()), None
            try:
                return await ask(await self.model(model, version, server), attempts.options)
            except BaseException as raised:
                error = raised
            finally:
                is_over = attempts.end(error, time.monotonic_ns())
            if is_over:
                raise error

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()
