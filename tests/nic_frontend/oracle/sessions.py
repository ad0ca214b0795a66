"""Sessions: the window of requests, what was received of each, and replayed datagrams. Pure.

The requests of a session are numbered 1, 2, 3, ... A grant is the highest number that may be sent,
so credit is one number that can be told again and again; an acknowledgement is the number below
which everything is done. At most WINDOW numbers lie between the two, each with a place of its own:
that is all the memory that a session ever needs, and a request that comes twice finds its first
coming in that place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from oracle.congestion import Congestion
from shunter.nic_frontend.server.sessions import Opening
from shunter.nic_frontend.wire.keys import Keys
from shunter.nic_frontend.wire.layout import SACK_RECEIVING, WINDOW, Flags

REPLAY_BITS = 1024
"""Datagrams that may overtake one another."""
REPLAY_JUMP = 1 << 20
"""No client loses so many in a row: a number that is further ahead is an invention, which must not
make all true ones look old."""
PROMISE_NS = 50_000_000
"""A session that does not use the room that it was told of for so long has lost it."""


class CallState(IntEnum):
    """The inference monitor's states (SplitRPC section 5.3), and those around them."""

    FREE = 0
    RECEIVING = SACK_RECEIVING
    """Segments are missing. The paper's READY."""
    RX_COMPLETE = 2
    """It waits for a worker."""
    RUNNING = 3
    TX_COMPLETE = 4
    """Its answer was sent and is kept until the client has it (WORK_COMPLETE is the worker's)."""
    FAILED = 5
    """It was answered with an error."""
    FORGOTTEN = 6
    """It runs, but nobody waits for it any more."""


NEXT: dict[CallState, frozenset[CallState]] = {
    # A request for a part of an answer has nothing to receive.
    CallState.FREE: frozenset({CallState.RECEIVING, CallState.RX_COMPLETE, CallState.FAILED}),
    CallState.RECEIVING: frozenset({CallState.RX_COMPLETE, CallState.FAILED, CallState.FREE}),
    CallState.RX_COMPLETE: frozenset({CallState.RUNNING, CallState.FAILED, CallState.FREE}),
    CallState.RUNNING: frozenset(
        {CallState.RX_COMPLETE, CallState.TX_COMPLETE, CallState.FAILED, CallState.FORGOTTEN}
    ),
    CallState.TX_COMPLETE: frozenset({CallState.FREE, CallState.FAILED}),
    CallState.FAILED: frozenset({CallState.FREE}),
    CallState.FORGOTTEN: frozenset({CallState.FREE}),
}
"""What may follow each state."""


_WORK = frozenset({CallState.RX_COMPLETE, CallState.RUNNING})


class Turn(Enum):
    """Whether a session waits for room."""

    NONE = 0
    WAITS = 1
    PROMISED = 2
    """It has been told that some is kept for it."""


@dataclass
class Call:
    """One request of a session."""

    req_id: int = 0
    state: CallState = CallState.FREE
    entry: int = -1
    received: int = 0
    """Bit s: segment s is here."""
    flags: int = 0
    priority: int = 0
    begun_ns: int = 0
    """First segment that came."""
    arrived_ns: int = 0
    """Last segment that was new, or when the answer was there."""
    changed_ns: int = 0
    """Last segment, or last answer."""
    deadline_ns: int = 0
    bytes: int = 0
    """Of a packed function's request, and when it is answered of its answer."""
    rows: int = 1
    tries: int = 0
    status: int = 0
    direct: bool = False
    """While it runs: its worker sends the answer."""
    wanted: int = 0
    """Bits of segments of its answer that are to be sent."""
    next: int = 0
    """The first of which none was sent yet."""
    stalled: bool = False
    """While it is received: nothing new came for so long that it holds nothing until it is here."""

    @property
    def holds(self) -> bool:
        """Whether it is strict work, for which best effort stands still: it is coming, waits or
        runs."""
        is_coming = self.state is CallState.RECEIVING and not self.stalled
        return self.priority == 0 and (is_coming or self.state in _WORK)

    def become(self, state: CallState, now_ns: int) -> None:
        """Go on to a state that may follow."""
        assert state in NEXT[self.state], (self.state, state)
        self.state = state
        self.changed_ns = now_ns


@dataclass
class Replay:
    """Numbers of the datagrams seen lately, of which the wire has the low 32 bits."""

    highest: int = 0
    _seen: int = 0

    def is_new(self, number: int) -> bool:
        """Whether this datagram has not been seen; one that is too old counts as seen.

        It is seen from now on. Numbers begin with 1.
        """
        if number > self.highest + REPLAY_JUMP:
            return False
        if number > self.highest:
            self._seen = ((self._seen << (number - self.highest)) | 1) & ((1 << REPLAY_BITS) - 1)
            self.highest = number
            return True
        age = self.highest - number
        if number < 1 or age >= REPLAY_BITS or self._seen >> age & 1:
            return False
        self._seen |= 1 << age
        return True


def keys_of(key: bytes | None) -> Keys | None:
    """For tests: keys of a session whose client makes its tags with this one; None: with none."""
    return Keys(key, *(bytes([n]) * 16 for n in (1, 2, 3)), bytes(32)) if key else None


@dataclass
class Session(Opening):
    """A client's connection to one function."""

    done: int = 0
    """Everything up to here is done."""
    answered: int = 0
    """Everything up to here is done, or is answered with the next datagrams."""
    grant: int = 0
    forgotten: int = 0
    """Requests that run although nobody waits for them any more."""
    closing: bool = False
    """It is removed when these have run."""
    asked: int = 0
    """The latest of its requests."""
    series: int = 0
    """Its answers in parts."""
    unwanted: set[int] = field(default_factory=set)
    """Requests that were given up before they came."""
    turn: Turn = Turn.NONE
    wanted: int = 0
    """While it waits: the request that was refused, 0: only credit."""
    promised_ns: int = 0
    told_ns: int = 0
    """First promise since it has sent a request, 0: none."""
    patience_ns: int = PROMISE_NS
    """So long room is kept for it."""
    is_proven: bool = False
    """Its last request that ended while it was received has come whole."""
    path: Congestion = field(default_factory=lambda: Congestion(1, 1))
    """Of answers; a stream has its own."""
    paced_ns: int = 0
    """When more of them may be sent."""
    direct: int = 0
    """Requests that run and whose workers send the answers."""
    last_ns: int = 0
    replay: Replay = field(default_factory=Replay)
    calls: list[Call] = field(default_factory=lambda: [Call() for _ in range(WINDOW)])

    def call(self, req_id: int) -> Call:
        """The place of a request."""
        return self.calls[req_id % WINDOW]

    def may_come(self, req_id: int) -> bool:
        """Whether a request is granted, and its place is not that of another."""
        return req_id <= min(self.grant, self.done + WINDOW)

    def next_pkt_no(self, count: int = 1) -> int:
        """The first of ``count`` new numbers for datagrams to the client, all of its bits."""
        first = self.pkt_no + 1
        self.pkt_no += count
        return first

    @property
    def is_direct(self) -> bool:
        """Whether a worker sends its answers itself: there is nothing to add to their payloads."""
        return not self.stream and not self.protect

    @property
    def is_waiting_by_stream(self) -> bool:
        """Whether its client may be silent because it waits: nothing is lost on a stream."""
        return self.stream and any(
            call.state in (CallState.RX_COMPLETE, CallState.RUNNING) for call in self.calls
        )

    @property
    def guarded_by(self) -> str:
        """What a wrong payload is dropped for."""
        return "aead" if self.protect & Flags.PAYLOAD_AEAD else "crc"

    def awaits(self, req_id: int, seq: int) -> bool:
        """Whether this segment is missing of a request that is being received."""
        call = self.call(req_id)
        is_open = not self.closing and call.state is CallState.RECEIVING
        return is_open and call.req_id == req_id and not call.received >> seq & 1

    def raise_grant(self, upto: int) -> int:
        """Grant all up to this one, as far as each has a place of its own; the grant."""
        self.grant = max(self.grant, min(upto, self.done + WINDOW))
        return self.grant
