"""Who may send, and who gets an entry. Pure.

While there is room, credit is divided among the sessions that have said something lately; those
that rest keep what they were granted, and count for nothing. The answer to a request brings credit
for the one that follows it, since that one says that the answer is there, which frees an entry.

When there is no room, sessions that have something to send wait: those whose request was refused,
and those that ask and have no credit at all. Each address has a line of them, and the lines have
their turns in a row, so that an address with many sessions gets no more than another. An entry that
becomes free is kept for the first of the next line for PROMISE_NS, or longer if it has shown that
its requests need longer, and it is told at once. For how many sessions of a line entries are kept
at once depends on what it makes of them: one more with each that is used, half as many with each
that is not. While somebody waits, answers bring no credit and ask to be acknowledged, so that
entries go from hand to hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from oracle.entries import EntryRing
from oracle.series import Series
from oracle.sessions import PROMISE_NS, Call, CallState, Session, Turn
from shunter.nic_frontend.server.model_policy import Defaults, Runs
from shunter.nic_frontend.wire.segments import SegmentPlan

MOST_PROMISE_NS = 500_000_000
"""Room is kept for no longer for a session whose requests take long to come."""
FIRST_PROMISES = 4
"""To a new address, at once."""
MOST_PLANS = 64
_ANSWERED = frozenset({CallState.TX_COMPLETE, CallState.FAILED})


@dataclass
class Line:
    """Open sessions of one address and function."""

    sessions: int = 0
    awake: int = 0
    waiting: dict[int, Session] = field(default_factory=dict)
    """Who waits for room, in order."""
    promises: int = 0
    """Of room for them."""
    most: int = FIRST_PROMISES
    """Of these at once."""


@dataclass
class Function:
    """A registered model version, its entries, and who wants them."""

    id: int
    inputs: tuple[int, ...]
    """Bytes of an entry, by tensor."""
    outputs: tuple[int, ...]
    ring: EntryRing
    burst: int
    """Requests that may be on their way from all clients together."""
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Session and request of each used entry."""
    receiving: dict[int, None] = field(default_factory=dict)
    """Entries of requests that are here in parts."""
    kept: dict[int, None] = field(default_factory=dict)
    """Entries whose answers are kept, the longest untouched first."""
    lines: dict[int, Line] = field(default_factory=dict)
    """By address."""
    waiting: dict[int, Line] = field(default_factory=dict)
    """Those with sessions that wait, and for which more room may be kept: the row."""
    promised: dict[int, Session] = field(default_factory=dict)
    """For whom room is kept, the oldest promise first."""
    sessions: int = 0
    """Also those that are closing."""
    open: int = 0
    awake: int = 0
    """Addresses of which one has said something lately."""
    credit: int = 0
    """Requests that all open sessions may have on their way together."""
    defaults: Defaults = field(default_factory=Defaults)
    runs: Runs | None = None
    """None: it is not packed."""
    series: dict[int, Series] | None = None
    """By the entry of their request; None: answers are whole."""
    lacks: bool = False
    """Some of them lack entries for places."""
    plans: dict[tuple[tuple[int, ...], int], SegmentPlan] = field(default_factory=dict)

    def plan(self, sizes: tuple[int, ...], segment: int) -> SegmentPlan:
        """Segments of these tensors; plans are kept, those of MOST_PLANS that were used last."""
        key = sizes, segment
        plan = self.plans[key] = self.plans.pop(key, None) or SegmentPlan(*key)
        if len(self.plans) > MOST_PLANS:
            del self.plans[next(iter(self.plans))]
        return plan

    # ---- sessions

    def enter(self, session: Session) -> None:
        """It is new."""
        self.sessions += 1
        self.open += 1
        self.lines.setdefault(session.origin, Line()).sessions += 1

    def exit(self, session: Session) -> None:
        """It rests, and does not wait; it is over, but for what still runs."""
        self.open -= 1
        self.credit -= session.grant - session.done
        line = self.lines[session.origin]
        line.sessions -= 1
        if not line.sessions:
            del self.lines[session.origin]

    def wakes(self, session: Session) -> None:
        """It has said something."""
        line = self.lines[session.origin]
        line.awake += 1
        self.awake += line.awake == 1

    def rests(self, session: Session) -> None:
        """It has said nothing lately."""
        line = self.lines[session.origin]
        line.awake -= 1
        self.awake -= line.awake == 0

    # ---- entries

    @property
    def room(self) -> int:
        """Entries that are not kept for somebody."""
        return max(0, self.ring.free - len(self.promised))

    def has_room(self, session: Session) -> bool:
        """Whether there is an entry for this session."""
        # What was promised may have become the place of a part.
        return (session.turn is Turn.PROMISED and self.ring.free > 0) or self.room > 0

    def take(self, session: Session, now_ns: int) -> int | None:
        """An entry, None when there is none for this session."""
        _learn_patience(session, now_ns)
        if not self.has_room(session):
            return None
        if session.turn is Turn.PROMISED:
            line = self.lines[session.origin]
            line.most = min(line.most + 1, self.ring.entries)
        self.leave(session)
        return self.ring.take()

    def release(self, call: Call) -> None:
        """Its entry is free, if it has one."""
        if call.entry >= 0:
            self.receiving.pop(call.entry, None)
            self.kept.pop(call.entry, None)
            del self.owners[call.entry]
            self.ring.give_back(call.entry)
            call.entry = -1

    def become(self, call: Call, state: CallState, now_ns: int) -> None:
        """A call goes on to another state."""
        call.become(state, now_ns)
        if call.entry >= 0:
            self.receiving.pop(call.entry, None)
            self.kept.pop(call.entry, None)
            if state is CallState.RECEIVING:
                self.receiving[call.entry] = None
            elif state is CallState.TX_COMPLETE:
                self.kept[call.entry] = None

    def touch(self, call: Call, now_ns: int) -> None:
        """A kept answer was asked for."""
        call.changed_ns = now_ns
        self.kept[call.entry] = self.kept.pop(call.entry)

    # ---- credit

    def _share(self, session: Session) -> int:
        """Requests that a session may have on their way."""
        awake = max(1, self.lines[session.origin].awake)
        return min(session.window, max(1, self.burst // max(1, self.awake) // awake))

    def _raise(self, session: Session, upto: int) -> None:
        self.credit -= session.grant
        self.credit += session.raise_grant(upto)

    def allow(self, session: Session) -> None:
        """Let it have as many requests on their way as it may now."""
        if session.series or (not self.waiting and self.room):
            self._raise(session, session.answered + self._share(session))

    def allow_next(self, session: Session) -> None:
        """It is going to hear of answers: credit for what follows them goes with these."""
        before, most = session.answered, self._share(session)
        # A client that never says what it has gets no more than this ahead.
        while session.answered < session.done + most:
            call = session.call(session.answered + 1)
            if call.req_id != session.answered + 1 or not _is_answered(call):
                break
            session.answered += 1
        if self.waiting and not session.series:
            return  # whoever waits comes first
        # Where there is no room, what follows an answer takes its entry: not more than there were.
        ahead = most if self.room or session.series else min(most, max(0, session.grant - before))
        self._raise(session, session.answered + ahead)

    # ---- the row

    def _take_turns(self, origin: int) -> None:
        """A line is in the row while somebody in it waits for whom room may be kept."""
        line = self.lines[origin]
        if line.waiting and line.promises < line.most:
            self.waiting.setdefault(origin, line)
        else:
            self.waiting.pop(origin, None)

    def wait(self, session: Session, wanted: int) -> None:
        """It waits for room: for a request that was refused, or for credit (0)."""
        if session.turn is Turn.NONE:
            session.turn, session.wanted = Turn.WAITS, wanted
            self.lines[session.origin].waiting[session.id] = session
            self._take_turns(session.origin)
        elif session.turn is Turn.WAITS and not session.wanted:
            session.wanted = wanted
        elif session.turn is Turn.PROMISED and not wanted:
            self._raise(session, session.answered + 1)

    def leave(self, session: Session) -> None:
        """It waits no more, and nothing is kept for it."""
        if session.turn is not Turn.NONE:
            line = self.lines[session.origin]
            line.promises -= session.turn is Turn.PROMISED
            session.turn = Turn.NONE
            line.waiting.pop(session.id, None)
            self.promised.pop(session.id, None)
            self._take_turns(session.origin)

    def offer(self, now_ns: int) -> Iterator[tuple[Session, int]]:
        """Who gets the room that there is, and the request that it may send again, or 0."""
        while self.waiting and self.room:
            yield self._promise(next(iter(self.waiting)), now_ns)

    def _promise(self, origin: int, now_ns: int) -> tuple[Session, int]:
        line = self.waiting.pop(origin)  # the others' turns come before its next
        session = line.waiting.pop(next(iter(line.waiting)))
        self.promised[session.id] = session
        session.turn, session.promised_ns = Turn.PROMISED, now_ns
        session.told_ns = session.told_ns or now_ns
        line.promises += 1
        self._take_turns(origin)
        wanted = session.wanted if session.wanted > session.done else 0
        if not wanted:
            self._raise(session, session.answered + 1)
        return session, wanted

    def wasted(self, session: Session) -> None:
        """Room that was kept for this session, or that it took, was of no use."""
        line = self.lines[session.origin]
        line.most = max(1, line.most // 2)
        self._take_turns(session.origin)

    def end_promises(self, now_ns: int) -> None:
        """Promises that nobody made use of are over."""
        for session in list(self.promised.values()):
            if now_ns - session.promised_ns > session.patience_ns:
                self.leave(session)
                self.wasted(session)


def _learn_patience(session: Session, now_ns: int) -> None:
    """How long its requests need when it is told of room."""
    if session.told_ns:
        twice = 2 * (now_ns - session.told_ns)
        session.patience_ns = max(PROMISE_NS, min(twice, MOST_PROMISE_NS))
        session.told_ns = 0


def _is_answered(call: Call) -> bool:
    """Whether its client has the answer, or gets it without our doing."""
    return call.state in _ANSWERED or (call.state is CallState.RUNNING and call.direct)
