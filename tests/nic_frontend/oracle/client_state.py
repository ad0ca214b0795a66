"""The state of a client's session, what it sends and what it says to its shell. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shunter.nic_frontend.wire.header import Header
from shunter.nic_frontend.wire.keys import Keys
from shunter.nic_frontend.wire.layout import Flags, MessageType
from shunter.nic_frontend.wire.segments import Segment, SegmentPlan

FIRST_RTO_NS = 20_000_000
LEAST_RTO_NS = 2_000_000
MOST_RTO_NS = 1_000_000_000
MOST_PATIENCE_NS = 100_000_000
"""A slow model is asked about sooner than its answers take: to ask costs two headers, and something
may be lost."""
STREAM_RTO_NS = 1_000_000_000
"""Nothing is lost on a stream, but the server may end a session that says nothing."""
_LOW = 0xFFFFFFFF
# Plain numbers: arithmetic of enum members is slow, and this is done for every datagram.
REQ, RESP, SACK, CREDIT, ERROR = (
    int(getattr(MessageType, name)) for name in ("REQ", "RESP", "SACK", "CREDIT", "ERROR")
)
LAST, RETRANS, ACK_REQ, IDEMPOTENT = (
    int(f) for f in (Flags.LAST, Flags.RETRANS, Flags.ACK_REQ, Flags.IDEMPOTENT)
)


class Guard(Protocol):
    """:class:`oracle.aead.Guard`."""

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
class Pending:
    """A request that has no answer yet."""

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
class SessionState:
    """Its numbers, its requests, and how long its answers take."""

    session: int
    func_id: int
    keys: Keys | None
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
    pending: dict[int, Pending] = field(default_factory=dict)
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
        """Look up the places of all segments, and the keys, once."""
        self._tag_key = self.keys and self.keys.tag_to_server
        self._heard_key = self.keys and self.keys.tag_to_client
        self._in = [self.inputs.place(seq) for seq in range(self.inputs.count)]
        self._out = [self.outputs.place(seq) for seq in range(self.outputs.count)]
        self._all = (1 << len(self._out)) - 1

    # ---- datagrams

    def _request(
        self, req_id: int, pending: Pending, seq: int, flags: int, now_ns: int
    ) -> Outgoing:
        segment = self._in[seq]
        last = LAST if seq == len(self._in) - 1 else 0
        left_us = max(1, (pending.deadline_ns - now_ns) // 1000) if pending.deadline_ns else 0
        header = Header(
            type=REQ,
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
        return Outgoing(header.pack(self._tag_key), req_id, segment)

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
        return Outgoing(header.pack(self._tag_key), payload=payload)

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
