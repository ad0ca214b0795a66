"""One session with one model, for one thread."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from shunter.nic_frontend.client.calls import DEFAULT, Array, Call, Options
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
from shunter.nic_frontend.client.errors import TooLargeError, UnreachableError
from shunter.nic_frontend.client.exchange import Exchange
from shunter.nic_frontend.client.protocol.native_client import NativeClient
from shunter.nic_frontend.client.protocol.native_session import NativeCore
from shunter.nic_frontend.client.protocol.transports import (
    NO_WAIT,
    SPIN,
    TICK_NS,
    Datagrams,
    Stream,
)
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
    ) -> None:
        """Open a session.

        Raises InferenceError, ValueError for a wrong address or key file, NoCipherError.

        ``key``: as bytes or a file; ``key_id``: how the server names it. ``encrypt``: encrypt
        payloads, which needs a key. ``crc``: at least check that they come as they were sent, where
        the network is not trusted to.

        ``timeout_s``: for this and for every request that does not say otherwise. ``window``: most
        requests on their way. ``spin``: wait for answers without sleeping, which costs a processor.
        """
        self.url = url
        self._address, self._timeout_s, self._spin = Address.parse(url), timeout_s, spin
        self._flags = SPIN if spin else 0
        self._targets: list[Target] = []
        self._pause_s = 0.0
        secret = key_of(key, key_id)
        protect = protection_of(secret, encrypt=encrypt, crc=crc)
        self._exchange = Exchange(model, version, window, secret, protect, native=True)
        try:
            self._open(time.monotonic_ns() + int(timeout_s * 1e9))
        except BaseException:
            self._exchange.close()
            raise
        tensors = self._exchange.tensors
        assert tensors is not None
        self.inputs, self.outputs = tensors.inputs, tensors.outputs
        """Tensors of one request."""

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
            connection = self._connected(self._targets.pop(0))
        except (OSError, UnreachableError) as error:
            self._exchange.lose(reason_of(error))
            self._exchange.tick(time.monotonic_ns())
            return
        if not self._spin:
            interval = struct.pack("@ll", 0, TICK_NS // 1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
            connection.setblocking(True)
        kind = Stream if self._address.is_stream else Datagrams
        self._exchange.attach(kind(connection), segment_of(connection))

    def _connected(self, target: Target) -> socket.socket:
        connection = target.socket()
        try:
            connection.settimeout(min(CONNECT_S, self._timeout_s))
            connection.connect(target.where)
            connection.setblocking(False)
        except BaseException:
            connection.close()
            raise
        return connection

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
        call = self._call(inputs, options, out)
        self._wait((call,))
        if call.error is not None:
            raise call.error
        return call.outputs

    def infer_many(
        self,
        requests: Sequence[Sequence[Array]],
        options: Options = DEFAULT,
        *,
        out: Sequence[Sequence[Array]] | None = None,
        **more: Any,
    ) -> list[list[Array]]:
        """Ask many times at once, as far as there is credit; the outputs in order.

        Raises the first InferenceError when all are ended.
        """
        if more:
            options = Options(**more)
        outs = out if out is not None else [None] * len(requests)
        calls = [self._call(a, options, o) for a, o in zip(requests, outs, strict=True)]
        if calls:
            self._wait(calls)
        for call in calls:
            if call.error is not None:
                raise call.error
        return [call.outputs for call in calls]

    def _call(
        self, inputs: Sequence[Array], options: Options, out: Sequence[Array] | None
    ) -> Call:
        tensors = self._exchange.tensors
        assert tensors is not None
        return tensors.call(inputs, options, time.monotonic_ns(), self._timeout_s, out)

    def _wait(self, calls: Sequence[Call]) -> None:
        """Until all have ended."""
        try:
            self._exchange.submit(calls)
            for call in calls:
                while not call.done:
                    self._step()
        except BaseException:
            for call in calls:
                self._exchange.cancel(call)
            raise

    def _step(self) -> None:
        """Wait for one thing to happen, at most TICK_NS."""
        exchange = self._exchange
        if exchange.transport is None:
            self._connect()
        elif exchange.has_kept:
            self._make_room()
        elif exchange.receive(self._flags):
            self._pause_s = 0.0
            if exchange.now - exchange.ticked_ns > TICK_NS:
                exchange.tick(exchange.now)
        else:
            exchange.tick(time.monotonic_ns())

    def _make_room(self) -> None:
        """Both directions: a server that cannot send may not read either."""
        exchange = self._exchange
        assert exchange.transport is not None
        poller = select.poll()
        poller.register(exchange.transport.socket, select.POLLIN | select.POLLOUT)
        poller.poll(TICK_NS // 1_000_000)
        exchange.receive(NO_WAIT)
        exchange.flush()
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

    @property
    def may_be_strict(self) -> bool:
        """Whether the key allows it; without this right all requests are best effort."""
        return self._exchange.may_be_strict

    @property
    def native(self) -> NativeClient | None:
        """The session in C, for programs that make load with it; None where it is in Python."""
        core = self._exchange.core
        return core.client if isinstance(core, NativeCore) else None

    def close(self) -> None:
        """End the session."""
        self._exchange.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
