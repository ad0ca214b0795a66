"""A client's session with one model: its connection, and how it is opened; nothing here waits."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import time
from collections.abc import Callable

from shunter.nic_frontend.client.forks import OWNED
from shunter.nic_frontend.client.hello_connection import HelloConnection
from shunter.nic_frontend.client.native_client import functions
from shunter.nic_frontend.client.native_session import NativeSession, reason_of
from shunter.nic_frontend.client.opening import Opening, OpenSession, check_names, tensors_of
from shunter.nic_frontend.client.requests.call_queue import CallQueue
from shunter.nic_frontend.client.requests.calls import Tensors
from shunter.nic_frontend.client.requests.errors import (
    AuthenticationError,
    BadRequestError,
    InferenceError,
    UnreachableError,
    unsent,
)
from shunter.nic_frontend.client.shared_inputs import SharedInputs
from shunter.nic_frontend.wire.hello import Hello
from shunter.nic_frontend.wire.keys import SharedKey
from shunter.nic_frontend.wire.layout import WANT_SHARED_MEMORY

SILENCE_NS = 500_000_000
"""When the server has said nothing for so long, it may have forgotten the session."""
FIRST_ASK_NS, MOST_ASK_NS = 5_000_000, 200_000_000
_PARENTS: list[object] = []
"""What a child must not free: a thread of its parent may have been at work on it."""


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
        fail_fast: bool = False,
        shared_memory: bool = True,
    ) -> None:
        """There is no connection yet: give one with :meth:`attach`.

        ``protect``: PAYLOAD_CRC or PAYLOAD_AEAD. ``before_close`` is called before a connection is
        closed. ``fail_fast``: when a connection is lost its calls end; otherwise what may be sent
        again waits for another. ``shared_memory``: with a server on this host, by a Unix socket, if
        it can and payloads need no protection. Raises LibraryError, BadRequestError.
        """
        functions()  # first of all: without the library nothing works
        check_names(model, version, key.id if key else "")
        self.socket: socket.socket | None = None
        self._greeting: HelloConnection | None = None
        """While there is no session."""
        self.closed, self._fail_fast = False, fail_fast
        self.has_more = False
        """Whether there are more addresses to be tried at once."""
        self._before_close = before_close
        self._hello, self._key, self._protect = (model, version, window), key, protect
        self._shares_memory = shared_memory and not protect
        self.core: NativeSession | None = None
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
        self._asked = self._unanswered_ns = 0
        """How often it was asked since the server was heard, and when that was."""
        self._ended = 0
        """Calls since the server was told, when it is told next, what is done."""
        self._is_receiving = False
        OWNED.add(self)

    def attach(self, connection: socket.socket, segment: int) -> None:
        """Take a connection that does not block, and open a session over it."""
        self.now = time.monotonic_ns()
        self.socket, self._segment = connection, segment
        self._greeting = HelloConnection(connection)
        self._begin_opening()
        self.tick(self.now)

    def lose(self, reason: str, failure: InferenceError | None = None) -> None:
        """The connection is of no use any more; the owner may attach another."""
        self._calls.abandon()
        self._let_go()
        self.failure = failure or unsent(UnreachableError(reason))
        if self._is_over:
            self._calls.end_waiting(self.failure)

    @property
    def _is_over(self) -> bool:
        """Whether nobody wants to wait for another connection."""
        return self._fail_fast and not self.has_more

    def __del__(self) -> None:
        """A session that nobody closed holds no socket, and no place at the server."""
        connection = getattr(self, "socket", None)
        if connection is not None:
            if self._before_close is None:  # else the loop, which has other things to do now
                with contextlib.suppress(Exception):
                    self.close()
            connection.close()

    def _let_go(self) -> None:
        if self.socket is not None:
            if self._before_close is not None:
                self._before_close()
            self.socket.close()
        if self.core is not None:
            self.core.close()
        self.socket = self.core = self._greeting = self._opening = None

    def leave_to_parent(self) -> None:
        """In a child: the session, its numbers and its keys are the parent's, and so are its calls.

        Two that go on with it would have each other's answers. Another is opened when needed.
        """
        if self.socket is not None:
            self.socket.close()
        _PARENTS.append(self.core)
        self.socket = self.core = self._greeting = self._opening = None

    @property
    def is_refused(self) -> bool:
        """Whether the server answered the last try to open a session, and said no."""
        return not isinstance(self.failure, UnreachableError | None)

    @property
    def is_hopeless(self) -> bool:
        """Whether the last try failed, and nobody wants to wait for another."""
        return self.is_refused or (self.failure is not None and self._is_over)

    def check_opening(self, *, is_over: bool) -> None:
        """Raise InferenceError when there is no hope of a first session; ``is_over``: no time."""
        if self.failure is not None and (is_over or self.is_hopeless):
            raise self.failure
        if is_over:
            raise unsent(UnreachableError("nothing came from the server in time"))

    @property
    def is_stream(self) -> bool:
        """Whether nothing is lost on the way."""
        return self.socket is not None and self.socket.type != socket.SOCK_DGRAM

    @property
    def is_stuck(self) -> bool:
        """Whether a stream has not taken all of what was sent."""
        return self.core is not None and self.core.kept > 0

    def receive(self, until_ns: int = 0, *, spin: bool = False) -> bool:
        """Take what has come, or comes by then; whether there was any."""
        if self.socket is None:
            return False
        self._is_receiving = True
        try:
            core = self.core
            return self._greeted(until_ns) if core is None else self._take(core, until_ns, spin)
        except OSError as lost:
            self.lose(reason_of(lost))
            return False
        finally:
            self._is_receiving = False

    def _greeted(self, until_ns: int) -> bool:
        """An answer to a hello has come."""
        assert self._greeting is not None
        assert self.socket is not None
        if (left_ns := until_ns - time.monotonic_ns()) > 0:
            poller = select.poll()
            poller.register(self.socket, select.POLLIN)
            poller.poll(left_ns / 1e6)
        datagram = self._greeting.receive()
        if datagram:
            self._on_hello(datagram)
        return bool(datagram)

    def _begin_opening(self) -> None:
        model, version, window = self._hello
        nonce = secrets.token_bytes(16)
        want, connection = self._protect, self.socket
        if self._shares_memory and self.is_stream and connection.family == socket.AF_UNIX:
            want |= WANT_SHARED_MEMORY
        hello = Hello(nonce, model, version, self._segment, window, want=want)
        self._opening = Opening(hello, self._key, stream=self.is_stream)
        self._probed_ns = self.now

    def _say_hello(self) -> None:
        hello = self._opening.next(self.now) if self._opening is not None else None
        if hello is None:
            return
        if self.core is not None:  # it shows that it is alive before it can answer the hello
            self._ask_now(self.core)
        speaker = self.core or self._greeting
        if speaker is not None:
            try:
                speaker.say_hello(hello)
            except OSError as lost:
                self.lose(reason_of(lost))

    def _on_hello(self, datagram: bytes) -> None:
        self.now = time.monotonic_ns()
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
        self.lose(str(error), error)
        if isinstance(error, AuthenticationError):
            self._calls.end_waiting(error)

    def _on_opened(self, opened: OpenSession) -> None:
        self._calls.abandon()
        tensors = tensors_of(opened)
        if self.tensors is not None and self.tensors != tensors:
            self._calls.end_waiting(BadRequestError("the model has other tensors now"))
        self.tensors, self.may_be_strict = tensors, opened.may_be_strict
        if self.core is not None:
            if not self.core.stream:  # should the server still know it, nobody waits for it there
                self.core.farewell()
            self.core.close()
        assert self.socket is not None
        shared = None
        if opened.shared:
            memory = self._greeting.memory if self._greeting else -1
            shared = SharedInputs(memory, opened.carried_inputs, opened.shared)
        self.core = NativeSession(opened, self.socket, tensors, shared)
        self._opening = self.failure = self._greeting = None
        self._begin_calls()

    def _is_silent(self, core: NativeSession) -> bool:
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

    def _ask_now(self, core: NativeSession) -> None:
        raise NotImplementedError

    def _take(self, core: NativeSession, until_ns: int, spin: bool) -> bool:
        raise NotImplementedError
