"""Answers in parts: twin of ``c/series``. Pure.

A request of a streamed function begins a series when all of it is here, and is then answered that
it is under way. Each part is the answer to a request of its own, which names the series and the
part. A part that was asked for gets an entry, into which the worker writes it. How the series has
ended is the answer to the request for the part that does not come any more.

Beside what parts are asked for and are there, which is of each series, three things are of all: the
last entries are for series that have no place for a part at all; a session with a series gets
credit whoever waits, since what it asks for takes no other entry; and where its window runs short,
requests that wait for parts make way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from oracle.sessions import Call, CallState, Session
from shunter.batching.queue.layout import PARTS_AHEAD
from shunter.nic_frontend.wire.layout import WINDOW, Flags, WireStatus

if TYPE_CHECKING:
    from oracle.credit import Function
    from shunter.nic_frontend.wire.header import Header

WAITS_NS = 1_000_000
"""A request waits so long for its part before it makes way."""


@dataclass(frozen=True)
class Part:
    """An entry is the place for the next part of an entry's answer."""

    entry: int
    place: int


@dataclass(frozen=True)
class Unwanted:
    """Nobody waits for the answer of an entry that runs."""

    entry: int


Actions = list[Any]


@dataclass
class Series:
    """An answer in parts."""

    call: Call
    """The request; FAILED: it has ended."""
    session: int
    last_ns: int
    """When a part was asked for, or came."""
    askers: dict[int, int] = field(default_factory=dict)
    """Requests for parts that are not there yet, by part."""
    asked: int = 0
    """The highest part that was asked for."""
    given: int = 0
    """Parts that got places."""
    written: int = 0
    """Those that are there."""
    places: dict[int, int] = field(default_factory=dict)
    """Entries of parts, until these go."""
    sizes: dict[int, int] = field(default_factory=dict)
    status: int = 0
    """How it has ended."""
    told: bool = False
    """And somebody knows."""
    over: bool = False
    """It has, though its request runs on with its batch."""

    def is_there(self, number: int) -> bool:
        """Whether a part is there that was not sent to anybody yet."""
        return 0 < number <= self.written and number in self.places

    def may_be_asked(self, number: int) -> bool:
        """Whether it is not there, and not too far ahead."""
        return 0 < number - self.written <= WINDOW

    @property
    def is_done(self) -> bool:
        """Nothing of it is left to tell or to send."""
        return self.told and self.call.state is CallState.FAILED and not self.places


class SeriesRules:
    """What a core does with them: a part of :class:`oracle.core.Core`, whose methods it uses."""

    functions: dict[int, Function]
    sessions: dict[int, Session]

    # ---- who asks

    def find_series(self, session: Session, low: int) -> Series | None:
        """Of a request with these low bits, which its client has not given up."""
        function = self.functions[session.func_id]
        return next(
            (
                each
                for each in (function.series or {}).values()
                if each.session == session.id
                and each.call.req_id & 0xFFFFFFFF == low
                and each.call.state is not CallState.FORGOTTEN
            ),
            None,
        )

    @staticmethod
    def _asker(session: Session, series: Series, number: int) -> Call | None:
        """The request for a part, as long as its client wants an answer to it."""
        req_id = series.askers.get(number, 0)
        call = session.call(req_id)
        waits = req_id and call.req_id == req_id and call.state is CallState.RX_COMPLETE
        return call if waits else None

    def _series_next(
        self, session: Session, call: Call, header: Header, now_ns: int
    ) -> Actions:
        """A request for a part came, which its session has not seen yet."""
        series, number = self.find_series(session, header.offset), header.total
        is_right = (header.count, header.seq, header.length, header.tensor) == (1, 0, 0, 0)
        comes = series is not None and series.may_be_asked(number)
        too_far = series is not None and number > series.written and not comes
        twice = comes and self._asker(session, series, number) is not None
        if not is_right or not number or too_far or twice:
            return self._answered(session, call, header.req_id, WireStatus.BAD_REQUEST, now_ns)
        if series is None or not (comes or series.is_there(number)):
            return self._answered(session, call, header.req_id, WireStatus.LOST_ANSWER, now_ns)
        if comes and (series.over or series.call.state is CallState.FAILED):
            actions = self._answered(session, call, header.req_id, series.status, now_ns)
            series.told |= number == series.written + 1
            return actions + self._end_if_done(session, series, now_ns)
        function = self.functions[session.func_id]
        session.calls[header.req_id % WINDOW] = Call(
            header.req_id,
            flags=header.flags,
            priority=1,
            begun_ns=now_ns,
            arrived_ns=now_ns,
        )
        self._become(function, session.call(header.req_id), CallState.RX_COMPLETE, now_ns)
        series.askers[number] = header.req_id
        series.last_ns, series.asked = now_ns, max(number, series.asked)
        actions = self._send_part(session, series, number, now_ns)
        if series.call.state is CallState.FAILED:
            return actions + self._end_if_done(session, series, now_ns)
        return actions + self._give(function, series) + self._make_way(session, now_ns)

    def _answered(
        self, session: Session, call: Call, req_id: int, status: int, now_ns: int
    ) -> Actions:
        """A status is its answer, at once."""
        function = self.functions[session.func_id]
        call.req_id, call.entry, call.status = req_id, -1, status
        self._become(function, call, CallState.FAILED, now_ns)
        function.allow_next(session)
        return [self._error(session, req_id, status)]

    # ---- parts

    def _give(self, function: Function, series: Series) -> Actions:
        """Places for parts that were asked for go to the worker."""
        actions: Actions = []
        while (
            series.call.state is CallState.RUNNING
            and not series.over
            and series.given < series.asked
            and series.given + 1 - PARTS_AHEAD not in series.places
        ):
            kept = len(function.series) if series.places else 0
            if function.ring.free <= kept:
                function.lacks = True
                break
            series.given += 1
            place = series.places[series.given] = function.ring.take()
            function.owners[place] = series.session, 0
            actions.append(Part(series.call.entry, place))
        return actions

    def _give_back(self, function: Function, series: Series, number: int) -> None:
        place = series.places.pop(number)
        del function.owners[place]
        function.ring.give_back(place)

    def feed_series(self, function: Function) -> Actions:
        """There may be entries for the places that some lack."""
        if not function.lacks or not function.ring.free:
            return []
        function.lacks = False
        return [a for series in function.series.values() for a in self._give(function, series)]

    def _send_part(
        self, session: Session, series: Series, number: int, now_ns: int
    ) -> Actions:
        """If it is there, to who asks for it."""
        call = self._asker(session, series, number)
        if call is None or not series.is_there(number):
            return []
        function = self.functions[session.func_id]
        call.entry = series.places.pop(number)
        del series.askers[number]
        function.owners[call.entry] = session.id, call.req_id
        self._become(function, call, CallState.RUNNING, now_ns)
        size = series.sizes.pop(number)
        return self.finished(
            function.id, call.entry, WireStatus.OK, now_ns, sent=False, size=size
        )

    def part(self, func_id: int, entry: int, size: int, now_ns: int) -> Actions:
        """The worker has written the next part of an answer."""
        function = self.functions[func_id]
        series = function.series.get(entry)
        if series is None or series.written == series.given:
            return []
        series.written += 1
        series.sizes[series.written] = size
        series.last_ns = now_ns
        if series.call.state is CallState.FORGOTTEN:
            return []
        session = self.sessions[series.session]
        actions = self._send_part(session, series, series.written, now_ns)
        return actions + self._give(function, series)

    def _make_way(self, session: Session, now_ns: int) -> Actions:
        """Where its window runs short, who has waited for a part is told to ask again."""
        if 4 * (session.grant - session.asked) > session.grant - session.done:
            return []
        actions: Actions = []
        for req_id in range(session.done + 1, session.asked + 1):
            call = session.call(req_id)
            waits = call.req_id == req_id and call.state is CallState.RX_COMPLETE
            if waits and call.flags & Flags.NEXT and now_ns - call.begun_ns > WAITS_NS:
                actions += self._fail(session, call, WireStatus.NOT_YET, now_ns)
        return actions

    # ---- begin and end

    def _begin_series(self, session: Session, call: Call, now_ns: int) -> Actions:
        """All of a request is here."""
        function = self.functions[session.func_id]
        if call.req_id in session.unwanted:
            return self._fail(session, call, WireStatus.CANCELLED, now_ns)
        if 2 * (len(function.series) + 1) > function.ring.entries:
            return self._fail(session, call, WireStatus.WOULD_BE_LATE, now_ns)
        series = function.series[call.entry] = Series(replace(call), session.id, now_ns)
        call.entry, call.state = -1, CallState.FAILED  # it is the series', with what it holds
        call.changed_ns, call.status = now_ns, WireStatus.UNDER_WAY
        session.series += 1
        function.allow_next(session)
        under_way = self._error(session, call.req_id, call.status)
        return [under_way, self._ready(function, series.call)]

    def _end_series(self, session: Session, series: Series, now_ns: int) -> Actions:
        """Nothing of it is left."""
        function = self.functions[session.func_id]
        for number in list(series.places):
            self._give_back(function, series, number)
        del function.series[series.call.entry]
        session.series -= 1
        session.forgotten -= series.call.state is CallState.FORGOTTEN
        function.release(series.call)
        self._become(function, series.call, CallState.FREE, now_ns)
        self._take_out(session)
        return self._offer(function, now_ns)

    def _end_if_done(self, session: Session, series: Series, now_ns: int) -> Actions:
        return self._end_series(session, series, now_ns) if series.is_done else []

    def _tell(self, session: Session, series: Series, status: int, now_ns: int) -> Actions:
        """Answer who asks for parts that do not come."""
        actions: Actions = []
        for number in range(series.written + 1, series.written + WINDOW + 1):
            call = self._asker(session, series, number)
            series.askers.pop(number, None)
            if call:
                series.told |= number == series.written + 1
                actions += self._fail(session, call, status, now_ns)
        return actions

    def _conclude(self, session: Session, series: Series, now_ns: int) -> Actions:
        """How it ends is known: nothing is written any more, and who asks for more is told."""
        function = self.functions[session.func_id]
        for number in range(series.given, series.written, -1):
            self._give_back(function, series, number)
        series.given, series.last_ns = series.written, now_ns
        return self._tell(session, series, series.status, now_ns)

    def parts_over(
        self, func_id: int, entry: int, now_ns: int, status: int = WireStatus.END
    ) -> Actions:
        """The worker writes none after those, though the request runs on."""
        series = self.functions[func_id].series.get(entry)
        if series is None or series.over or series.call.state is not CallState.RUNNING:
            return []
        series.over, series.status = True, status
        return self._conclude(self.sessions[series.session], series, now_ns)

    def _series_ends(
        self, session: Session, series: Series, status: int, now_ns: int
    ) -> Actions:
        """Its request has run, or is not going to."""
        if series.call.state is CallState.FORGOTTEN:
            return self._end_series(session, series, now_ns)
        series.status = series.status if series.over else status
        self._become(
            self.functions[session.func_id], series.call, CallState.FAILED, now_ns
        )
        actions = self._conclude(session, series, now_ns)
        return actions + self._end_if_done(session, series, now_ns)

    # ---- nobody wants it

    def _let_series_end(self, session: Session, series: Series, now_ns: int) -> Actions:
        function, state = self.functions[session.func_id], series.call.state
        if state is CallState.FORGOTTEN:
            return []
        if state is CallState.RUNNING:
            self._become(function, series.call, CallState.FORGOTTEN, now_ns)
            session.forgotten += 1
            told = self._tell(session, series, WireStatus.CANCELLED, now_ns)
            return [*told, Unwanted(series.call.entry)]
        waits = state is CallState.RX_COMPLETE
        actions = self._withdrawn(function, series.call.entry) if waits else []
        actions += self._tell(session, series, WireStatus.CANCELLED, now_ns)
        return actions + self._end_series(session, series, now_ns)

    def _cancel_series(self, session: Session, req_id: int, now_ns: int) -> Actions | None:
        """Its client wants no more of it; None: there is none. What has yet to come is noted."""
        series = self.find_series(session, req_id & 0xFFFFFFFF)
        if series is not None and series.call.req_id == req_id:
            return self._let_series_end(session, series, now_ns)
        call = session.call(req_id)
        is_here = call.req_id == req_id and call.state is not CallState.FREE
        if req_id > session.done and session.may_come(req_id) and not is_here:
            session.unwanted.add(req_id)
        return None

    def _leave_series(self, session: Session, now_ns: int) -> Actions:
        """The same of all that a session has."""
        found = (self.functions[session.func_id].series or {}).values()
        mine = [series for series in found if series.session == session.id]
        return [a for series in mine for a in self._let_series_end(session, series, now_ns)]

    def _look_at_series(self, function: Function, now_ns: int) -> Actions:
        """End those for whose parts nobody asks."""
        if function.series is None:
            return []
        actions = self.feed_series(function)
        for series in list(function.series.values()):
            session = self.sessions[series.session]
            if not session.closing:
                actions += self._make_way(session, now_ns)
            asked = self._asker(session, series, series.written + 1)
            waits = asked is not None or series.call.state is CallState.RX_COMPLETE
            if not waits and now_ns - series.last_ns > function.runs.idle_ns:
                actions += self._let_series_end(session, series, now_ns)
        return actions
