"""A session of a client and the requests in it; nothing here waits.

The owner gives it a connection, calls, and the passing of time, and is told which calls have ended.
It opens sessions, sends what credit permits in the order of the calls, notices that a session is
lost, and then does again what may be done again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence

from shunter.nic_frontend.client.connection import FIRST_ASK_NS, MOST_ASK_NS, SILENCE_NS, Connection
from shunter.nic_frontend.client.native_session import NativeSession, reason_of
from shunter.nic_frontend.client.requests.call_queue import lateness
from shunter.nic_frontend.client.requests.calls import Array, Call, Options
from shunter.nic_frontend.client.requests.errors import (
    InferenceError,
    UnreachableError,
    error_of,
)
from shunter.nic_frontend.wire.layout import WireStatus

CHECK_NS = 1_000_000_000
"""After such a pause the server is asked whether it is there, before a request is sent."""
IDLE_NS = 45_000_000_000
"""After such a pause the session is taken for ended; the server ends it after 60 s."""
ASKS = 3
"""So many signs of life are asked for in vain before a silent session is doubted. Who did not run
for a while, as on a busy host, has asked for none."""
OPENING_NS = 1_000_000_000
"""An address that does not open a session for so long is given up."""
BURST_BYTES = 1 << 20
"""After so many the client looks whether answers have come."""
MOST_SILENCE_NS = 10_000_000_000
"""A stream whose server says nothing for so long, though it is asked, is given up."""
TICK_NS = 10_000_000
"""Nothing waits longer without a look at the time."""
_OK = int(WireStatus.OK)


class Exchange(Connection):
    """The calls of one session at a time with one model."""

    def close(self) -> None:
        """End the session; every call ends with UnreachableError."""
        for call in [*self.waiting, *self.running.values()]:
            self.cancel(call, UnreachableError("the client was closed"))
        if self.core is not None and not self.core.stream:
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
            self.core.cancel(call.req_id)
        call.end(error)
        self._look_elsewhere()
        if self.is_stuck and not self.is_busy:
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
        elif not core.may_begin and self._ended > core.pending:
            self._ended = 0  # half of the credit is used up: tell what is done before all is
            self._ask_now(core)
        while waiting and self.core is core and core.may_begin:
            self._ask_due_ns, self._ask_wait_ns, self._ended = 0, FIRST_ASK_NS, 0
            if not self._begin_some(core):
                return  # the stream takes nothing now
            # Answers must not wait until everything is sent: their room is small.
            while waiting and not self._is_receiving and self.receive():
                pass

    def _begin_some(self, core: NativeSession) -> bool:
        """As many as are worth a look at what has come meanwhile; False: not all of these."""
        room, goes_on = BURST_BYTES, True
        try:
            if several := len(self.waiting) > 1:
                core.cork(True)
            while goes_on and self.waiting and core.may_begin and room > 0:
                call = self.waiting[0]
                if call.within not in (None, core):  # there it means nothing
                    self.waiting.popleft().end(error_of(WireStatus.UNKNOWN_SESSION))
                    continue
                left_ns = call.deadline_ns - self.now
                call.req_id = core.start(call, max(1, left_ns // 1000) if call.deadline_ns else 0)
                if goes_on := call.req_id != 0:
                    self.running[call.req_id] = self.waiting.popleft()
                    room -= call.inputs[0].size if call.rows else core.request_bytes
            if several:
                core.cork(False)
        except OSError as lost:
            self.lose(reason_of(lost))
            return False
        return goes_on

    def ask_alone(
        self, inputs: Sequence[Array], options: Options, timeout_s: float, *, spin: bool
    ) -> Call | list[Array] | None:
        """The outputs of a request that nothing is before; the call, if it takes longer.

        None: it is not begun, because something else comes first or the arrays are wrong.
        """
        core = self.core
        if core is None or self.running or self.waiting or self._opening is not None:
            return None
        now, one = time.monotonic_ns(), core.one_call
        if now - core.heard_ns > CHECK_NS or not one.takes(inputs):
            return None
        self.now = self._busy_since_ns = now
        self._ask_due_ns, self._ask_wait_ns = 0, FIRST_ASK_NS
        status = one.ask(options, now + TICK_NS, spin)
        if status == _OK:
            return one.answer()
        if not one.req_id:
            if status not in (0, -errno.EAGAIN):
                self.lose(os.strerror(-status))
            return None
        call = one.call(options, now, timeout_s)
        call.req_id = one.req_id
        self.running[call.req_id] = call
        if status > 0:
            self.on_ended(call.req_id, status, one.answer_bytes)
        elif status < 0:
            self.lose(os.strerror(-status))
        return call

    def ask(self, now_ns: int) -> None:
        """Ask the server for a sign of life; its answer moves ``core.heard_ns``."""
        self.now, self._ask_due_ns = now_ns, 0
        if self.core is not None:
            self._ask(self.core)

    def ask_again(self) -> None:
        """If it is time to: the question, or its answer, may be lost."""
        if self.core is not None:
            self._ask(self.core)

    def _ask(self, core: NativeSession) -> None:
        """For credit, or for a sign of life."""
        if self.now >= self._ask_due_ns:
            self._ask_due_ns = self.now + self._ask_wait_ns
            self._ask_wait_ns = min(2 * self._ask_wait_ns, MOST_ASK_NS)
            if self._unanswered_ns != core.heard_ns:
                self._unanswered_ns, self._asked = core.heard_ns, 0
            self._asked += 1
            self._ask_now(core)

    def _ask_now(self, core: NativeSession) -> None:
        try:
            core.ask()
        except OSError as lost:
            self.lose(reason_of(lost))

    def _take(self, core: NativeSession, until_ns: int, spin: bool) -> bool:
        heard_ns = core.heard_ns
        for req_id, status, size in (ended := core.poll_runs(until_ns, spin)):
            self.on_ended(req_id, status, size)
        if ended:
            return True
        if datagram := core.hello():
            self._on_hello(datagram)
            return True
        is_heard = core.heard_ns != heard_ns
        if is_heard or core.stream:  # there may be credit now, or a stream takes more
            self.now = core.heard_ns if is_heard else time.monotonic_ns()
            self._begin_calls()
        return is_heard

    def on_ended(self, req_id: int, status: int, size: int = 0) -> None:
        """A request has ended; its answer, if there is one, is where it belongs.

        ``size``: bytes of an answer of a packed function.
        """
        self.now = time.monotonic_ns()
        call = self.running.pop(req_id, None)
        if call is None:  # a session that is lost has taken it with it
            return
        self._ended += 1
        if status == WireStatus.NO_WORKER and not call.part:
            self._calls.put_back(call, self.now)
        else:
            call.within = self.core
            call.end(None if status == WireStatus.OK else error_of(status), size)
        self._look_elsewhere()
        if self.waiting:
            self._begin_calls()

    def _look_elsewhere(self) -> None:
        """Without workers the session is of no use; when its last call has ended, try another."""
        if self._calls.is_in_vain:
            self.lose("the model has no worker", error_of(WireStatus.NO_WORKER))

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        core, rested_ns = self.core, now_ns - self.ticked_ns
        self.now = self.ticked_ns = now_ns
        if core is not None and core.stream and (core.kept or rested_ns > CHECK_NS):
            self._busy_since_ns = now_ns  # nobody could ask up to now: it is not silent yet
        self._end_late_calls()
        core = self.core
        if core is not None:
            self._begin_calls()
            if self.core is core:  # it may be lost by now
                self._doubt(core)
        elif self._opening is not None and now_ns - self._probed_ns > OPENING_NS:
            self.lose("no answer to a hello")
        self._say_hello()

    def _doubt(self, core: NativeSession) -> None:
        """Try to open another session when this one is silent."""
        if self._opening is not None:
            if core.heard_ns > self._probed_ns or not self.is_busy:
                self._opening = None
            elif self._is_over and self.now - self._probed_ns > OPENING_NS:
                self.lose("the server is silent")
            return
        # Which may be said by anybody, so it is believed but now and then, and only asked about.
        is_unknown = core.unknown_ns > max(core.heard_ns, self._probed_ns + SILENCE_NS)
        if not self.is_busy:
            return
        if core.stream:
            if self._is_dead(core):
                self.lose("the server is silent")
            return
        if is_unknown or (self._is_silent(core) and self._is_asked_in_vain(core)):
            self._begin_opening()

    def _is_dead(self, core: NativeSession) -> bool:
        """Whether a stream's server does not answer, that is asked every second, while it could."""
        return self.now - max(core.heard_ns, self._busy_since_ns) > MOST_SILENCE_NS

    def _is_asked_in_vain(self, core: NativeSession) -> bool:
        """Whether it does not answer; else it is asked, if it is time to."""
        if self._unanswered_ns != core.heard_ns:
            self._ask_due_ns, self._ask_wait_ns = 0, FIRST_ASK_NS
        self._ask(core)
        if self._asked <= ASKS:
            return False
        self._asked = 0
        return True

    def _end_late_calls(self) -> None:
        late = self._calls.late(self.now)
        for call in late:
            self.cancel(call, self._lateness(call))
        for call, error in self._calls.hopeless(self.now):
            self.cancel(call, error)
        is_silent = late and self.core is not None and self.core.heard_ns < late[0].begun_ns
        if is_silent and not self.is_busy:
            self.lose("the server is silent")

    def _lateness(self, call: Call) -> InferenceError:
        core = self.core
        if core is None and self.is_refused:
            assert self.failure is not None
            return self.failure
        is_heard = core is not None and (
            core.heard_ns >= call.begun_ns or (core.stream and not self._is_dead(core))
        )
        return lateness(call, is_heard=is_heard, failure=self.failure)
