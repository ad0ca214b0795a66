"""Who has been silent for how long, and whose place a new session takes. Pure.

When there are as many sessions as there may be, a new one takes the place of another: the longest
silent one of the address that has most, if that has more than the newcomer's would have then; or
the longest silent one of its own, if it rests; or one that rests, and whose address has more. So an
address that takes all it can get keeps nobody out, and abandoned sessions are in nobody's way. The
same holds for sessions on streams, of which there are fewer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from enum import Enum
from itertools import islice

from oracle.credit import Function
from oracle.sessions import Session

AWAKE_NS = 1_000_000_000
"""A session that has said nothing for so long gets no share of the credit."""
REST_NS = 5_000_000_000
"""One that has said nothing for so long gives way more easily."""
IDLE_NS = 60_000_000_000
"""A session that says nothing for so long ends."""
MOST_LOOKS = 1024
"""Of those that rest so many are looked at to find one that gives way."""

_Ring = OrderedDict[int, tuple[Session, Function]]


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
        self._awake: dict[bool, _Ring] = {False: OrderedDict(), True: OrderedDict()}
        """By whether they are on streams; the longest silent first."""
        self._resting: dict[bool, _Ring] = {False: OrderedDict(), True: OrderedDict()}
        self._quiet: defaultdict[tuple[int, bool], _Ring] = defaultdict(OrderedDict)
        """All by address."""
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
        if self._awake[session.stream].pop(session.id, None):
            function.rests(session)
        self._resting[session.stream].pop(session.id, None)
        mine = session.origin, session.stream
        del self._quiet[mine][session.id]
        if not self._quiet[mine]:
            del self._quiet[mine]
        for kind in _kinds(session):
            self._count[kind] -= 1
            self._of[kind, session.origin] -= 1
            if not self._of[kind, session.origin]:
                del self._of[kind, session.origin]

    def heard(self, session: Session, function: Function, now_ns: int) -> None:
        """It has said something."""
        session.last_ns = now_ns
        quiet, awake = self._quiet[session.origin, session.stream], self._awake[session.stream]
        quiet[session.id] = session, function
        quiet.move_to_end(session.id)
        if session.id in awake:
            awake.move_to_end(session.id)
            return
        self._resting[session.stream].pop(session.id, None)
        awake[session.id] = session, function
        function.wakes(session)

    def settle(self, now_ns: int) -> None:
        """Those who have said nothing lately rest."""
        for ring in self._awake.values():
            for session, function in list(_silent(ring, now_ns, AWAKE_NS)):
                del ring[session.id]
                self._resting[session.stream][session.id] = session, function
                function.rests(session)

    def ended(self, now_ns: int) -> list[Session]:
        """Those who have said nothing for too long."""
        rings = self._resting.values()
        return [session for ring in rings for session, _ in _silent(ring, now_ns, IDLE_NS)]

    def scarce(self, session: Session) -> Iterator[Kind]:
        """What there is too much of for this new session; ask again for each."""
        for kind in reversed(_kinds(session)):
            if self._count[kind] >= self.most[kind]:
                yield kind

    def who_gives_way(self, session: Session, kind: Kind, now_ns: int) -> Session | None:
        """The one whose place a new session takes."""
        mine = self._of.get((kind, session.origin), 0)
        counts = ((count, -origin) for (of, origin), count in self._of.items() if of is kind)
        its, origin = max(counts, default=(0, 0))
        if its > mine + 1:
            return self._quietest(-origin, kind)
        own = self._quietest(session.origin, kind)
        if own is not None and _rests(own, now_ns):
            return own
        return self._one_that_rests(kind, mine, now_ns)

    def _quietest(self, origin: int, kind: Kind) -> Session | None:
        """The longest silent of an address."""
        rings = [self._quiet.get((origin, stream)) for stream in _streams(kind)]
        firsts = [next(iter(ring.values()))[0] for ring in rings if ring]
        return min(firsts, key=lambda session: session.last_ns, default=None)

    def _one_that_rests(self, kind: Kind, most: int, now_ns: int) -> Session | None:
        """And whose address has more than ``most``."""
        for stream in _streams(kind):
            for other, _ in islice(self._resting[stream].values(), MOST_LOOKS):
                if not _rests(other, now_ns):
                    break
                if self._of[kind, other.origin] > most:
                    return other
        return None


def _streams(kind: Kind) -> tuple[bool, ...]:
    """Where its sessions are: on streams or not."""
    return (True,) if kind is Kind.STREAM else (False, True)


def _rests(session: Session, now_ns: int) -> bool:
    return now_ns - session.last_ns >= REST_NS


def _kinds(session: Session) -> tuple[Kind, ...]:
    return (Kind.SESSION, Kind.STREAM) if session.stream else (Kind.SESSION,)


def _silent(ring: _Ring, now_ns: int, for_ns: int) -> Iterator[tuple[Session, Function]]:
    """The first of a ring that have said nothing for so long."""
    for session, function in ring.values():
        if now_ns - session.last_ns <= for_ns:
            return
        yield session, function
