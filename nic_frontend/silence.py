"""Who has been silent for how long, and whose place a new session takes. Pure.

When there are as many sessions as there may be, a new one takes the place of the one that has been
silent longest of those that give way: of an address that has more than the newcomer's would have
then, or, among those that rest, of an address that has more than it has now, or of its own. So an
address that takes all it can get keeps nobody out, and abandoned sessions are in nobody's way. The
same holds for sessions on streams, of which there are fewer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from enum import Enum
from itertools import chain, islice

from shunter.nic_frontend.credit import Function
from shunter.nic_frontend.sessions import Session

AWAKE_NS = 1_000_000_000
"""A session that has said nothing for so long gets no share of the credit."""
REST_NS = 5_000_000_000
"""One that has said nothing for so long gives way more easily."""
IDLE_NS = 60_000_000_000
"""A session that says nothing for so long ends."""
MOST_LOOKS = 1024
"""So many are looked at to find one that gives way."""


class Kind(Enum):
    """What there may be only so many of."""

    SESSION = 0
    STREAM = 1
    """Sessions on streams, which are sessions too."""


class Silence:
    """All open sessions in the order of their silence."""

    def __init__(self, most: int) -> None:
        """There is none. ``most``: sessions at once."""
        self.most = dict.fromkeys(Kind, most)
        self._awake: OrderedDict[int, tuple[Session, Function]] = OrderedDict()
        self._resting: OrderedDict[int, tuple[Session, Function]] = OrderedDict()
        self._count: Counter[Kind] = Counter()
        self._of: Counter[tuple[Kind, int]] = Counter()
        """The same by address."""

    def add(self, session: Session, function: Function, now_ns: int) -> None:
        """It is new."""
        for kind in _kinds(session):
            self._count[kind] += 1
            self._of[kind, session.origin] += 1
        self.heard(session, function, now_ns)

    def remove(self, session: Session, function: Function) -> None:
        """It is over."""
        if self._awake.pop(session.id, None):
            function.rests(session)
        self._resting.pop(session.id, None)
        for kind in _kinds(session):
            self._count[kind] -= 1
            self._of[kind, session.origin] -= 1
            if not self._of[kind, session.origin]:
                del self._of[kind, session.origin]

    def heard(self, session: Session, function: Function, now_ns: int) -> None:
        """It has said something."""
        session.last_ns = now_ns
        if session.id in self._awake:
            self._awake.move_to_end(session.id)
            return
        self._resting.pop(session.id, None)
        self._awake[session.id] = session, function
        function.wakes(session)

    def settle(self, now_ns: int) -> None:
        """Those who have said nothing lately rest."""
        for session, function in list(_silent(self._awake, now_ns, AWAKE_NS)):
            del self._awake[session.id]
            self._resting[session.id] = session, function
            function.rests(session)

    def ended(self, now_ns: int) -> list[Session]:
        """Those who have said nothing for too long."""
        return [session for session, _ in _silent(self._resting, now_ns, IDLE_NS)]

    def scarce(self, session: Session) -> Iterator[Kind]:
        """What there is too much of for this new session; ask again for each."""
        for kind in reversed(_kinds(session)):
            if self._count[kind] >= self.most[kind]:
                yield kind

    def who_gives_way(self, session: Session, kind: Kind, now_ns: int) -> Session | None:
        """The one whose place a new session takes."""
        mine = self._of.get((kind, session.origin), 0)
        every = chain(self._resting.values(), self._awake.values())
        for other, _ in islice(every, MOST_LOOKS):
            its, rests = self._of[kind, other.origin], now_ns - other.last_ns >= REST_NS
            is_mine = other.origin == session.origin
            if kind in _kinds(other) and (
                its > mine + 1 or (rests and (its > mine or is_mine))
            ):
                return other
        return None


def _kinds(session: Session) -> tuple[Kind, ...]:
    return (Kind.SESSION, Kind.STREAM) if session.stream else (Kind.SESSION,)


def _silent(
    ring: OrderedDict[int, tuple[Session, Function]], now_ns: int, for_ns: int
) -> Iterator[tuple[Session, Function]]:
    """The first of a ring that have said nothing for so long."""
    for session, function in ring.values():
        if now_ns - session.last_ns <= for_ns:
            return
        yield session, function
