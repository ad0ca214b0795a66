"""Calls of a session that wait for credit, or for their answers. Pure."""

from __future__ import annotations

from collections import deque

from shunter.nic_frontend.client.requests.calls import Call
from shunter.nic_frontend.client.requests.errors import (
    InferenceError,
    TooLateError,
    UnreachableError,
    error_of,
    unsent,
)
from shunter.nic_frontend.wire.layout import WireStatus

UNSERVED_NS = 5_000_000_000
"""Within such a time a front end comes again, and has its workers back."""


class CallQueue:
    """What has not ended; both containers stay the same objects."""

    def __init__(self) -> None:
        """Nothing."""
        self.waiting: deque[Call] = deque()
        """In the order in which they are to be sent."""
        self.running: dict[int, Call] = {}
        """By the numbers of their requests."""
        self.unserved = 0
        """Calls, first of those that wait, for which this session's model had no worker."""

    @property
    def is_busy(self) -> bool:
        """Whether a call has not ended."""
        return bool(self.running or self.waiting)

    @property
    def is_in_vain(self) -> bool:
        """Whether the model has no worker, and nothing is on its way any more."""
        return bool(self.unserved and not self.running)

    def abandon(self) -> None:
        """The session is lost: what may run twice is sent again, of the rest nobody knows."""
        calls = list(self.running.values())
        self.running.clear()
        self.unserved = 0
        for call in reversed(calls):
            call.req_id = 0
            if call.options.idempotent:
                self.waiting.appendleft(call)
            else:
                call.end(error_of(WireStatus.UNKNOWN_SESSION))

    def put_back(self, call: Call, now_ns: int) -> None:
        """There was no worker for it: it did not run, so it may be sent again."""
        call.req_id = 0
        call.unserved_ns = call.unserved_ns or now_ns
        self.waiting.insert(self.unserved, call)
        self.unserved += 1

    def remove(self, call: Call) -> None:
        """It is not to be sent any more, if it waits."""
        for at, found in enumerate(self.waiting):
            if found is call:
                del self.waiting[at]
                self.unserved -= at < self.unserved
                return

    def end_waiting(self, error: InferenceError) -> None:
        """None of those that wait will be sent."""
        while self.waiting:
            self.waiting.popleft().end(error)

    def late(self, now_ns: int) -> list[Call]:
        """Those whose callers wait no longer."""
        return [c for c in (*self.running.values(), *self.waiting) if c.ends_ns < now_ns]

    def hopeless(self, now_ns: int) -> list[tuple[Call, InferenceError]]:
        """Those that wait and need not be sent any more, and why."""
        found: list[tuple[Call, InferenceError]] = []
        for call in self.waiting:
            if 0 < call.deadline_ns <= now_ns:
                text = "the deadline has passed before there was credit"
                found.append((call, TooLateError(text)))
            elif 0 < call.unserved_ns < now_ns - UNSERVED_NS:
                found.append((call, error_of(WireStatus.NO_WORKER)))
        return found


def lateness(call: Call, *, is_heard: bool, failure: InferenceError | None) -> InferenceError:
    """Why there is no answer in time; ``failure``: of the last try to open a session."""
    allowed = f"within {(call.ends_ns - call.begun_ns) / 1e9:g} s"
    if not is_heard:
        why = f": {failure}" if failure is not None else ""
        ran = "; it is not known whether the request ran" if call.req_id else ""
        error = UnreachableError(f"nothing came from the server {allowed}{ran}{why}")
        return error if call.req_id else unsent(error)
    if call.req_id:
        return TooLateError(f"the server is there, but did not answer {allowed}")
    return TooLateError(f"the server had no room for the request {allowed}")
