"""What the front end does with a datagram: bytes and the time in, actions out. Pure.

This is the reference; the files of ``c/core`` are its twin, and the same tests and the same
mutated datagrams go through both. Everything that is rare stays out of it: HELLO is handed up
(:mod:`shunter.nic_frontend.wire.hello`), and the shell adds and removes sessions and functions.

Nothing here touches a payload. ``Place`` says where the bytes of a datagram belong, and it is said
only when header, session, window and the registered sizes all agree, so no header can write
outside of its entry. A payload may come later than its header (on a stream), or turn out to be
wrong (with a CRC, or encrypted): the segment counts when :meth:`Core.accept` is told that it is
there and right, so nobody works on, or looks at, what is not.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from oracle.answers import Answers
from oracle.credit import Function
from oracle.entries import EntryRing
from oracle.holding import Hold, Holds, Line
from oracle.series import Part, Series, SeriesRules, Unwanted
from oracle.sessions import Call, CallState, Session, Turn
from oracle.silence import IDLE_NS, Kind, Silence
from shunter.batching.page.slices import SliceSet
from shunter.nic_frontend.server.data_path import MOST_SESSIONS
from shunter.nic_frontend.server.model_policy import Defaults, Runs
from shunter.nic_frontend.wire.header import (
    PROTECTIONS,
    Header,
    WrongHeader,
    behind,
    check_tag,
    nearest,
    parse,
    unpack,
)
from shunter.nic_frontend.wire.layout import (
    HEADER_BYTES,
    OF_CLIENT,
    Flags,
    MessageType,
    WireStatus,
)
from shunter.nic_frontend.wire.segments import SegmentPlan, shared_places

GAP_NS = 3_000_000
"""A segment that is missing for so long is asked for."""
RECEIVE_NS = 2_000_000_000
"""A request of which nothing new has come for so long is forgotten; on a stream when nothing comes
for IDLE_NS."""
SEGMENT_NS = 20_000_000
"""While sessions wait for room, all of a request must be here RECEIVE_NS, and so much for each of
its segments, after the first of them."""
REST_NS = 30_000_000_000
"""An answer is kept for so long."""
KEEP_NS = 2_000_000_000
"""The same while sessions wait for room."""
SPARE_NS = 1_000_000_000
"""The same if its own session is as long silent, too: who lacks an answer asks."""
UNKNOWN_NS, MOST_UNKNOWN = 100_000_000, 256
"""So many clients are told in such a time that there is no session of theirs."""
STALL_NS = 10_000_000
"""A strict request of which nothing new has come for so long holds no best-effort work any more
until it is complete."""
SLOWEST_NS, LONGEST_NS = 160, 2_000_000_000
"""Nor does one that has taken longer than STALL_NS and so much for each byte (50 Mbit/s), or longer
than LONGEST_NS. A session whose request came in parts and not to its end, or so slowly, or that has
not sent any yet, holds nothing with requests in parts before one has come whole."""
MOST_TRIES = 2
_LOW = 0xFFFFFFFF
_ASKING = frozenset({MessageType.REQ, MessageType.ACK, MessageType.QUERY})


class NoRoomError(OSError):
    """There are too many sessions, and none gives way to a new one."""

    def __init__(self) -> None:
        """As the C core says it."""
        super().__init__(errno.ENOSPC, "there are too many sessions")


@dataclass(frozen=True)
class Place:
    """The datagram's payload belongs here: tell :meth:`Core.accept`. ``tensor`` is an input."""

    entry: int
    tensor: int
    offset: int
    length: int
    number: int = 0
    """All bits of the datagram's number if the session protects its payloads."""
    region: int = 0
    """Not 0: all tensors of the request lie in this one, from the offset on."""


@dataclass(frozen=True)
class Ready:
    """All of a request is here: the entry can run."""

    func_id: int
    entry: int
    priority: int
    deadline_ns: int
    again: bool = False
    """It was given to a worker that died."""
    returned: bool = False
    """It was given to a worker that did not begin it."""
    rows: int = 1
    bytes: int = 0
    """Of a request of a packed function."""


@dataclass(frozen=True)
class Withdraw:
    """The entry must not run any more."""

    func_id: int
    entry: int


@dataclass(frozen=True)
class Send:
    """A datagram to a peer: the header, then either bytes or a part of an output."""

    session: int
    peer: bytes
    header: bytes
    payload: bytes = b""
    entry: int = -1
    tensor: int = 0
    offset: int = 0
    number: int = 0
    """All bits of the datagram's number if its payload is to be protected."""


@dataclass(frozen=True)
class Hello:
    """A HELLO came."""


@dataclass(frozen=True)
class Drop:
    """The datagram is of no use; ``reason`` is a counter."""

    reason: str


@dataclass(frozen=True)
class Whom:
    """Whom a worker answers."""

    req_id: int
    session: int
    credit: int
    pkt_no: int
    """Of the first datagram; one for each segment is reserved."""
    segment: int
    priority: int
    direct: bool
    """The worker sends the answer itself."""
    idempotent: bool
    """It may run twice."""
    asks: bool
    """The answer asks to be acknowledged at once: others wait for its entry."""
    key: bytes | None
    peer: bytes
    direct_bytes: int
    """A longer answer it does not send itself."""


Action = Place | Ready | Withdraw | Send | Hello | Drop | Part | Unwanted


class Core(SeriesRules):
    """All sessions and functions of a front end."""

    def __init__(self) -> None:
        """Nothing is registered."""
        self.functions: dict[int, Function] = {}
        self.sessions: dict[int, Session] = {}
        self.holds = Holds()
        self._silence = Silence(MOST_SESSIONS)
        self.ended_streams = 0
        """Sessions on streams that have ended so far."""
        self._begun: list[Action] = []
        self._unknown_ns = self._unknown = 0
        """How many have been told since when that there is no session of theirs."""

    def add_function(
        self,
        func_id: int,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        entries: int,
        burst: int | None = None,
    ) -> Function:
        """Register a function; ``burst`` is at most ``entries``."""
        burst = min(burst or entries, entries)
        self.functions[func_id] = Function(func_id, inputs, outputs, EntryRing(entries), burst)
        self.holds.of[func_id] = Hold()
        return self.functions[func_id]

    def remove_function(self, func_id: int) -> None:
        """It has no sessions."""
        del self.functions[func_id], self.holds.of[func_id]

    def set_defaults(self, func_id: int, defaults: Defaults) -> None:
        """From now on; those of a new function are the class 0 and no deadline."""
        self.functions[func_id].defaults = defaults

    def set_runs(self, func_id: int, runs: Runs) -> None:
        """The function is packed; while it has sessions ``rows`` may become others."""
        function = self.functions[func_id]
        function.runs = runs
        if runs.streamed and function.series is None:
            function.series = {}

    def set_hold(self, func_id: int, slot: int, slices: SliceSet, now_ns: int) -> None:
        """Where the strict requests of a function run from now on; ``slices`` 0: nowhere."""
        self.holds.place(func_id, slot, slices, now_ns)

    def hold_at(self, line: Line | None, now_ns: int) -> None:
        """Say on this holder's line what strict requests hold, None: nowhere."""
        self.holds.write_to(line, now_ns)

    # ---- sessions

    def limit(self, sessions: int, streams: int) -> None:
        """So many at once, and so many on streams among them."""
        self._silence.most = {Kind.SESSION: sessions, Kind.STREAM: streams}

    def add_session(self, session: Session, now_ns: int) -> list[Action]:
        """A client has said hello; its function is registered.

        Raises ValueError for too many segments, NoRoomError when there are too many sessions and
        none gives way; the actions are of the one that does.
        """
        function = self.functions[session.func_id]
        _inputs(function, session)
        function.plan(function.outputs, session.segment)
        actions: list[Action] = []
        for kind in self._silence.scarce(session):
            other = self._silence.who_gives_way(session, kind, now_ns)
            if other is None:
                raise NoRoomError
            actions += self.remove_session(other.id, now_ns)
        function.enter(session)
        self._silence.add(session, function, now_ns)
        function.allow(session)
        self._answers(session).open(now_ns)
        self.sessions[session.id] = session
        return actions

    def remove_session(self, session_id: int, now_ns: int) -> list[Action]:
        """Forget a client and what it asked for."""
        session = self.sessions[session_id]
        actions = self._remove(session, now_ns)
        return actions + self._offer(self.functions[session.func_id], now_ns)

    def _remove(self, session: Session, now_ns: int) -> list[Action]:
        """The same, and what it had is not offered to others yet."""
        function = self.functions[session.func_id]
        actions = [a for call in session.calls for a in self._forget(session, call, now_ns)]
        actions += self._leave_series(session, now_ns)
        function.leave(session)
        self._silence.remove(session, function)
        function.exit(session)
        session.closing = True
        self.ended_streams += session.stream
        self._take_out(session)
        return actions

    def _take_out(self, session: Session) -> None:
        """Remove a closing session when the last of what it asked for has run."""
        if session.closing and session.forgotten == 0:
            del self.sessions[session.id]
            self.functions[session.func_id].sessions -= 1

    def remove_key(self, key: int, now_ns: int) -> list[Action]:
        """Forget all clients that have opened their sessions with this key."""
        found = [each.id for each in self._by_place() if each.key == key and not each.closing]
        return [a for each in found for a in self.remove_session(each, now_ns)]

    def _by_place(self) -> list[Session]:
        return sorted(self.sessions.values(), key=lambda session: session.id & 0xFFFF)

    def is_open(self, session_id: int) -> bool:
        """Whether there is such a session."""
        session = self.sessions.get(session_id)
        return session is not None and not session.closing

    def is_pressed(self) -> bool:
        """Whether requests are here in parts, or sessions wait for room, or answers for time."""
        sends = any(self._answers(s).waits for s in self.sessions.values() if not s.closing)
        functions = self.functions.values()
        return sends or any(f.receiving or f.waiting or f.promised for f in functions)

    def load(self, func_id: int) -> tuple[int, int]:
        """Open sessions of a function, and requests that they may have on their way together."""
        function = self.functions[func_id]
        return function.open, function.credit

    def _offer(self, function: Function, now_ns: int) -> list[Action]:
        """Tell those who have waited longest of room that there is."""
        actions = self.feed_series(function)
        return actions + [self._credit(session, n) for session, n in function.offer(now_ns)]

    # ---- a datagram

    def receive(
        self, peer: bytes, datagram: bytes, now_ns: int, length: int | None = None
    ) -> list[Action]:
        """What to do with a datagram of ``length`` bytes.

        Only the header is looked at, and the payload of a QUERY; the rest need not be given.
        """
        try:
            header = parse(datagram, length)
            if header.type == MessageType.HELLO:
                return [Hello()]
            if header.type not in OF_CLIENT:
                return [Drop("direction")]
            if not self.is_open(header.session):
                return [Drop("session"), *self._unknown_session(peer, header, now_ns)]
            session = self.sessions[header.session]
            if reason := self._wrong_sender(session, peer, header, datagram):
                return [Drop(reason)]
        except WrongHeader as wrong:
            return [Drop(wrong.reason)]
        self._silence.heard(session, self.functions[session.func_id], now_ns)
        if header.type == MessageType.CANCEL:
            return self._cancel(session, header, now_ns)
        done = session.done
        actions = self._acknowledged(session, header, now_ns)
        if header.type == MessageType.REQ:
            return actions + self._request(session, header, now_ns)
        if header.type == MessageType.QUERY:
            payload = datagram[HEADER_BYTES : HEADER_BYTES + header.length]
            return actions + self._asked(session, header, payload, now_ns)
        if header.flags & Flags.LAST and not session.stream:
            return actions + self.remove_session(session.id, now_ns)
        if header.flags & Flags.ACK_REQ:
            actions += self._ask(session, is_done=session.done > done)
        return actions

    def _ask(self, session: Session, *, is_done: bool) -> list[Action]:
        """It hears at once what it may send; or later, when it may, if it has just said that it is
        done."""
        if session.grant == session.done:
            self.functions[session.func_id].wait(session, 0)
            if is_done and session.grant == session.done:
                return []
        return [self._credit(session, 0)]

    def _unknown_session(self, peer: bytes, header: Header, now_ns: int) -> list[Action]:
        """Say so, as long as few ask, and with no more bytes than came: its client may open
        another."""
        if now_ns - self._unknown_ns >= UNKNOWN_NS:
            self._unknown_ns, self._unknown = now_ns, 0
        is_farewell = header.type == MessageType.ACK and header.flags & Flags.LAST
        asks = header.type in _ASKING and not is_farewell
        is_stream = not any(peer[:2])
        if not asks or is_stream or self._unknown == MOST_UNKNOWN:
            return []
        self._unknown += 1
        answer = Header(
            type=MessageType.ERROR,
            req_id=header.req_id,
            session=header.session,
            status=WireStatus.UNKNOWN_SESSION,
        )
        return [Send(header.session, peer, answer.pack())]

    def _wrong_sender(
        self, session: Session, peer: bytes, header: Header, datagram: bytes
    ) -> str:
        """Why a datagram is not of this session's client, or is not new; empty when it is."""
        if session.peer != peer:
            return "peer"
        check_tag(header, datagram, session.keys and session.keys.tag_to_server)
        protect = session.protect if header.type == MessageType.REQ else 0
        has_parts = self.functions[session.func_id].series is not None
        may_ask = has_parts and header.type == MessageType.REQ
        if header.flags & PROTECTIONS != protect or (header.flags & Flags.NEXT and not may_ask):
            return "flags"
        is_numbered = session.protect or not session.stream
        if is_numbered and not session.replay.is_new(_number(session, header)):
            return "replay"
        return ""

    def _acknowledged(self, session: Session, header: Header, now_ns: int) -> list[Action]:
        """Free what the client says is done: everything below its credit."""
        upto = min(nearest(header.credit, session.done), session.grant + 1) - 1
        function = self.functions[session.func_id]
        actions = []
        while session.done < upto:
            session.done += 1
            function.credit -= 1
            call = session.call(session.done)
            if call.req_id == session.done:
                self._answers(session).came(call, now_ns)
                actions += self._forget(session, call, now_ns)
        session.answered = max(session.answered, session.done)
        actions += self._offer(function, now_ns)  # before this session takes what it gave
        function.allow(session)
        return actions + self._go(session, now_ns)

    def _request(self, session: Session, header: Header, now_ns: int) -> list[Action]:
        if header.func_id != session.func_id:
            return [Drop("func_id")]
        if header.req_id <= session.done:
            return [Drop("old")]
        if not session.may_come(header.req_id):
            return self._refuse(session, header, "credit")
        function = self.functions[session.func_id]
        call = session.call(header.req_id)
        session.asked = max(session.asked, header.req_id)
        if call.state is CallState.FORGOTTEN and call.req_id != header.req_id:
            return self._refuse(session, header, "credit")
        if call.req_id != header.req_id or call.state is CallState.FREE:
            return self._first(session, function, call, header, now_ns)
        if call.state is CallState.RECEIVING:
            return self._segment(session, function, call, header, now_ns)
        return [Drop("duplicate"), *self._again(session, call, header)]

    def _refuse(self, session: Session, header: Header, reason: str) -> list[Action]:
        """Not now: one answer to the last segment, from the header alone."""
        if not header.flags & (Flags.LAST | Flags.ACK_REQ):
            return [Drop(reason)]
        if reason == "full":
            self.functions[session.func_id].wait(session, header.req_id)
        return [
            Drop(reason),
            self._error(session, header.req_id, WireStatus.RETRY_LATER),
        ]

    def _first(
        self, session: Session, function: Function, call: Call, header: Header, now_ns: int
    ) -> list[Action]:
        """The first segment that comes of a request."""
        if header.flags & Flags.NEXT:
            return self._series_next(session, call, header, now_ns)
        if not self._fits(session, function, header):
            return self._wrong(session, call, header, now_ns)
        entry = function.take(session, now_ns)
        if entry is None and session.series:  # it would hold the credit by which the parts go
            return self._at_once(session, call, header, WireStatus.WOULD_BE_LATE, now_ns)
        if entry is None:
            return self._refuse(session, header, "full")
        call.req_id, call.entry, call.received = header.req_id, entry, 0
        call.flags, call.tries, call.status = header.flags, 0, 0
        call.rows, call.bytes = (header.status, header.total) if function.runs else (1, 0)
        call.stalled = not session.is_proven
        call.begun_ns = call.arrived_ns = now_ns
        strict = session.may_be_strict
        call.priority, call.deadline_ns = terms(function.defaults, header, now_ns, strict=strict)
        function.owners[entry] = session.id, call.req_id
        self._become(function, call, CallState.RECEIVING, now_ns)
        return self._segment(session, function, call, header, now_ns)

    def _fits(self, session: Session, function: Function, header: Header) -> bool:
        """Whether the header says of its segment what the registration says."""
        total = 0
        if runs := function.runs:
            total = header.total
            is_run = runs.least_request <= total <= function.inputs[0]
            if not is_run or not 1 <= header.status <= runs.rows:
                return False
        plan = _request(function, session, total)
        if header.count != plan.count or header.seq >= plan.count:
            return False
        segment = plan.place(header.seq)
        total = total if function.runs else plan.sizes[segment.tensor]
        said = header.tensor, header.length, header.total
        if said != (segment.tensor, segment.length, total):
            return False
        if session.region:
            return header.offset <= session.region_bytes - shared_places(function.inputs)[1]
        return header.offset == segment.offset

    def _wrong(
        self, session: Session, call: Call, header: Header, now_ns: int
    ) -> list[Action]:
        """Answer a request that cannot be right, once."""
        answer = self._at_once(session, call, header, WireStatus.BAD_REQUEST, now_ns)
        return [Drop("sizes"), *answer]

    def _at_once(
        self, session: Session, call: Call, header: Header, status: int, now_ns: int
    ) -> list[Action]:
        """A status is its answer."""
        call.req_id, call.entry, call.status = header.req_id, -1, status
        self._become(self.functions[session.func_id], call, CallState.FAILED, now_ns)
        return [self._error(session, header.req_id, status)]

    def _segment(
        self, session: Session, function: Function, call: Call, header: Header, now_ns: int
    ) -> list[Action]:
        said = header.status, header.total
        is_of_it = not function.runs or said == (call.rows, call.bytes)
        if not self._fits(session, function, header) or not is_of_it:
            return [Drop("sizes")]
        bit = 1 << header.seq
        if call.received & bit:
            return [Drop("duplicate"), *self._again(session, call, header)]
        number = _number(session, header) if session.protect else 0
        place = call.entry, header.tensor, header.offset, header.length
        return [Place(*place, number, session.region)]

    def accept(self, datagram: bytes, now_ns: int) -> list[Action]:
        """The payload of a Place is there, and right.

        ``datagram`` begins with its header. Nothing happens when it is not missing any more.
        """
        header = unpack(datagram)
        session = self.sessions.get(header.session)
        if session is None or not session.awaits(header.req_id, header.seq):
            return []
        call, function = session.call(header.req_id), self.functions[session.func_id]
        plan = _request(function, session, call.bytes)
        if function.runs and (header.status, header.total) != (call.rows, call.bytes):
            return []
        if header.seq >= plan.count:
            return []
        call.received |= 1 << header.seq
        call.arrived_ns = call.changed_ns = now_ns
        actions: list[Action] = []
        is_last = session.stream and header.flags & Flags.LAST  # the others were refused
        if call.received == (1 << plan.count) - 1:
            session.is_proven = True
            self._become(function, call, CallState.RX_COMPLETE, now_ns)
            if function.series is not None:
                return self._begin_series(session, call, now_ns)
            actions = [self._ready(function, call)]
            is_last = False
        if is_last or header.flags & Flags.ACK_REQ:
            actions.append(self._received(session, call))
        return actions

    def _ready(
        self, function: Function, call: Call, *, again: bool = False, returned: bool = False
    ) -> Ready:
        terms = call.entry, call.priority, call.deadline_ns
        return Ready(function.id, *terms, again, returned, call.rows, call.bytes)

    def _again(self, session: Session, call: Call, header: Header) -> list[Action]:
        """Tell a client that asks how its request stands."""
        if not header.flags & Flags.ACK_REQ:
            return []
        if call.state is CallState.TX_COMPLETE:  # of the answer its client asks by SACK
            return [self._control(session, MessageType.SACK, call.req_id, call.state)]
        if call.state is CallState.FAILED:
            return [self._error(session, call.req_id, call.status)]
        return [self._received(session, call)]

    def _asked(
        self, session: Session, header: Header, payload: bytes, now_ns: int
    ) -> list[Action]:
        """Send the segments of an answer again that a client lacks: bits that are 0.

        A client that asks is told how its request stands when there is no answer yet.
        """
        call = session.call(header.req_id)
        is_known = call.req_id == header.req_id and call.state is not CallState.FREE
        if is_known and call.state is CallState.TX_COMPLETE and not session.stream:
            question = bool(header.flags & Flags.ACK_REQ)
            have = int.from_bytes(payload, "little")
            self._answers(session).heard(call, have, now_ns, question=question)
            if now_ns - call.arrived_ns < IDLE_NS:
                self.functions[session.func_id].touch(call, now_ns)
            return self._go(session, now_ns)
        if not header.flags & Flags.ACK_REQ or header.req_id <= session.done:
            return [Drop("sack")]
        if not is_known:
            return self._not_begun(session, call, header.req_id)
        if call.state is CallState.FAILED:
            return [self._error(session, call.req_id, call.status)]
        return [self._received(session, call)]

    def _not_begun(self, session: Session, call: Call, req_id: int) -> list[Action]:
        """Nothing has come of a request: whether it is worth while to send it again."""
        function = self.functions[session.func_id]
        if not session.may_come(req_id) or call.state is CallState.FORGOTTEN:
            reason = "credit"
        elif not function.has_room(session):
            reason = "full"
            function.wait(session, req_id)
        else:
            return [self._control(session, MessageType.SACK, req_id, CallState.RECEIVING)]
        return [Drop(reason), self._error(session, req_id, WireStatus.RETRY_LATER)]

    def _cancel(self, session: Session, header: Header, now_ns: int) -> list[Action]:
        """The client does not want it any more; it gets no answer to that."""
        function = self.functions[session.func_id]
        ended = self._cancel_series(session, header.req_id, now_ns)
        if ended is not None:
            return ended
        call = session.call(header.req_id)
        if call.req_id != header.req_id or call.state not in (
            CallState.RECEIVING,
            CallState.RX_COMPLETE,
        ):
            dropped = Drop("cancel")
            if session.turn is Turn.NONE or session.wanted != (header.req_id or -1):
                return [dropped]
            function.leave(session)
            return [dropped, *self._offer(function, now_ns)]
        actions = self._withdrawn(function, call.entry) if call.entry >= 0 else []
        session.is_proven &= call.state is not CallState.RECEIVING
        function.release(call)
        call.status = WireStatus.CANCELLED
        self._become(function, call, CallState.FAILED, now_ns)
        return actions + self._offer(function, now_ns)

    # ---- workers

    def running(self, func_id: int, entry: int, now_ns: int) -> Whom:
        """A worker has been given the entry; whom it answers."""
        session, call = self._owner(func_id, entry)
        function = self.functions[func_id]
        self._become(function, call, CallState.RUNNING, now_ns)
        call.tries += 1
        if entry in (function.series or {}):
            self._begun += self._give(function, function.series[entry])
        may_be = function.series is None
        call.direct = may_be and self._answers(session).is_direct(now_ns)
        session.direct += call.direct
        if call.direct:
            function.allow_next(session)
        segments = self._answers(session).direct_segments
        return Whom(
            call.req_id,
            session.id,
            session.grant & _LOW,
            session.next_pkt_no(segments) & _LOW,
            session.segment,
            call.priority,
            call.direct,
            bool(call.flags & Flags.IDEMPOTENT),
            bool(function.waiting),
            session.keys.tag_to_client if session.keys and call.direct else None,
            session.peer,
            segments * session.segment,
        )

    def finished(
        self, func_id: int, entry: int, status: int, now_ns: int, *, sent: bool, size: int = 0
    ) -> list[Action]:
        """A worker has answered; ``sent``: it has sent the answer itself. ``size``: bytes of the
        answer, where the function is packed."""
        session, call = self._back(func_id, entry)
        function = self.functions[func_id]
        if series := self._series_at(func_id, entry):
            end = WireStatus.END if status == WireStatus.OK else status
            return self._series_ends(session, series, end, now_ns)
        if call.state is CallState.FORGOTTEN:
            return self._end_forgotten(session, call, now_ns)
        least = function.runs.least_answer if function.runs else 0
        if status == WireStatus.OK and least and not least <= size <= function.outputs[0]:
            status = WireStatus.HANDLER_FAILED
        if status == WireStatus.OK:
            call.bytes = size
            self._become(function, call, CallState.TX_COMPLETE, now_ns)
            call.arrived_ns = now_ns
            if sent:
                self._answers(session).was_sent(call, now_ns)
                return []
            function.allow_next(session)
            return self._answer(session, call, now_ns)
        return self._fail(session, call, status, now_ns)

    def worker_died(self, func_id: int, entry: int, now_ns: int) -> list[Action]:
        """Its worker died: try again what may run twice, once; answer the rest."""
        session, call = self._back(func_id, entry)
        if series := self._series_at(func_id, entry):  # of its parts some may have been seen
            return self._series_ends(session, series, WireStatus.WORKER_DIED, now_ns)
        if call.state is CallState.FORGOTTEN:
            return self._end_forgotten(session, call, now_ns)
        if call.flags & Flags.IDEMPOTENT and call.tries < MOST_TRIES:
            function = self.functions[func_id]
            self._become(function, call, CallState.RX_COMPLETE, now_ns)
            return [self._ready(function, call, again=True)]
        return self._fail(session, call, WireStatus.WORKER_DIED, now_ns)

    def returned(self, func_id: int, entry: int, now_ns: int) -> list[Action]:
        """Its worker had not begun it and does not have it any more: it runs elsewhere."""
        session, call = self._back(func_id, entry)
        series = self._series_at(func_id, entry)
        if series and call.state is CallState.FORGOTTEN:
            return self._series_ends(session, series, WireStatus.CANCELLED, now_ns)
        if call.state is CallState.FORGOTTEN:
            return self._end_forgotten(session, call, now_ns)
        call.tries -= 1
        function = self.functions[func_id]
        self._become(function, call, CallState.RX_COMPLETE, now_ns)
        return [self._ready(function, call, returned=True)]

    def expired(self, func_id: int, entry: int, now_ns: int) -> list[Action]:
        """Its deadline has passed before a worker got it, and it waits no more."""
        session, call = self._owner(func_id, entry)
        if series := self._series_at(func_id, entry):
            return self._series_ends(session, series, WireStatus.TOO_LATE, now_ns)
        return self._fail(session, call, WireStatus.TOO_LATE, now_ns)

    # ---- time

    def tick(self, now_ns: int) -> list[Action]:
        """What the passing of time asks for; call it every few milliseconds."""
        self.holds.beat(now_ns)
        self._silence.settle(now_ns)
        actions: list[Action] = []
        for session in self._silence.ended(now_ns):
            if session.is_waiting_by_stream:
                self._silence.heard(session, self.functions[session.func_id], now_ns)
            else:
                actions += self._remove(session, now_ns)
        for function in self.functions.values():
            actions += self._look_at_parts(function, now_ns)
            self._look_at_kept(function, now_ns)
            actions += self._look_at_series(function, now_ns)
            function.end_promises(now_ns)
            actions += self._offer(function, now_ns)
        for session in self.sessions.values():
            if not session.closing and self._answers(session).is_due(now_ns):
                actions += self._go(session, now_ns)
        return actions

    def _look_at_parts(self, function: Function, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        for entry in list(function.receiving):
            session, call = self._owner(function.id, entry)
            if self._is_late(function, session, call, now_ns):
                self._end(session, call, now_ns)
                function.wasted(session)
                continue
            self._look_at_stall(function, session, call, now_ns)
            if not session.stream and now_ns - call.changed_ns > GAP_NS:
                call.changed_ns = now_ns
                actions.append(self._received(session, call))
        return actions

    def _is_late(
        self, function: Function, session: Session, call: Call, now_ns: int
    ) -> bool:
        """Whether nothing comes of a request in parts, or, when others wait, not enough."""
        segments = _request(function, session, call.bytes).count
        if function.waiting and now_ns - call.begun_ns > RECEIVE_NS + segments * SEGMENT_NS:
            return True
        # A stream loses nothing, and may be slow.
        return now_ns - call.arrived_ns > (IDLE_NS if session.stream else RECEIVE_NS)

    def _look_at_kept(self, function: Function, now_ns: int) -> None:
        """Answers are kept for a while; not for so long when others wait for their entries."""
        for entry in list(function.kept):
            session, call = self._owner(function.id, entry)
            age_ns = now_ns - call.changed_ns
            if age_ns <= (SPARE_NS if function.waiting else REST_NS):
                return
            if age_ns <= KEEP_NS and now_ns - session.last_ns <= SPARE_NS:
                continue
            self._answers(session).over(call)
            function.release(call)
            call.status = WireStatus.LOST_ANSWER
            self._become(function, call, CallState.FAILED, now_ns)

    # ---- datagrams to the client

    def _answers(self, session: Session) -> Answers:
        return Answers(session, self.functions[session.func_id])

    def _answer(self, session: Session, call: Call, now_ns: int) -> list[Action]:
        """An answer is to be sent."""
        answers = self._answers(session)
        if session.stream:
            count = answers.plan(call).count
            return [self._part(session, call, n, asks=False) for n in range(count)]
        answers.want(call)
        return self._go(session, now_ns)

    def _go(self, session: Session, now_ns: int) -> list[Action]:
        """What goes now of a session's answers."""
        going = self._answers(session).go(now_ns)
        return [self._part(session, call, seq, asks=asks) for call, seq, asks in going]

    def _part(self, session: Session, call: Call, seq: int, *, asks: bool) -> Send:
        """A segment of an answer."""
        function = self.functions[session.func_id]
        plan = self._answers(session).plan(call)
        segment = plan.place(seq)
        number = session.next_pkt_no()
        flags = Flags.LAST if seq == plan.count - 1 else 0
        flags |= Flags.ACK_REQ if asks or (flags and function.waiting) else 0
        header = Header(
            type=MessageType.RESP,
            flags=flags | session.protect,
            req_id=call.req_id,
            func_id=function.id,
            seq=seq,
            count=plan.count,
            length=segment.length,
            total=plan.sizes[segment.tensor],
            offset=segment.offset,
            session=session.id,
            credit=session.grant & _LOW,
            status=WireStatus.OK,
            tensor=segment.tensor,
            pkt_no=number & _LOW,
        )
        return Send(
            session.id,
            session.peer,
            header.pack(_tag_key(session)),
            entry=call.entry,
            tensor=segment.tensor,
            offset=segment.offset,
            number=number if session.protect else 0,
        )

    def _control(
        self, session: Session, kind: MessageType, req_id: int, status: int, payload: bytes = b""
    ) -> Send:
        header = Header(
            type=kind,
            req_id=req_id,
            func_id=session.func_id,
            length=len(payload),
            session=session.id,
            credit=session.grant & _LOW,
            status=status,
            pkt_no=session.next_pkt_no() & _LOW,
        )
        return Send(session.id, session.peer, header.pack(_tag_key(session)), payload)

    def _credit(self, session: Session, req_id: int) -> Send:
        return self._control(session, MessageType.CREDIT, req_id, 0)

    def _error(self, session: Session, req_id: int, status: int) -> Send:
        return self._control(session, MessageType.ERROR, req_id, status)

    def _received(self, session: Session, call: Call) -> Send:
        """SACK: which segments are here."""
        function = self.functions[session.func_id]
        count = _request(function, session, call.bytes).count
        bits = call.received.to_bytes(-(-count // 8), "little")
        return self._control(session, MessageType.SACK, call.req_id, int(call.state), bits)

    def answer_bytes(self, session: Session) -> int:
        """Of all answers that a session may have at once, with their headers."""
        function = self.functions[session.func_id]
        segments = function.plan(function.outputs, session.segment).count
        around = HEADER_BYTES + behind(session.protect)
        return session.window * (sum(function.outputs) + segments * around)

    # ---- states

    def _become(
        self, function: Function, call: Call, state: CallState, now_ns: int
    ) -> None:
        """A call goes on to another state: the only place where one does."""
        held, ran = call.holds, call.state is CallState.RUNNING
        function.become(call, state, now_ns)
        if held or call.holds:
            if state is CallState.RUNNING or (ran and state is not CallState.FORGOTTEN):
                self.holds.progress(function.id, now_ns)
            self.holds.count(function.id, call.holds - held, now_ns)

    def _look_at_stall(
        self, function: Function, session: Session, call: Call, now_ns: int
    ) -> None:
        """Nobody stands still for a client that has gone, or is slow."""
        quiet_ns, whole_ns = now_ns - call.arrived_ns, now_ns - call.begun_ns
        come = call.received.bit_count() * session.segment
        most_ns = min(LONGEST_NS, STALL_NS + come * SLOWEST_NS)
        if call.holds and (quiet_ns > STALL_NS or whole_ns > most_ns):
            session.is_proven, call.stalled = False, True
            self.holds.count(function.id, -1, now_ns)

    # ---- ends

    def _owner(self, func_id: int, entry: int) -> tuple[Session, Call]:
        session_id, req_id = self.functions[func_id].owners[entry]
        session = self.sessions[session_id]
        series = self._series_at(func_id, entry)
        return session, series.call if series else session.call(req_id)

    def _series_at(self, func_id: int, entry: int) -> Series | None:
        """Whose request lies in this entry."""
        return (self.functions[func_id].series or {}).get(entry)

    def _taken(self) -> list[Action]:
        """What was said when a request began to run."""
        actions, self._begun = self._begun, []
        return actions

    @staticmethod
    def _withdrawn(function: Function, entry: int) -> list[Action]:
        return [Withdraw(function.id, entry)]

    def _back(self, func_id: int, entry: int) -> tuple[Session, Call]:
        """The same, when it does not run any more."""
        session, call = self._owner(func_id, entry)
        session.direct -= call.direct
        call.direct = False
        return session, call

    def _fail(
        self, session: Session, call: Call, status: int, now_ns: int
    ) -> list[Action]:
        function = self.functions[session.func_id]
        function.release(call)
        call.status = status
        self._become(function, call, CallState.FAILED, now_ns)
        function.allow_next(session)
        return [self._error(session, call.req_id, status), *self._offer(function, now_ns)]

    def _forget(self, session: Session, call: Call, now_ns: int) -> list[Action]:
        """The client has its answer, or wants none."""
        if call.state is CallState.FREE:
            return []
        if call.state is CallState.RUNNING:
            function = self.functions[session.func_id]
            self._become(function, call, CallState.FORGOTTEN, now_ns)
            session.forgotten += 1
            return []
        if call.state is CallState.FORGOTTEN:
            return []
        waits = call.state is CallState.RX_COMPLETE and call.entry >= 0
        entry = call.entry
        self._end(session, call, now_ns)
        return [Withdraw(session.func_id, entry)] if waits else []

    def _end(self, session: Session, call: Call, now_ns: int) -> None:
        session.is_proven &= call.state is not CallState.RECEIVING
        function = self.functions[session.func_id]
        self._answers(session).over(call)
        function.release(call)
        self._become(function, call, CallState.FREE, now_ns)

    def _end_forgotten(self, session: Session, call: Call, now_ns: int) -> list[Action]:
        """What nobody waits for has run."""
        self._end(session, call, now_ns)
        session.forgotten -= 1
        self._take_out(session)
        return self._offer(self.functions[session.func_id], now_ns)


def _inputs(function: Function, session: Session) -> SegmentPlan:
    """How the inputs of its requests come: a segment of nothing where they lie in shared memory.

    Raises ValueError for memory that is too small for a request, or of a session whose payloads
    are protected: what lies there is not.
    """
    if not session.region:
        return function.plan(function.inputs, session.segment)
    if session.region_bytes < shared_places(function.inputs)[1] or session.protect:
        raise ValueError("no request fits into the shared memory")
    return function.plan((0,), session.segment)


def _request(function: Function, session: Session, size: int) -> SegmentPlan:
    """Segments of a request; ``size``: its bytes where the function is packed."""
    if function.runs and not session.region:
        return function.plan((size,), session.segment)
    return _inputs(function, session)


def _tag_key(session: Session) -> bytes | None:
    """Of what is sent to the client."""
    return session.keys and session.keys.tag_to_client


def _number(session: Session, header: Header) -> int:
    """All bits of the number of a client's datagram."""
    return nearest(header.pkt_no, session.replay.highest)


def terms(
    defaults: Defaults, header: Header, now_ns: int, *, strict: bool
) -> tuple[int, int]:
    """Class and deadline of a request that arrives now; a deadline of 0: none.

    ``strict``: whether its session has the right.
    """
    priority = min(header.priority, 2) - 1 if header.priority else defaults.priority
    priority = priority if strict else 1
    budget = header.deadline_us * 1000 or (0 if priority else defaults.slo_ns)
    if defaults.timeout_ns:
        budget = min(budget or defaults.timeout_ns, defaults.timeout_ns)
    return priority, now_ns + budget if budget else 0
