"""One session with one model, for one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shunter.batching.queue.tensor_spec import TensorSpec
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
from shunter.nic_frontend.client.exchange import TICK_NS, Exchange
from shunter.nic_frontend.client.native_client import NativeClient
from shunter.nic_frontend.client.one_call import own
from shunter.nic_frontend.client.requests.batch import Batch
from shunter.nic_frontend.client.requests.calls import DEFAULT, Array, Call, Options, Tensors
from shunter.nic_frontend.client.requests.errors import (
    BadRequestError,
    InferenceError,
    TooLargeError,
    UnreachableError,
)
from shunter.nic_frontend.client.requests.packed import PackedTensors
from shunter.nic_frontend.client.requests.stream import AHEAD, begin
from shunter.nic_frontend.wire.hello import DEFAULT_KEY


class Session:
    """A session with one model, for one thread. Use as a context manager, or close it."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        version: str = "",
        key: Key | None = None,
        key_id: str = DEFAULT_KEY,
        encrypt: bool = False,
        crc: bool = False,
        timeout_s: float = 5.0,
        window: int = 64,
        spin: bool = False,
        fail_fast: bool = False,
        shared_memory: bool = True,
    ) -> None:
        """Open a session.

        Raises InferenceError, ValueError for a wrong address or key file, NoCipherError, and
        LibraryError where there is no C library, which says how to get it.

        ``key``: as bytes or a file, ``key_id``: how the server names it. ``encrypt``: encrypt
        payloads, which needs a key. ``crc``: at least check that they come as they were sent, where
        the network is not trusted to.

        ``timeout_s``: for this and for every request that does not say otherwise. ``window``: most
        requests on their way. ``spin``: wait for answers without sleeping, which costs a processor.
        ``fail_fast``: when the connection is lost do not wait for another. ``shared_memory``: by a
        Unix socket, write inputs where workers read them, if the server can; not with ``encrypt``
        or ``crc``.
        """
        self.url = url
        self._address, self._timeout_s, self._spin = Address.parse(url), timeout_s, spin
        self._targets: list[Target] = []
        self._pause_s = 0.0
        secret = key_of(key, key_id)
        protect = protection_of(secret, encrypt=encrypt, crc=crc)
        how = {"fail_fast": fail_fast, "shared_memory": shared_memory}
        self._exchange = Exchange(model, version, window, secret, protect, **how)
        try:
            self._open(time.monotonic_ns() + int(timeout_s * 1e9))
        except BaseException:
            self._exchange.close()
            raise

    # ---- connecting

    def _open(self, ends_ns: int) -> None:
        exchange = self._exchange
        while exchange.core is None:
            try:
                exchange.check_opening(is_over=time.monotonic_ns() > ends_ns)
            except TooLargeError:
                if (other := self._address.for_large()) is None:
                    raise
                self._address, self._targets, exchange.failure = other, [], None
            self._step()

    def _connect(self) -> None:
        """Try the next address that the name stands for."""
        try:
            if not self._targets:
                time.sleep(self._pause_s)
                self._pause_s = PAUSE_S
                self._targets = self._address.targets()
            target = self._targets.pop(0)
            self._exchange.has_more = bool(self._targets)
            connection = target.connected(min(CONNECT_S, self._timeout_s))
        except (OSError, UnreachableError) as error:
            self._exchange.lose(reason_of(error))
            self._exchange.tick(time.monotonic_ns())
            return
        self._exchange.attach(connection, segment_of(connection))

    # ---- requests

    def infer(
        self,
        inputs: Sequence[Array],
        options: Options = DEFAULT,
        *,
        out: Sequence[Array] | None = None,
        **more: Any,
    ) -> list[Array]:
        """Ask once; the outputs. Raises InferenceError.

        ``out``: arrays that take the outputs. ``more``: fields of :class:`Options`.
        """
        if more:
            options = Options(**more)
        if out is None:
            exchange = self._exchange
            found = exchange.ask_alone(inputs, options, self._timeout_s, spin=self._spin)
            if isinstance(found, list):
                return found
            if found is not None:
                self._wait_for((found,))
                return own(found.answer())
        call = self._call(inputs, options, out)
        self._wait((call,))
        return call.answer()

    def infer_many(
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
        if good := [each for each in calls if isinstance(each, Call)]:
            self._wait(good)
        return [each if isinstance(each, InferenceError) else each.result for each in calls]

    def infer_batch(
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
        found = self.infer_many(batch.requests, options, out=batch.places, **more)
        return batch.outputs(found)

    def stream(
        self, inputs: Sequence[Any], options: Options = DEFAULT, *, ahead: int = AHEAD, **more: Any
    ) -> Iterator[list[Array]]:
        """The outputs of each part of an answer, of which ``ahead`` are on their way at most.
        ``timeout_s`` is for each. Who closes it ends it. Raises InferenceError with any part."""
        how = options, self._timeout_s, ahead, more, time.monotonic_ns()
        parts = begin(self._exchange, inputs, *how)
        try:
            while head := parts.head:
                self._wait_for((head,))
                if (found := parts.take(time.monotonic_ns())) is not None:
                    yield found
        finally:
            parts.close()

    def buffer(self) -> list[Array]:
        """Arrays for the inputs of the next request: fill them, and give them to :meth:`infer`.

        Where the session shares memory with the workers they lie there, and large ones are not
        copied. What they hold is not known; once it has begun they are not to be used any more.
        Raises BadRequestError where requests choose their sizes.
        """
        if isinstance(self.tensors, PackedTensors):
            raise BadRequestError("how large the inputs of this model are is not known")
        core = self._exchange.core
        found = core.buffer() if core is not None else None
        return found or [np.empty(shape, dtype) for dtype, shape in self.tensors.wanted]

    @property
    def shares_memory(self) -> bool:
        """Whether inputs are written where workers read them, at present."""
        return self._exchange.core is not None and self._exchange.core.shares_memory

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """Of one request, as the model that is there now takes it."""
        return self.tensors.inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """The same of its answer."""
        return self.tensors.outputs

    @property
    def tensors(self) -> Tensors:
        """Of one request."""
        tensors = self._exchange.tensors
        assert tensors is not None
        return tensors

    def _call(
        self, inputs: Sequence[Array], options: Options, out: Sequence[Array] | None
    ) -> Call:
        return self.tensors.call(inputs, options, time.monotonic_ns(), self._timeout_s, out)

    def _wait(self, calls: Sequence[Call]) -> None:
        """Until all have ended."""
        try:
            self._exchange.submit(calls)
        except BaseException:
            self._give_up(calls)
            raise
        self._wait_for(calls)

    def _wait_for(self, calls: Sequence[Call]) -> None:
        try:
            for call in calls:
                while not call.done:
                    self._step()
        except BaseException:
            self._give_up(calls)
            raise

    def _give_up(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._exchange.cancel(call)

    def _step(self) -> None:
        """Wait for one thing to happen, at most TICK_NS."""
        exchange = self._exchange
        if exchange.socket is None:
            self._connect()
        elif exchange.receive(time.monotonic_ns() + TICK_NS, spin=self._spin):
            self._pause_s = 0.0
            if exchange.now - exchange.ticked_ns > TICK_NS:
                exchange.tick(exchange.now)
        else:
            exchange.tick(time.monotonic_ns())

    def ping(self, timeout_s: float | None = None) -> None:
        """Ask the server for a sign of life. Raises InferenceError when there is none."""
        exchange = self._exchange
        begun = time.monotonic_ns()
        ends = begun + int((timeout_s or self._timeout_s) * 1e9)
        exchange.ask(begun)
        while exchange.core is None or exchange.core.heard_ns < begun:
            exchange.check_opening(is_over=False)
            if time.monotonic_ns() > ends:
                exchange.lose("the server is silent")
                exchange.check_opening(is_over=True)
            self._step()
            exchange.ask_again()

    @property
    def may_be_strict(self) -> bool:
        """Whether the key allows it; without this right all requests are best effort."""
        return self._exchange.may_be_strict

    @property
    def native(self) -> NativeClient | None:
        """The session in C, for programs that make load with it; None while there is none."""
        return self._exchange.core

    def close(self) -> None:
        """End the session."""
        self._exchange.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
