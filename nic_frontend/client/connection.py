"""A client's session with one model: its connection, and how it is opened; nothing here waits."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence

from shunter.nic_frontend.client.call_queue import CallQueue
from shunter.nic_frontend.client.calls import Tensors
from shunter.nic_frontend.client.errors import (
    AuthenticationError,
    BadRequestError,
    InferenceError,
    UnreachableError,
)
from shunter.nic_frontend.client.opening import Opening, OpenSession, check_names
from shunter.nic_frontend.client.protocol.native_session import (
    NativeCore,
    NativeTransport,
    native_session,
)
from shunter.nic_frontend.client.protocol.python_session import PythonSession
from shunter.nic_frontend.client.protocol.transports import (
    ConnectionLost,
    Datagrams,
    Piece,
    Stream,
)
from shunter.nic_frontend.wire.hello import Hello
from shunter.nic_frontend.wire.keys import SharedKey

SILENCE_NS = 500_000_000
"""When the server has said nothing for so long, it may have forgotten the session."""
FIRST_ASK_NS, MOST_ASK_NS = 5_000_000, 200_000_000


class Connection:
    """One session at a time, over one connection at a time."""

    def __init__(
        self,
        model: str,
        version: str,
        window: int,
        key: SharedKey | None,
        protect: int = 0,
        before_close: Callable[[], None] | None = None,
        *,
        native: bool = False,
    ) -> None:
        """There is no connection yet: give one with :meth:`attach`.

        ``protect``: PAYLOAD_CRC or PAYLOAD_AEAD. ``before_close`` is called before a connection is
        closed. ``native``: in C where that can be; sending and receiving may then wait.
        """
        self.transport: Datagrams | Stream | NativeTransport | None = None
        self._native = native
        check_names(model, version, key.id if key else "")
        self.closed = False
        self._before_close = before_close
        self._hello, self._key, self._protect = (model, version, window), key, protect
        self.core: PythonSession | NativeCore | None = None
        self.tensors: Tensors | None = None
        """Of the last session."""
        self.may_be_strict = True
        """Whether it has the right to."""
        self._calls = CallQueue()
        self.waiting, self.running = self._calls.waiting, self._calls.running
        self.now = self.ticked_ns = time.monotonic_ns()
        self.failure: InferenceError | None = None
        """Why the last try to open a session failed."""
        self._segment = 0
        self._opening: Opening | None = None
        self._probed_ns = 0
        self._busy_since_ns = 0
        self._ask_due_ns, self._ask_wait_ns = 0, FIRST_ASK_NS
        self._ended = 0
        """Calls since the server was told, when it is told next, what is done."""
        self._is_receiving = False

    def attach(self, transport: Datagrams | Stream, segment: int) -> None:
        """Use a connection, and open a session over it."""
        self.now = time.monotonic_ns()
        self.transport, self._segment = transport, segment
        self._begin_opening()
        self.tick(self.now)

    def lose(self, reason: str) -> None:
        """The connection is of no use any more; the owner may attach another."""
        self._calls.abandon()
        self._let_go()
        self.failure = UnreachableError(reason)

    def __del__(self) -> None:
        """A session that nobody closed holds no socket, and no place at the server."""
        transport = self.transport
        if transport is not None:
            if self._before_close is None:  # else the loop, which has other things to do now
                with contextlib.suppress(Exception):
                    self.close()
            transport.socket.close()

    def _let_go(self) -> None:
        if self.transport is not None:
            if self._before_close is not None:
                self._before_close()
            self.transport.socket.close()
        if isinstance(self.core, NativeCore):
            self.core.client.close()
        self.transport = self.core = self._opening = None

    @property
    def is_refused(self) -> bool:
        """Whether the server answered the last try to open a session, and said no."""
        return not isinstance(self.failure, UnreachableError | None)

    def check_opening(self, *, is_over: bool) -> None:
        """Raise InferenceError when there is no hope of a first session; ``is_over``: no time."""
        if self.failure is not None and (is_over or self.is_refused):
            raise self.failure
        if is_over:
            raise UnreachableError("nothing came from the server in time")

    def _send(self, pieces: Sequence[Piece]) -> None:
        if self.transport is not None:
            try:
                self.transport.post(pieces)
            except ConnectionLost as lost:
                self.lose(str(lost))

    @property
    def has_kept(self) -> bool:
        """Whether something waits until the connection takes more: :meth:`flush` then."""
        return self.transport is not None and self.transport.has_kept

    def receive(self, flags: int) -> bool:
        """Take what has come, once; whether there was any. ``flags``: of the system call."""
        if self.transport is None:
            return False
        self._is_receiving = True
        try:
            return self.transport.receive(self, flags)
        except ConnectionLost as lost:
            self.lose(str(lost))
            return False
        finally:
            self._is_receiving = False

    def _begin_opening(self) -> None:
        assert self.transport is not None
        model, version, window = self._hello
        nonce = secrets.token_bytes(16)
        hello = Hello(nonce, model, version, self._segment, window, want=self._protect)
        self._opening = Opening(hello, self._key, stream=self.transport.is_stream)
        self._probed_ns = self.now

    def _say_hello(self) -> None:
        hello = self._opening.next(self.now) if self._opening is not None else None
        if hello is None:
            return
        if self.core is not None:  # it shows that it is alive before it can answer the hello
            self._ask_now(self.core)
        self._send([(hello, b"")])

    def _on_hello(self, datagram: bytes) -> None:
        if self.core is not None and self.core.heard_ns > self._probed_ns:
            self._opening = None  # it lives: another hello would open a session for nobody
        if self._opening is None:
            return
        try:
            opened = self._opening.receive(datagram, self.now)
        except InferenceError as error:
            self._on_refused_hello(error)
            return
        if opened is None:
            self._say_hello()
        else:
            self._on_opened(opened)

    def _on_refused_hello(self, error: InferenceError) -> None:
        """A model may be gone for a moment, while the front end or its workers come back."""
        if self.core is not None and not self._is_silent(self.core):
            self._opening = None  # anybody may have brought this about: the session goes on
            return
        self.lose(str(error))
        self.failure = error
        if isinstance(error, AuthenticationError):
            self._calls.end_waiting(error)

    def _on_opened(self, opened: OpenSession) -> None:
        self._calls.abandon()
        tensors = Tensors(opened.inputs, opened.outputs)
        if self.tensors is not None and self.tensors != tensors:
            self._calls.end_waiting(BadRequestError("the model has other tensors now"))
        self.tensors, self.may_be_strict = tensors, opened.may_be_strict
        assert self.transport is not None
        if self._native and (found := native_session(opened.core, self.transport)):
            self.core, self.transport = found
        else:
            assert not isinstance(self.transport, NativeTransport)
            self.core = PythonSession(opened.core, self.transport)
        if isinstance(self.transport, Datagrams):
            self.transport.is_trusted = True
        self._opening = self.failure = None
        self._begin_calls()

    def _is_silent(self, core: PythonSession | NativeCore) -> bool:
        return self.now - max(core.heard_ns, self._busy_since_ns) > SILENCE_NS

    # ---- of whoever has the calls

    def close(self) -> None:
        """End the session."""
        raise NotImplementedError

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        raise NotImplementedError

    def _begin_calls(self) -> None:
        raise NotImplementedError

    def _ask_now(self, core: PythonSession | NativeCore) -> None:
        raise NotImplementedError
