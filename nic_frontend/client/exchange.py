"""A session of a client and the requests in it; nothing here waits.

The owner gives it a connection, calls, and the passing of time, and is told which calls have ended.
It opens sessions, sends what credit permits in the order of the calls, notices that a session is
lost, and then does again what may be done again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from shunter.nic_frontend.client.call_queue import lateness
from shunter.nic_frontend.client.calls import Call
from shunter.nic_frontend.client.connection import FIRST_ASK_NS, MOST_ASK_NS, SILENCE_NS, Connection
from shunter.nic_frontend.client.errors import (
    InferenceError,
    UnreachableError,
    error_of,
)
from shunter.nic_frontend.client.protocol.native_session import (
    NativeCore,
)
from shunter.nic_frontend.client.protocol.python_session import PythonSession
from shunter.nic_frontend.client.protocol.state import Landing, Refused
from shunter.nic_frontend.client.protocol.transports import (
    NO_WAIT,
    ConnectionLost,
)
from shunter.nic_frontend.wire.layout import MessageType, WireStatus

CHECK_NS = 1_000_000_000
"""After such a pause the server is asked whether it is there, before a request is sent."""
IDLE_NS = 45_000_000_000
"""After such a pause the session is taken for ended; the server ends it after 60 s."""
OPENING_NS = 1_000_000_000
"""An address that does not open a session for so long is given up."""
BURST_BYTES = 1 << 20
"""After so many the client looks whether answers have come."""
_HELLO_ACK = int(MessageType.HELLO_ACK)
_EMPTY = memoryview(bytearray())


class Exchange(Connection):
    """The calls of one session at a time with one model."""

    def close(self) -> None:
        """End the session; every call ends with UnreachableError."""
        for call in [*self.waiting, *self.running.values()]:
            self.cancel(call, UnreachableError("the client was closed"))
        if self.transport is not None and not self.transport.is_stream and self.core is not None:
            with contextlib.suppress(ConnectionLost):
                self.core.farewell()
        self._let_go()
        self.closed = True

    @property
    def is_busy(self) -> bool:
        """Whether a call has not ended."""
        return self._calls.is_busy

    def submit(self, calls: Sequence[Call]) -> None:
        """Send them as soon as there is a session, and credit. They begin now.

        Raises ValueError when the session was closed.
        """
        if self.closed:
            raise ValueError("the session was closed")
        self.now = calls[0].begun_ns
        if not self.is_busy:
            self._busy_since_ns = self.now
            self._ask_due_ns, self._ask_wait_ns = 0, FIRST_ASK_NS
            if self.core is not None and self.now - self.core.heard_ns > IDLE_NS:
                self.lose("the session has ended")
        self.waiting.extend(calls)
        self._begin_calls()

    def cancel(self, call: Call, error: InferenceError | None = None) -> None:
        """The caller does not want it any more; it ends, with the error if there is one."""
        if call.done:
            return
        if not call.req_id:
            self._calls.remove(call)
        elif self.running.pop(call.req_id, None) and self.core is not None:
            try:
                self.core.cancel(call.req_id)
            except ConnectionLost as lost:
                self.lose(str(lost))
        call.end(error)
        self._look_elsewhere()
        if self.transport is not None and self.transport.is_stuck and not self.is_busy:
            # Nobody would send the rest of it, and the server waits for that.
            self.lose("the server took a part of a request only")

    def _begin_calls(self) -> None:
        """Send what credit permits, in order."""
        core, waiting = self.core, self.waiting
        if core is None or not waiting or self._calls.unserved:
            return
        if not core.pending and self.now - core.heard_ns > CHECK_NS:
            self._ask(core)
            return
        if not core.may_begin and not core.pending:
            self._ask(core)
        elif not core.may_begin and self._ended > len(core.pending):
            self._ended = 0  # half of the credit is used up: tell what is done before all is
            self._ask_now(core)
        while waiting and self.core is core and core.may_begin and not self.has_kept:
            self._ask_due_ns, self._ask_wait_ns, self._ended = 0, FIRST_ASK_NS, 0
            if not self._begin_some(core):
                return  # the stream takes nothing now
            # Answers must not wait until everything is sent: their room is small.
            while waiting and not self._is_receiving and self.receive(NO_WAIT):
                pass

    def _begin_some(self, core: PythonSession | NativeCore) -> bool:
        """As many as are worth a look at what has come meanwhile; False: not all of these."""
        room = BURST_BYTES
        try:
            while self.waiting and core.may_begin and room > 0:
                call = self.waiting[0]
                memory = call.inputs, call.landing
                call.req_id = core.begin(self.now, *memory, **self._terms(call))
                if not call.req_id:
                    return False
                self.running[call.req_id] = self.waiting.popleft()
                room -= sum(core.inputs.sizes)
            core.flush()
        except ConnectionLost as lost:
            self.lose(str(lost))
            return False
        return True

    def _terms(self, call: Call) -> dict[str, int]:
        options = call.options
        left_us = max(1, (call.deadline_ns - self.now) // 1000) if call.deadline_ns else 0
        priority = options.priority
        return {"deadline_us": left_us, "priority": priority, "idempotent": options.idempotent}

    def ask(self, now_ns: int) -> None:
        """Ask the server for a sign of life; its answer moves ``core.heard_ns``."""
        self.now, self._ask_due_ns = now_ns, 0
        if self.core is not None:
            self._ask(self.core)

    def _ask(self, core: PythonSession | NativeCore) -> None:
        """For credit, or for a sign of life."""
        if self.now >= self._ask_due_ns:
            self._ask_due_ns = self.now + self._ask_wait_ns
            self._ask_wait_ns = min(2 * self._ask_wait_ns, MOST_ASK_NS)
            self._ask_now(core)

    def _ask_now(self, core: PythonSession | NativeCore) -> None:
        if self.has_kept:
            return  # nobody would hear it now
        try:
            core.ask()
        except ConnectionLost as lost:
            self.lose(str(lost))

    def flush(self) -> None:
        """Send what was kept, and what waits behind it."""
        self._send(())
        self._begin_calls()

    def expected(self) -> memoryview:
        """Where the next payload is likely to belong."""
        return self.core.expected() if isinstance(self.core, PythonSession) else _EMPTY

    def on_message(
        self, head: bytearray, length: int, payload: Callable[[], bytes]
    ) -> memoryview | None:
        """A message came; where its payload belongs."""
        self.now = time.monotonic_ns()
        if head[3] == _HELLO_ACK:
            self._on_hello(bytes(head) + payload())
            return None
        core = self.core
        if not isinstance(core, PythonSession):
            return None
        found = core.receive(head, length, self.now, payload)
        if isinstance(found, Landing):
            place = core.place(found)
            if place is None:
                self.on_payload()
            return place
        if found is not None:
            self._on_refusal(found)
        if self.waiting:
            self._begin_calls()
        return None

    def on_payload(self) -> None:
        """The payload is where it belongs."""
        req_id = self.core.landed() if isinstance(self.core, PythonSession) else 0
        if req_id:
            self._ended += 1
            self.running.pop(req_id).end()
            self._look_elsewhere()
            if self.waiting:
                self._begin_calls()

    def on_heard(self, now_ns: int) -> None:
        """Something came that is about no request: credit, maybe."""
        self.now = now_ns
        self._begin_calls()

    def on_ended(self, ended: Refused, *, is_answered: bool) -> None:
        """A request has ended; its answer, if there is one, is where it belongs."""
        self.now = time.monotonic_ns()
        if ended.req_id not in self.running:
            return
        self._ended += 1
        if is_answered:
            self.running.pop(ended.req_id).end()
            self._look_elsewhere()
        else:
            self._on_refusal(ended)
        if self.waiting:
            self._begin_calls()

    def _on_refusal(self, refused: Refused) -> None:
        call = self.running.pop(refused.req_id)
        if refused.status != WireStatus.NO_WORKER:
            call.end(error_of(refused.status))
            self._look_elsewhere()
            return
        self._calls.put_back(call, self.now)
        self._look_elsewhere()

    def _look_elsewhere(self) -> None:
        """Without workers the session is of no use; when its last call has ended, try another."""
        if self._calls.is_in_vain:
            self.lose("the model has no worker")
            self.failure = error_of(WireStatus.NO_WORKER)

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        self.now = self.ticked_ns = now_ns
        self._end_late_calls()
        core = self.core
        if core is not None:
            self._tick(core)
            self._begin_calls()
            if self.core is core:  # it may be lost by now
                self._doubt(core)
        elif self._opening is not None and now_ns - self._probed_ns > OPENING_NS:
            self.lose("no answer to a hello")
        self._say_hello()

    def _tick(self, core: PythonSession | NativeCore) -> None:
        if not self.has_kept:
            try:
                core.tick(self.now)
            except ConnectionLost as lost:
                self.lose(str(lost))

    def _doubt(self, core: PythonSession | NativeCore) -> None:
        """Try to open another session when this one is silent."""
        if self._opening is not None:
            if core.heard_ns > self._probed_ns or not self.is_busy:
                self._opening = None
            return
        # Which may be said by anybody, so it is believed but now and then, and only asked about.
        is_unknown = core.unknown_ns > max(core.heard_ns, self._probed_ns + SILENCE_NS)
        is_stream = self.transport is not None and self.transport.is_stream
        if (self._is_silent(core) or is_unknown) and self.is_busy and not is_stream:
            self._begin_opening()

    def _end_late_calls(self) -> None:
        late = self._calls.late(self.now)
        for call in late:
            self.cancel(call, self._lateness(call))
        for call, error in self._calls.hopeless(self.now):
            self.cancel(call, error)
        for req_id in self.core.overdue(self.now) if self.core is not None else ():
            if req_id in self.running:
                self.cancel(self.running[req_id], error_of(WireStatus.TOO_LATE))
        is_silent = late and self.core is not None and self.core.heard_ns < late[0].begun_ns
        if is_silent and not self.is_busy:
            self.lose("the server is silent")

    def _lateness(self, call: Call) -> InferenceError:
        core = self.core
        if core is None and self.is_refused:
            assert self.failure is not None
            return self.failure
        is_heard = core is not None and (core.stream or core.heard_ns >= call.begun_ns)
        return lateness(call, is_heard=is_heard, failure=self.failure)
