"""An open session in C behind the interfaces of its twin in Python and of its transport.

What :class:`shunter.nic_frontend.client.exchange.Exchange` asks of them is done by
:class:`NativeClient`, which also sends and receives. The exchange opens sessions, keeps calls, and
notices that a session is lost, as it does in Python.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import numpy as np

from shunter.nic_frontend.client.protocol.core import ClientCore
from shunter.nic_frontend.client.protocol.native_client import NativeClient
from shunter.nic_frontend.client.protocol.state import Refused
from shunter.nic_frontend.client.protocol.transports import (
    NO_WAIT,
    SPIN,
    TICK_NS,
    ConnectionLost,
    Datagrams,
    Piece,
    Sink,
    Stream,
)
from shunter.nic_frontend.library import library
from shunter.nic_frontend.wire.layout import HEADER_BYTES, WireStatus


class NativeCore:
    """See :class:`shunter.nic_frontend.client.protocol.python_session.PythonSession`."""

    def __init__(self, core: ClientCore, connection: socket.socket) -> None:
        """Go on with a session that has just been opened over this connection."""
        self.session, self.func_id = core.session, core.func_id
        self.inputs, self.outputs, self.stream = core.inputs, core.outputs, core.stream
        self.client = NativeClient(
            connection.fileno(),
            core.session,
            core.func_id,
            core.inputs.sizes,
            core.outputs.sizes,
            core.inputs.segment,
            core.grant,
            pkt_no=core.pkt_no,
            trip_ns=core.trip_ns,
            keys=core.keys,
            stream=core.stream,
        )
        self.pending: set[int] = set()

    @property
    def heard_ns(self) -> int:
        """When something true came last."""
        return self.client.heard_ns

    @property
    def unknown_ns(self) -> int:
        """When somebody said last that there is no such session."""
        return self.client.unknown_ns

    @property
    def may_begin(self) -> bool:
        """Whether there is credit for another request."""
        return self.client.may_begin

    def begin(
        self,
        _now_ns: int,
        inputs: Sequence[memoryview],
        landing: Sequence[memoryview],
        *,
        deadline_us: int,
        priority: int,
        idempotent: bool,
    ) -> int:
        """Send a request; its number, 0: not now. The memory must stay. Raises ConnectionLost."""
        addresses = [_address(view) for view in inputs], [_address(view) for view in landing]
        try:
            req_id = self.client.begin(*addresses, deadline_us, priority, idempotent)
        except OSError as error:
            raise ConnectionLost(error.strerror) from error
        if req_id:
            self.pending.add(req_id)
        return req_id

    def flush(self) -> None:
        """What has begun has been sent."""

    def cancel(self, req_id: int) -> None:
        """Give a request up; its memory is the caller's again."""
        self.pending.discard(req_id)
        self.client.cancel(req_id)

    def ask(self) -> None:
        """Ask for credit. Raises ConnectionLost."""
        try:
            self.client.ask()
        except OSError as error:
            raise ConnectionLost(error.strerror) from error

    def farewell(self) -> None:
        """Everything is done."""
        self.client.farewell()

    def tick(self, now_ns: int) -> None:
        """C does what is due while it waits."""

    def overdue(self, now_ns: int) -> list[int]:
        """C ends them."""
        return []


class NativeTransport:
    """The connection of a :class:`NativeCore`."""

    has_kept = False

    def __init__(self, connection: socket.socket, core: NativeCore) -> None:
        """The socket is taken."""
        self.socket, self.is_stream = connection, core.stream
        self._core, self._heard_ns, self._until_ns = core, core.heard_ns, 0

    @property
    def is_stuck(self) -> bool:
        """Whether a stream has not taken all of what was sent."""
        return self._core.client.kept > 0

    def post(self, pieces: Sequence[Piece]) -> None:
        """Send a hello. Raises ConnectionLost."""
        for piece in pieces:
            try:
                self._send(piece)
            except (BlockingIOError, ConnectionRefusedError):
                return  # it is said again; whether the server is gone is known when it is silent
            except OSError as error:
                raise ConnectionLost(error.strerror) from error

    def _send(self, piece: Piece) -> None:
        try:
            self.socket.sendmsg(piece, (), NO_WAIT)
        except ConnectionRefusedError:  # of an earlier datagram: this one has not left
            self.socket.sendmsg(piece, (), NO_WAIT)

    def receive(self, sink: Sink, flags: int) -> bool:
        """Wait until something has ended; whether it has. Raises ConnectionLost."""
        spin = flags & SPIN == SPIN
        until = time.monotonic_ns() + TICK_NS if spin or not flags & NO_WAIT else 0
        self._until_ns = until
        client, pending = self._core.client, self._core.pending
        try:
            ended = client.poll(until, spin)
        except InterruptedError:
            return False
        except OSError as error:
            raise ConnectionLost(error.strerror) from error
        if not ended:
            return self._hello(sink) or self._sign_of_life(sink) or self._room(sink)
        self._heard_ns = self._core.heard_ns
        for req_id, status in ended:
            if req_id in pending:  # a session that is lost has taken the others with it
                pending.discard(req_id)
                sink.on_ended(Refused(req_id, status), is_answered=status == WireStatus.OK)
        return True

    def _hello(self, sink: Sink) -> bool:
        datagram = self._core.client.hello()
        if datagram:
            head = bytearray(datagram[:HEADER_BYTES])
            sink.on_message(head, len(datagram), lambda: datagram[HEADER_BYTES:])
        return bool(datagram)

    def _sign_of_life(self, sink: Sink) -> bool:
        heard_ns = self._core.heard_ns
        if heard_ns == self._heard_ns:
            return False
        self._heard_ns = heard_ns
        sink.on_heard(heard_ns)
        return True

    def _room(self, sink: Sink) -> bool:
        """Before its time poll ends without anything only when the stream takes more again."""
        if not self.is_stream or time.monotonic_ns() >= self._until_ns:
            return False
        sink.on_heard(time.monotonic_ns())
        return True

    def discard(self) -> None:
        """C discards what belongs nowhere."""


def native_session(
    core: ClientCore, transport: Datagrams | Stream | NativeTransport
) -> tuple[NativeCore, NativeTransport] | None:
    """The same session in C; None where there is no library, or it protects its payloads."""
    if core.guard is not None or library() is None:
        return None
    native = NativeCore(core, transport.socket)
    return native, NativeTransport(transport.socket, native)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data) if view.nbytes else 0
