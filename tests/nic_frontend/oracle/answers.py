"""Answers, as much of them as the path takes: twin of ``c/path/answers.c``. Pure.

Says which segments go, in which order, and which of them ask to be acknowledged.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address

from oracle.congestion import Congestion, Lost
from oracle.credit import Function
from oracle.sessions import Call, CallState, Session
from shunter.nic_frontend.wire.header import behind
from shunter.nic_frontend.wire.layout import HEADER_BYTES
from shunter.nic_frontend.wire.segments import SegmentPlan

USUAL_RUN = 1 << 16
"""Most answers of a packed function have fewer bytes, whatever they may have."""
DIRECT_RUN = 1 << 13
"""A longer one is sent by a worker only if it is one segment."""
LOOPBACK_RTT_NS = 50_000
Going = Iterator[tuple[Call, int, bool]]
"""Requests, segments, and whether these ask to be acknowledged."""


def _is_loopback(peer: bytes) -> bool:
    family = int.from_bytes(peer[:2], "little")
    if family == socket.AF_INET:
        return ip_address(peer[4:8]).is_loopback
    if family != socket.AF_INET6:
        return False
    address = ip_address(peer[8:24])
    return address.is_loopback or bool(address.ipv4_mapped and address.ipv4_mapped.is_loopback)


class Answers:
    """Those of one session."""

    def __init__(self, session: Session, function: Function) -> None:
        """Of an open session."""
        self.session = session
        self._function = function
        self._most = function.plan(function.outputs, session.segment).count
        self.largest = HEADER_BYTES + session.segment + behind(session.protect)

    def plan(self, call: Call) -> SegmentPlan:
        """Segments of an answer."""
        function = self._function
        sizes = (call.bytes,) if function.runs else function.outputs
        return function.plan(sizes, self.session.segment)

    def open(self, now_ns: int) -> None:
        """None was sent yet."""
        each = self._most * self.largest
        near = self.session.window * each
        if self._function.runs and each > USUAL_RUN:
            near = max(each, self.session.window * USUAL_RUN)
        rtt = LOOPBACK_RTT_NS if _is_loopback(self.session.peer) else 0
        self.session.path = Congestion(self.largest, near, rtt, now_ns)

    @property
    def unsent(self) -> int:
        """Segments that are to be sent."""
        return sum(call.wanted.bit_count() for call in self.session.calls)

    @property
    def direct_segments(self) -> int:
        """Of the longest answer that a worker may send."""
        few = max(1, DIRECT_RUN // self.session.segment)
        return min(few, self._most) if self._function.runs else self._most

    def is_direct(self, now_ns: int) -> bool:
        """Whether a worker may send one as it is."""
        count = (self.session.direct + 1) * self.direct_segments * self.largest
        may = self.session.is_direct and not self.unsent
        return may and self.session.path.holds(count, now_ns)

    def was_sent(self, call: Call, now_ns: int) -> None:
        """Its worker has sent it."""
        if self.session.stream:
            return
        plan = self.plan(call)
        call.wanted, call.next = 0, plan.count
        for seq in range(plan.count):
            count = self._bytes(plan, seq)
            self.session.path.sent(now_ns, call.req_id, seq, count, asks=False, again=False)

    def want(self, call: Call) -> None:
        """It is to be sent."""
        call.next, call.wanted = 0, (1 << self.plan(call).count) - 1

    def heard(self, call: Call, have: int, now_ns: int, *, question: bool) -> None:
        """Its client says what it has; a question: it wants the rest."""
        self._lost(self.session.path.heard(call.req_id, have, now_ns, question=question))
        if question:
            sent = (1 << call.next) - 1
            call.wanted |= sent & ~have & ~self.session.path.flying(call.req_id)

    def came(self, call: Call, now_ns: int) -> None:
        """Its client has all of it."""
        if call.state is CallState.TX_COMPLETE and not self.session.stream:
            call.wanted = 0
            self._lost(self.session.path.heard(call.req_id, None, now_ns))

    def over(self, call: Call) -> None:
        """Nothing more of it is sent."""
        if call.state is CallState.TX_COMPLETE and not self.session.stream:
            call.wanted = 0
            self.session.path.forget(call.req_id)

    def go(self, now_ns: int) -> Going:
        """What goes now."""
        for req_id in range(self.session.done + 1, self.session.grant + 1):
            call = self.session.call(req_id)
            if call.req_id == req_id and call.wanted:
                yield from self._go(call, now_ns)
                if call.wanted:
                    return

    def _go(self, call: Call, now_ns: int) -> Going:
        path = self.session.path
        count = call.wanted.bit_count() * self.largest
        parted = call.next > 0 or not path.holds(count, now_ns)
        plan = self.plan(call)
        for seq in range(plan.count):
            if not call.wanted >> seq & 1:
                continue
            size = self._bytes(plan, seq)
            unsent = self.unsent * self.largest
            self.session.paced_ns = path.may_send_at(size, unsent, now_ns)
            if self.session.paced_ns > now_ns:
                return
            is_half = 2 * (path.in_flight + size) > path.window
            ends_half = is_half and seq + 1 == plan.count
            asks = path.should_ask(size) if parted else ends_half
            path.sent(now_ns, call.req_id, seq, size, asks=asks, again=seq < call.next)
            call.wanted &= ~(1 << seq)
            call.next = max(call.next, seq + 1)
            yield call, seq, asks

    def is_due(self, now_ns: int) -> bool:
        """Whether more goes because time has passed."""
        return self.unsent > 0 and self.session.paced_ns <= now_ns

    @property
    def waits(self) -> bool:
        """Whether more goes when time has passed."""
        return self.unsent > 0

    def _bytes(self, plan: SegmentPlan, seq: int) -> int:
        length: int = plan.place(seq).length
        return HEADER_BYTES + length + behind(self.session.protect)

    def _lost(self, lost: Lost) -> None:
        for req_id, seq in lost:
            call = self.session.call(req_id)
            if call.req_id == req_id and call.state is CallState.TX_COMPLETE:
                call.wanted |= 1 << seq
