"""Who may send, and who gets an entry. Pure.

While there is room, credit is divided among the sessions that have said something lately; those
that rest keep what they were granted, and count for nothing. The answer to a request brings credit
for the one that follows it, since that one says that the answer is there, which frees an entry.

When there is no room, sessions that have something to send wait in a row: those whose request was
refused, and those that ask and have no credit at all. An entry that becomes free is kept for the
first of them for PROMISE_NS, and it is told at once. While somebody waits, answers bring no credit
and ask to be acknowledged, so that entries go from hand to hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shunter.batching.segments import SegmentPlan
from shunter.nic_frontend.defaults import Defaults
from shunter.nic_frontend.entries import EntryRing
from shunter.nic_frontend.sessions import Call, CallState, Session, Turn

PROMISE_NS = 50_000_000
"""A session that does not use the room that it was told of for so long has lost it."""
_ANSWERED = frozenset({CallState.TX_COMPLETE, CallState.FAILED})


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
    waiting: dict[int, Session] = field(default_factory=dict)
    """Who waits for room, in order."""
    promised: dict[int, Session] = field(default_factory=dict)
    """For whom room is kept, the oldest promise first."""
    sessions: int = 0
    """Also those that are closing."""
    open: int = 0
    awake: int = 0
    """Sessions that have said something lately."""
    credit: int = 0
    """Requests that all open sessions may have on their way together."""
    defaults: Defaults = field(default_factory=Defaults)
    plans: dict[tuple[tuple[int, ...], int], SegmentPlan] = field(default_factory=dict)

    def plan(self, sizes: tuple[int, ...], segment: int) -> SegmentPlan:
        """Segments of these tensors; plans are kept."""
        key = sizes, segment
        if key not in self.plans:
            self.plans[key] = SegmentPlan(*key)
        return self.plans[key]

    # ---- entries

    @property
    def room(self) -> int:
        """Entries that are not kept for somebody."""
        return max(0, self.ring.free - len(self.promised))

    def has_room(self, session: Session) -> bool:
        """Whether there is an entry for this session."""
        return session.turn is Turn.PROMISED or self.room > 0

    def take(self, session: Session) -> int | None:
        """An entry, None when there is none for this session."""
        if not self.has_room(session):
            return None
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
        return min(session.window, max(1, self.burst // max(1, self.awake)))

    def _raise(self, session: Session, upto: int) -> None:
        self.credit -= session.grant
        self.credit += session.raise_grant(upto)

    def allow(self, session: Session) -> None:
        """Let it have as many requests on their way as it may now."""
        if not self.waiting and self.room:
            self._raise(session, session.answered + self._share(session))

    def allow_next(self, session: Session) -> None:
        """It is going to hear of answers: credit for what follows them goes with these."""
        before, most = session.answered, self._share(session)
        # A client that never says what it has gets no more than this ahead.
        while session.answered < session.done + most:
            call = session.call(session.answered + 1)
            if call.req_id != session.answered + 1 or not _is_answered(session, call):
                break
            session.answered += 1
        if self.waiting:
            return  # whoever waits comes first
        # Where there is no room, what follows an answer takes its entry: not more than there were.
        ahead = most if self.room else min(most, max(0, session.grant - before))
        self._raise(session, session.answered + ahead)

    # ---- the row

    def wait(self, session: Session, wanted: int) -> None:
        """It waits for room: for a request that was refused, or for credit (0)."""
        if session.turn is Turn.NONE:
            session.turn, session.wanted = Turn.WAITS, wanted
            self.waiting[session.id] = session
        elif session.turn is Turn.WAITS and not session.wanted:
            session.wanted = wanted

    def leave(self, session: Session) -> None:
        """It waits no more, and nothing is kept for it."""
        session.turn = Turn.NONE
        self.waiting.pop(session.id, None)
        self.promised.pop(session.id, None)

    def offer(self, now_ns: int) -> Iterator[tuple[Session, int]]:
        """Who gets the room that there is, and the request that it may send again, or 0."""
        while self.waiting and (self.room or self._end_promise(now_ns)):
            if self.room:
                yield self._promise(next(iter(self.waiting.values())), now_ns)

    def _promise(self, session: Session, now_ns: int) -> tuple[Session, int]:
        del self.waiting[session.id]
        self.promised[session.id] = session
        session.turn, session.promised_ns = Turn.PROMISED, now_ns
        wanted = session.wanted if session.wanted > session.done else 0
        if not wanted:
            self._raise(session, session.answered + 1)
        return session, wanted

    def _end_promise(self, now_ns: int) -> bool:
        oldest = next(iter(self.promised.values()), None)
        if oldest is None or now_ns - oldest.promised_ns <= PROMISE_NS:
            return False
        self.leave(oldest)
        return True

    def end_promises(self, now_ns: int) -> None:
        """Promises that nobody made use of are over."""
        while self._end_promise(now_ns):
            pass


def _is_answered(session: Session, call: Call) -> bool:
    """Whether its client has the answer, or gets it without our doing."""
    return call.state in _ANSWERED or (call.state is CallState.RUNNING and session.is_direct)
