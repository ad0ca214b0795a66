"""The client's side of a session: what to send and when, what an answer means. Pure.

Datagrams are pairs of a header and the segment it is about; the shell puts the payload behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shunter.nic_frontend.wire.header import (
    PROTECTIONS,
    Header,
    WrongHeader,
    check_tag,
    nearest,
    parse,
)
from shunter.nic_frontend.wire.layout import (
    SACK_RECEIVING,
    WINDOW,
    X64_FIELDS,
    Flags,
    MessageType,
    WireStatus,
)
from shunter.nic_frontend.wire.segments import Segment, SegmentPlan

FIRST_RTO_NS = 20_000_000
LEAST_RTO_NS = 2_000_000
MOST_RTO_NS = 1_000_000_000
MOST_PATIENCE_NS = 100_000_000
"""A slow model is asked about sooner than its answers take: to ask costs two headers, and something
may be lost."""
MOST_REST_NS = 400_000_000
"""While the server says that it has the request. It is silent for no longer."""
STREAM_RTO_NS = 1_000_000_000
"""Nothing is lost on a stream, but the server may end a session that says nothing."""
RETRY_NS = 20_000_000
"""When the server has no room."""
_LOW = 0xFFFFFFFF
# Plain numbers: arithmetic of enum members is slow, and this is done for every datagram.
_REQ, _RESP, _SACK, _CREDIT, _ERROR = (
    int(getattr(MessageType, name)) for name in ("REQ", "RESP", "SACK", "CREDIT", "ERROR")
)
_LAST, _RETRANS, _ACK_REQ, _IDEMPOTENT = (
    int(f) for f in (Flags.LAST, Flags.RETRANS, Flags.ACK_REQ, Flags.IDEMPOTENT)
)
_PROTECTIONS = int(PROTECTIONS)
_PKT_NO_AT = X64_FIELDS["pkt_no"][0]


class Guard(Protocol):
    """:class:`shunter.nic_frontend.wire.aead.Guard`."""

    def seal(
        self, header: bytes, number: int, payload: bytes | memoryview
    ) -> tuple[bytes, bytes | memoryview]:
        """Header and payload as they are sent."""

    def open(
        self, header: bytes | bytearray, number: int, payload: bytes
    ) -> bytes | None:
        """The bytes of a payload that came, None when they are wrong."""


class Outgoing(NamedTuple):
    """A datagram: the header, then a segment of the request's inputs (None: nothing)."""

    header: bytes
    req_id: int = 0
    segment: Segment | None = None
    payload: bytes = b""


class Landing(NamedTuple):
    """The payload of an answer belongs here. ``tensor`` is an output."""

    req_id: int
    segment: Segment
    is_last: bool
    """With it the answer is complete."""
    payload: bytes | None = None
    """The bytes, when they are not those that came."""


class Refused(NamedTuple):
    """The request ended without an answer."""

    req_id: int
    status: int


@dataclass(slots=True)
class _Pending:
    sent_ns: int
    due_ns: int
    rto_ns: int
    flags: int
    priority: int
    deadline_ns: int
    received: int = 0
    again: bool = False
    """Segments were sent again."""
    asked_ns: int = 0
    """When the server was asked how it stands, 0: it has answered that."""
    refused: bool = False
    """The server said last that it has no room: it has nothing of the request."""


@dataclass
class ClientCore:
    """One session."""

    session: int
    func_id: int
    key: bytes | None
    inputs: SegmentPlan
    outputs: SegmentPlan
    grant: int
    stream: bool = False
    protect: int = 0
    """PAYLOAD_CRC or PAYLOAD_AEAD: what all payloads carry."""
    guard: Guard | None = None
    """What checks them, if there is such a thing."""
    trip_ns: int = 0
    """The shortest way to the server and back, 0: not known."""
    next_id: int = 1
    pending: dict[int, _Pending] = field(default_factory=dict)
    srtt_ns: float = 0.0
    """From a request to its answer, smoothed; the time in the model is part of it."""
    rttvar_ns: float = 0.0
    lost: int = 0
    """Datagrams sent again."""
    heard_ns: int = 0
    """When the server said something last."""
    unknown_ns: int = 0
    """When somebody said last that there is no such session; it may have been anybody."""
    _asks: int = 1
    """Refused requests, from the oldest, that the server is asked about: it promises room to the
    session, for one at a time."""
    _pkt_no: int = 0
    _heard_no: int = 0
    """The highest number of a datagram whose payload was right."""
    _done: set[int] = field(default_factory=set)
    _below: int = 1
    """Every request below this one is done."""

    def __post_init__(self) -> None:
        """Look up the places of all segments once."""
        self._in = [self.inputs.place(seq) for seq in range(self.inputs.count)]
        self._out = [self.outputs.place(seq) for seq in range(self.outputs.count)]
        self._all = (1 << len(self._out)) - 1

    @property
    def may_begin(self) -> bool:
        """Whether there is credit for another request."""
        return self.next_id <= self.grant and self.next_id - self._below < WINDOW

    def begin(
        self, now_ns: int, *, deadline_us: int = 0, priority: int = 0, idempotent: bool = False
    ) -> tuple[int, list[Outgoing]]:
        """A new request and its datagrams. There must be credit."""
        assert self.may_begin
        req_id = self.next_id
        self.next_id += 1
        flags = _IDEMPOTENT if idempotent else 0
        rto = self._rto()
        deadline = now_ns + deadline_us * 1000 if deadline_us else 0
        pending = _Pending(now_ns, now_ns + rto, rto, flags, priority, deadline)
        self.pending[req_id] = pending
        every = range(len(self._in))
        return req_id, [self._request(req_id, pending, seq, 0, now_ns) for seq in every]

    def cancel(self, req_id: int) -> list[Outgoing]:
        """Give a request up."""
        self._end(req_id)
        return [self._control(MessageType.CANCEL, req_id)]

    def farewell(self) -> list[Outgoing]:
        """The session is over: the server need not keep it, nor the last answers."""
        return [self._control(MessageType.ACK, 0, _LAST)]

    def ask(self) -> list[Outgoing]:
        """For credit, or for a sign of life."""
        return [self.ask_for_credit()]

    def ask_for_credit(self) -> Outgoing:
        """To be sent when there is none and nothing is on its way."""
        return self._control(MessageType.ACK, 0, _ACK_REQ)

    def expected(self) -> Iterator[tuple[int, Segment]]:
        """Segments of answers that are likely to come next."""
        for req_id, pending in self.pending.items():
            for seq, segment in enumerate(self._out):
                if not pending.received >> seq & 1:
                    yield req_id, segment

    # ---- what comes

    def receive(
        self, head: bytes | bytearray, length: int, now_ns: int, payload: Callable[[], bytes]
    ) -> tuple[Landing | Refused | None, list[Outgoing]]:
        """What a datagram of ``length`` bytes means, and what to send because of it.

        Wrong ones mean nothing. ``head`` is its beginning, ``payload`` is asked for when it is
        looked at.
        """
        try:
            header = parse(head, length)
            if header.session != self.session:
                return None, []
            if header.type == _ERROR and header.status == WireStatus.UNKNOWN_SESSION:
                self.unknown_ns = now_ns
                return None, []
            check_tag(header, head, self.key)
        except WrongHeader:
            return None, []
        self.heard_ns = now_ns
        self.grant = max(self.grant, nearest(header.credit, self.grant))
        pending = self.pending.get(header.req_id)
        if pending is None:
            return None, []
        if header.type == _RESP:
            return self._answer(header, pending, now_ns, head, payload)
        if header.type == _ERROR:
            return self._error(header, pending, now_ns)
        if header.type == _CREDIT:  # it was refused, and there is room now
            self._has_room(pending)
            return None, self._send_again(header.req_id, pending, 0, now_ns)
        if header.type == _SACK:
            have = int.from_bytes(payload(), "little")
            return None, self._sack(header, pending, have, now_ns)
        return None, []

    def _answer(
        self,
        header: Header,
        pending: _Pending,
        now_ns: int,
        head: bytes | bytearray,
        payload: Callable[[], bytes],
    ) -> tuple[Landing | Refused | None, list[Outgoing]]:
        count = len(self._out)
        if header.count != count or header.seq >= count:
            return None, []
        segment = self._out[header.seq]
        said = header.tensor, header.offset, header.length, header.total
        size = self.outputs.sizes[segment.tensor]
        if said != (segment.tensor, segment.offset, segment.length, size):
            return None, []
        bit = 1 << header.seq
        if pending.received & bit:
            return None, []
        opened = None
        if header.flags & _PROTECTIONS != self.protect:
            return None, []
        if self.guard is not None:
            opened = self._opened(self.guard, header, head, payload())
            if opened is None:
                return None, []
        pending.received |= bit
        pending.refused = False
        is_last = pending.received == self._all
        if is_last:
            if not pending.again and not pending.asked_ns:
                self._measure(now_ns - pending.sent_ns)
            self._end(header.req_id)
            # Others want its room; what is lost of this does no harm.
            asks = header.flags & _ACK_REQ
            answers = [self._control(MessageType.ACK, 0)] if asks else []
            return Landing(header.req_id, segment, True, opened), answers
        pending.rto_ns = min(self._rto(), self._first_rto())  # the rest is on its way
        pending.due_ns = now_ns + pending.rto_ns
        return Landing(header.req_id, segment, False, opened), []

    def _opened(
        self, guard: Guard, header: Header, head: bytes | bytearray, payload: bytes
    ) -> bytes | None:
        """The bytes of a protected payload, None when they are wrong."""
        number = nearest(header.pkt_no, self._heard_no)
        found = guard.open(head, number, payload)
        if found is not None:
            self._heard_no = max(self._heard_no, number)
        return found

    def sealed(
        self, header: bytes, payload: bytes | memoryview
    ) -> tuple[bytes, bytes | memoryview]:
        """A segment of a request as it is sent, if there is a guard."""
        if self.guard is None:
            return header, payload
        low = int.from_bytes(header[_PKT_NO_AT : _PKT_NO_AT + 4], "little")
        return self.guard.seal(header, nearest(low, self._pkt_no), payload)

    def _error(
        self, header: Header, pending: _Pending, now_ns: int
    ) -> tuple[Landing | Refused | None, list[Outgoing]]:
        if header.status == WireStatus.RETRY_LATER:
            pending.due_ns = now_ns + min(pending.rto_ns, RETRY_NS)
            pending.refused, self._asks = True, 1
            return None, []
        self._end(header.req_id)
        return Refused(header.req_id, header.status), []

    def _sack(
        self, header: Header, pending: _Pending, have: int, now_ns: int
    ) -> list[Outgoing]:
        self._has_room(pending)
        if header.status != SACK_RECEIVING:
            pending.rto_ns = self._rto()
            self._rest(pending, now_ns)
            return []
        return self._send_again(header.req_id, pending, have, now_ns)

    def _has_room(self, pending: _Pending) -> None:
        """There may be some for others that were refused: ask about more of them than before."""
        if pending.refused:
            pending.refused, self._asks = False, min(2 * self._asks, WINDOW)

    def _send_again(
        self, req_id: int, pending: _Pending, have: int, now_ns: int
    ) -> list[Outgoing]:
        """The server answers: what is lost now has nothing to do with before."""
        pending.rto_ns = self._rto()
        pending.due_ns = now_ns + pending.rto_ns
        missing = [seq for seq in range(len(self._in)) if not have >> seq & 1]
        return self._repeat(req_id, pending, missing, now_ns)

    def _rest(self, pending: _Pending, now_ns: int) -> None:
        """The server has the request: wait as long again as it has taken up to now."""
        if pending.asked_ns:
            trip_ns = now_ns - pending.asked_ns
            self.trip_ns = min(self.trip_ns or trip_ns, trip_ns)
            pending.asked_ns = 0
        rest = min(MOST_REST_NS, now_ns - pending.sent_ns)
        pending.due_ns = now_ns + max(pending.rto_ns, rest)

    # ---- time

    def tick(self, now_ns: int) -> list[Outgoing]:
        """What to send because nothing came: questions, which say what is here of the answers."""
        found: list[Outgoing] = []
        refused = 0
        for req_id, pending in self.pending.items():
            refused += pending.refused
            if pending.due_ns > now_ns or (pending.refused and refused > self._asks):
                continue
            pending.asked_ns = pending.asked_ns or now_ns
            have = pending.received.to_bytes(-(-len(self._out) // 8), "little")
            found.append(self._control(MessageType.SACK, req_id, _ACK_REQ, have))
            pending.rto_ns = min(MOST_RTO_NS, 2 * pending.rto_ns)
            pending.due_ns = now_ns + pending.rto_ns
        return found

    def overdue(self, now_ns: int) -> list[int]:
        """Refused requests whose deadlines have passed, longer ago than what was said takes."""
        ends_ns = now_ns - self._first_rto()
        return [i for i, p in self.pending.items() if p.refused and 0 < p.deadline_ns < ends_ns]

    def _repeat(
        self, req_id: int, pending: _Pending, seqs: list[int], now_ns: int
    ) -> list[Outgoing]:
        pending.again = True
        self.lost += len(seqs)
        return [self._request(req_id, pending, seq, _RETRANS, now_ns) for seq in seqs]

    # ---- datagrams

    def _request(
        self, req_id: int, pending: _Pending, seq: int, flags: int, now_ns: int
    ) -> Outgoing:
        segment = self._in[seq]
        last = _LAST if seq == len(self._in) - 1 else 0
        left_us = max(1, (pending.deadline_ns - now_ns) // 1000) if pending.deadline_ns else 0
        header = Header(
            type=_REQ,
            flags=pending.flags | flags | last | self.protect,
            priority=pending.priority,
            req_id=req_id,
            func_id=self.func_id,
            seq=seq,
            count=len(self._in),
            length=segment.length,
            total=self.inputs.sizes[segment.tensor],
            offset=segment.offset,
            session=self.session,
            deadline_us=min(left_us, _LOW),
            credit=self._below & _LOW,
            tensor=segment.tensor,
            pkt_no=self._next_pkt_no(),
        )
        return Outgoing(header.pack(self.key), req_id, segment)

    def _control(
        self, kind: MessageType, req_id: int, flags: int = 0, payload: bytes = b""
    ) -> Outgoing:
        header = Header(
            type=kind,
            flags=flags,
            req_id=req_id,
            func_id=self.func_id,
            length=len(payload),
            session=self.session,
            credit=self._below & _LOW,
            pkt_no=self._next_pkt_no(),
        )
        return Outgoing(header.pack(self.key), payload=payload)

    @property
    def pkt_no(self) -> int:
        """Of the last datagram that was sent."""
        return self._pkt_no

    def _next_pkt_no(self) -> int:
        self._pkt_no += 1
        return self._pkt_no & _LOW

    # ---- ends and times

    def _end(self, req_id: int) -> None:
        del self.pending[req_id]
        self._done.add(req_id)
        while self._below in self._done:
            self._done.remove(self._below)
            self._below += 1

    def _measure(self, rtt_ns: int) -> None:
        """As RFC 6298 smooths round trips."""
        if self.srtt_ns == 0:
            self.srtt_ns, self.rttvar_ns = float(rtt_ns), rtt_ns / 2
        else:
            self.rttvar_ns += (abs(self.srtt_ns - rtt_ns) - self.rttvar_ns) / 4
            self.srtt_ns += (rtt_ns - self.srtt_ns) / 8

    def _rto(self) -> int:
        if self.stream:
            return STREAM_RTO_NS
        if self.srtt_ns == 0:
            return self._first_rto()
        rto = max(LEAST_RTO_NS, int(self.srtt_ns + 4 * self.rttvar_ns))
        return min(MOST_RTO_NS, max(MOST_PATIENCE_NS, 3 * self.trip_ns), rto)

    def _first_rto(self) -> int:
        """While it is not known how long answers take."""
        return min(MOST_RTO_NS, max(FIRST_RTO_NS, 3 * self.trip_ns))
