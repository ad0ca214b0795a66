"""How much may be on its way to a peer, and when: twin of ``c/path/congestion.c``. Pure.

Written from RFC 9002 once more, over plain lists, so that a slip in one of the two shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NEVER = 2**64 - 1
NEAR_NS = 1_000_000
MS = 1_000_000
INITIAL_DATAGRAMS, INITIAL_BYTES, LEAST_DATAGRAMS = 10, 14_720, 2
FIRST_RTT_NS, MOST_RTT_NS = 10 * MS, 10_000 * MS
REORDERED, MOST_DOUBLED, UNKNOWN_DOUBLED, PERSISTENT = 3, 6, 3, 3
BURST_NS, FILL_NS = 2 * MS, 20_000
QUANTUM_DATAGRAMS, QUANTA, QUANTUM_NS = 64, 16, MS
Lost = list[tuple[int, int]]
"""Requests and their segments."""


@dataclass
class Flight:
    """A datagram that is on its way."""

    number: int
    sent_ns: int
    owner: int
    part: int
    bytes: int
    asks: bool = False
    again: bool = False
    overtaken: bool = False
    """Later ones of its request have come."""
    left: bool = False
    """It is not counted any more: by now it has come, or is lost."""


@dataclass
class Congestion:
    """One path."""

    datagram: int
    near: int
    rtt: int = 0
    now: int = 0
    window: int = 0
    threshold: int = NEVER
    rest: int = 0
    """Of what the window has grown beyond its threshold, in bytes times the window."""
    recovery_ns: int = 0
    rtt_ns: int = FIRST_RTT_NS
    var_ns: int = FIRST_RTT_NS // 2
    latest_ns: int = 0
    measured_ns: int = 0
    due_ns: int = NEVER
    filled_ns: int = 0
    tokens: int = 0
    asked: int = 0
    """Number of the last that asks to be acknowledged."""
    full: bool = False
    """The last that was to go had to wait for the window."""
    empty: bool = False
    """For the bucket."""
    timeouts: int = 0
    timed_ns: int = 0
    next: int = 0
    flights: list[Flight] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is on its way."""
        self._lost_ns = 0
        self.window = self.tokens = self.initial_window
        self.filled_ns = self.now
        if self.rtt:
            self.measure(self.rtt, self.now)
            self.tokens = self.window

    @property
    def initial_window(self) -> int:
        """RFC 9002, 7.2."""
        few = max(INITIAL_BYTES, LEAST_DATAGRAMS * self.datagram)
        return min(INITIAL_DATAGRAMS * self.datagram, few)

    @property
    def in_flight(self) -> int:
        """Bytes."""
        return sum(flight.bytes for flight in self.flights if not flight.left)

    # ---- the round trip

    def measure(self, rtt_ns: int, now_ns: int) -> None:
        """RFC 9002, 5.3."""
        self.latest_ns = min(max(rtt_ns, 1), MOST_RTT_NS)
        if not self.measured_ns:
            self.measured_ns = max(now_ns, 1)
            self.rtt_ns, self.var_ns = self.latest_ns, self.latest_ns // 2
        else:
            self.var_ns = (3 * self.var_ns + abs(self.rtt_ns - self.latest_ns)) // 4
            self.rtt_ns = (7 * self.rtt_ns + self.latest_ns) // 8
        if self.rtt_ns < NEAR_NS and not self.recovery_ns:
            self.window = max(self.window, self.near)

    @property
    def _patience_ns(self) -> int:
        return self.rtt_ns + max(4 * self.var_ns, MS)

    @property
    def timeout_ns(self) -> int:
        """RFC 9002, 6.2."""
        return self._patience_ns << min(self.timeouts, MOST_DOUBLED)

    @property
    def _loss_delay_ns(self) -> int:
        rtt = max(self.rtt_ns, self.latest_ns)
        return max(rtt + rtt // 8, MS)

    # ---- what may be sent

    def _paced(self, ns: int) -> int:
        return 5 * self.window * (ns // 1000) // (4 * max(self.rtt_ns // 1000, 1))

    def _fill(self, now_ns: int) -> None:
        passed = max(0, now_ns - self.filled_ns)
        if passed >= FILL_NS:
            self.filled_ns = now_ns
            burst = max(self.initial_window, self._paced(BURST_NS))
            came = self._paced(min(passed, BURST_NS + 10 * self.rtt_ns))
            self.tokens = min(self.tokens + came, burst)

    def may_send_at(self, count: int, unsent: int, now_ns: int) -> int:
        """When a datagram of so many bytes may be sent, of so many that wait."""
        quantum = min(self.window // QUANTA, QUANTUM_DATAGRAMS * self.datagram, unsent)
        room = max(count, quantum) if self.full else count
        self.full = False
        if self.in_flight + room > self.window:
            left_ns = self._leave(now_ns)
            if self.in_flight and self.in_flight + room > self.window:
                self.full = True
                return left_ns
        self._fill(now_ns)
        tokens = max(count, min(quantum, self._paced(QUANTUM_NS))) if self.empty else count
        self.empty = self.tokens < tokens and self.in_flight > 0
        if not self.empty:
            return now_ns
        rate = max(self._paced(1000 * MS), 1)
        return now_ns + FILL_NS + (tokens - self.tokens) * 1000 * MS // rate

    def holds(self, count: int, now_ns: int) -> bool:
        """Whether so many bytes could be sent at once."""
        if self.in_flight + count > self.window:
            self._leave(now_ns)
        self._fill(now_ns)
        return self.in_flight + count <= self.window and count <= self.tokens

    def _leave(self, now_ns: int) -> int:
        """Do not count what has left the path by now; when the next of the others does."""
        for flight in self.flights:
            if flight.sent_ns + self.timeout_ns <= now_ns:
                flight.left = True
        ends = [flight.sent_ns + self.timeout_ns for flight in self.flights if not flight.left]
        return min(ends, default=now_ns)

    def should_ask(self, count: int) -> bool:
        """Whether the next one asks to be acknowledged, where not all may be sent at once."""
        each = min(QUANTUM_DATAGRAMS, max(2, self.window // self.datagram // 4))
        is_last = self.in_flight + 2 * count > self.window or self.tokens < 2 * count
        return not self.next or self.next - self.asked >= each or is_last

    def sent(
        self, now_ns: int, owner: int, part: int, count: int, *, asks: bool, again: bool
    ) -> None:
        """A datagram went."""
        self.tokens -= min(self.tokens, count)
        self.asked = self.next if asks else self.asked
        self.flights.append(Flight(self.next, now_ns, owner, part, count, asks, again))
        self.next += 1

    # ---- what has come, and what has not

    def heard(self, owner: int, have: int | None, now_ns: int, *, question: bool = False) -> Lost:
        """What the peer has of a request: bits, None: all. What is lost of all that was sent."""
        largest = self._acknowledge(owner, have, now_ns)
        unknown = 0 if self.measured_ns else UNKNOWN_DOUBLED
        doubled = min(self.timeouts, MOST_DOUBLED) if question else unknown
        self._lost_ns = 0
        missing_ns = now_ns - (self._loss_delay_ns << doubled)
        lost = self._detect(now_ns, owner, missing_ns, largest)
        if question and lost and self._lost_ns >= self.timed_ns:
            self.timeouts += 1
            self.timed_ns = now_ns
        return lost

    def tick(self, now_ns: int) -> Lost:
        """What is lost because time has passed."""
        return self._detect(now_ns, NEVER, 0, 0)

    def flying(self, owner: int) -> int:
        """Bits of a request's datagrams that are on their way."""
        bits = 0
        for flight in self.flights:
            bits |= (flight.owner == owner) << flight.part
        return bits

    def forget(self, owner: int) -> None:
        """Nobody wants to know what becomes of it."""
        self.flights = [flight for flight in self.flights if flight.owner != owner]

    def _acknowledge(self, owner: int, have: int | None, now_ns: int) -> int:
        came = [
            flight
            for flight in self.flights
            if flight.owner == owner and (have is None or have >> flight.part & 1)
        ]
        before = self.in_flight
        for flight in came:
            self._grow(flight, before)
        gone = {flight.number for flight in came}
        self.flights = [flight for flight in self.flights if flight.number not in gone]
        if came and not came[-1].again and now_ns > came[-1].sent_ns:
            passed_ns = now_ns - came[-1].sent_ns
            # Who answers has worked meanwhile: the way is not longer than that.
            if came[-1].asks if have is not None else passed_ns < self.rtt_ns:
                self.measure(passed_ns, now_ns)
        self.timeouts = 0 if came else self.timeouts
        return max((flight.number + 1 for flight in came if not flight.again), default=0)

    def _grow(self, flight: Flight, before: int) -> None:
        is_slow_start = self.window < self.threshold
        used = 2 * before if is_slow_start else before + 3 * self.datagram
        if flight.sent_ns <= self.recovery_ns or used < self.window:
            return
        if is_slow_start:
            self.window += flight.bytes
            return
        more, self.rest = divmod(self.rest + self.datagram * flight.bytes, self.window)
        self.window += more

    def _detect(self, now_ns: int, owner: int, missing_ns: int, largest: int) -> Lost:
        before, delay = self.in_flight, self._loss_delay_ns
        stay: list[Flight] = []
        lost: list[Flight] = []
        self.due_ns = NEVER
        for flight in self.flights:
            heard_of = flight.owner == owner
            flight.overtaken |= heard_of and flight.number < largest
            late = flight.overtaken and flight.sent_ns + delay <= now_ns
            behind = flight.number + REORDERED < largest or flight.sent_ns <= missing_ns
            if late or (heard_of and behind):
                lost.append(flight)
                continue
            stay.append(flight)
            if flight.overtaken:
                self.due_ns = min(self.due_ns, flight.sent_ns + delay)
        self.flights = stay
        if lost:
            self._lost_ns = lost[-1].sent_ns
            before += sum(flight.bytes for flight in lost if flight.left)
            self._narrow(lost, before, now_ns)
        return [(flight.owner, flight.part) for flight in lost]

    def _narrow(self, lost: list[Flight], before: int, now_ns: int) -> None:
        least = LEAST_DATAGRAMS * self.datagram
        if lost[-1].sent_ns > self.recovery_ns:
            self.recovery_ns = now_ns
            self.window = self.threshold = max(min(self.window, 2 * before) // 2, least)
        if self._longest_run_ns(lost) > PERSISTENT * self._patience_ns:
            self.window, self.recovery_ns = least, 0

    def _longest_run_ns(self, lost: list[Flight]) -> int:
        """Of datagrams that followed one another, with a first round trip measured before."""
        longest, began = 0, lost[0]
        for previous, flight in zip([None, *lost], lost, strict=False):
            if previous is None or flight.number != previous.number + 1:
                began = flight
            if self.measured_ns and began.sent_ns > self.measured_ns:
                longest = max(longest, flight.sent_ns - began.sent_ns)
        return longest
