"""The client's side of a session: what to send and when, what an answer means. Pure.

Twin of ``c/client``.

Datagrams are pairs of a header and the segment it is about; the shell puts the payload behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oracle.client_state import (
    ACK_REQ,
    CREDIT,
    ERROR,
    IDEMPOTENT,
    LAST,
    MOST_RTO_NS,
    RESP,
    RETRANS,
    SACK,
    Guard,
    Landing,
    Outgoing,
    Pending,
    Refused,
    SessionState,
)
from shunter.nic_frontend.wire.header import (
    PROTECTIONS,
    Header,
    WrongHeader,
    check_tag,
    nearest,
    parse,
)
from shunter.nic_frontend.wire.layout import (
    OF_CLIENT,
    SACK_RECEIVING,
    WINDOW,
    X64_FIELDS,
    MessageType,
    WireStatus,
)
from shunter.nic_frontend.wire.segments import Segment

MOST_REST_NS = 400_000_000
"""While the server says that it has the request. It is silent for no longer."""
RETRY_NS = 20_000_000
"""When the server has no room."""
_PROTECTIONS = int(PROTECTIONS)
_OF_CLIENT = frozenset(map(int, OF_CLIENT))
_PKT_NO_AT = X64_FIELDS["pkt_no"][0]


@dataclass
class ClientCore(SessionState):
    """One session."""

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
        flags = IDEMPOTENT if idempotent else 0
        rto = self._rto()
        deadline = now_ns + deadline_us * 1000 if deadline_us else 0
        pending = Pending(now_ns, now_ns + rto, rto, flags, priority, deadline)
        self.pending[req_id] = pending
        every = range(len(self._in))
        return req_id, [self._request(req_id, pending, seq, 0, now_ns) for seq in every]

    def cancel(self, req_id: int) -> list[Outgoing]:
        """Give a request up."""
        self._end(req_id)
        return [self._control(MessageType.CANCEL, req_id)]

    def farewell(self) -> list[Outgoing]:
        """The session is over: the server need not keep it, nor the last answers."""
        return [self._control(MessageType.ACK, 0, LAST)]

    def ask(self) -> list[Outgoing]:
        """For credit, or for a sign of life."""
        return [self.ask_for_credit()]

    def ask_for_credit(self) -> Outgoing:
        """To be sent when there is none and nothing is on its way."""
        return self._control(MessageType.ACK, 0, ACK_REQ)

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
            if header.session != self.session or header.type in _OF_CLIENT:
                return None, []
            if header.type == ERROR and header.status == WireStatus.UNKNOWN_SESSION:
                self.unknown_ns = now_ns
                return None, []
            check_tag(header, head, self._heard_key)
        except WrongHeader:
            return None, []
        self.heard_ns = now_ns
        self.grant = max(self.grant, nearest(header.credit, self.grant))
        pending = self.pending.get(header.req_id)
        if pending is None:
            return None, []
        if header.type == RESP:
            return self._answer(header, pending, now_ns, head, payload)
        if header.type == ERROR:
            return self._error(header, pending, now_ns)
        if header.type == CREDIT:  # it was refused, and there is room now
            self._has_room(pending)
            return None, self._send_again(header.req_id, pending, 0, now_ns)
        if header.type == SACK:
            have = int.from_bytes(payload(), "little")
            return None, self._sack(header, pending, have, now_ns)
        return None, []

    def _answer(
        self,
        header: Header,
        pending: Pending,
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
            asks = header.flags & ACK_REQ
            answers = [self._control(MessageType.ACK, 0)] if asks else []
            return Landing(header.req_id, segment, True, opened), answers
        pending.rto_ns = min(self._rto(), self._first_rto())  # the rest is on its way
        pending.due_ns = now_ns + pending.rto_ns
        # Where it is asked for, the rest is sent when it is known what is here.
        asks = header.flags & ACK_REQ and not self.stream
        sacks = [self._here(header.req_id, pending, 0)] if asks else []
        return Landing(header.req_id, segment, False, opened), sacks

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
        self, header: Header, pending: Pending, now_ns: int
    ) -> tuple[Landing | Refused | None, list[Outgoing]]:
        if header.status == WireStatus.RETRY_LATER:
            pending.due_ns = now_ns + min(pending.rto_ns, RETRY_NS)
            pending.refused, self._asks = True, 1
            return None, []
        self._end(header.req_id)
        return Refused(header.req_id, header.status), []

    def _sack(
        self, header: Header, pending: Pending, have: int, now_ns: int
    ) -> list[Outgoing]:
        self._has_room(pending)
        if header.status != SACK_RECEIVING:
            pending.rto_ns = self._rto()
            self._rest(pending, now_ns)
            return []
        return self._send_again(header.req_id, pending, have, now_ns)

    def _has_room(self, pending: Pending) -> None:
        """There may be some for others that were refused: ask about more of them than before."""
        if pending.refused:
            pending.refused, self._asks = False, min(2 * self._asks, WINDOW)

    def _send_again(
        self, req_id: int, pending: Pending, have: int, now_ns: int
    ) -> list[Outgoing]:
        """The server answers: what is lost now has nothing to do with before."""
        pending.rto_ns = self._rto()
        pending.due_ns = now_ns + pending.rto_ns
        missing = [seq for seq in range(len(self._in)) if not have >> seq & 1]
        return self._repeat(req_id, pending, missing, now_ns)

    def _rest(self, pending: Pending, now_ns: int) -> None:
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
            found.append(self._here(req_id, pending, ACK_REQ))
            pending.rto_ns = min(MOST_RTO_NS, 2 * pending.rto_ns)
            pending.due_ns = now_ns + pending.rto_ns
        return found

    def _here(self, req_id: int, pending: Pending, flags: int) -> Outgoing:
        """QUERY: which segments of the answer are here."""
        have = pending.received.to_bytes(-(-len(self._out) // 8), "little")
        return self._control(MessageType.QUERY, req_id, flags, have)

    def overdue(self, now_ns: int) -> list[int]:
        """Refused requests whose deadlines have passed, longer ago than what was said takes."""
        ends_ns = now_ns - self._first_rto()
        return [i for i, p in self.pending.items() if p.refused and 0 < p.deadline_ns < ends_ns]

    def _repeat(
        self, req_id: int, pending: Pending, seqs: list[int], now_ns: int
    ) -> list[Outgoing]:
        pending.again = True
        self.lost += len(seqs)
        return [self._request(req_id, pending, seq, RETRANS, now_ns) for seq in seqs]
