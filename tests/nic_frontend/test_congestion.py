"""Congestion control: what RFC 9002 asks for, in C and in Python, and both the same."""

import ctypes
from ctypes import CFUNCTYPE, Structure, byref, c_bool, c_uint16, c_uint32, c_uint64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.congestion import NEVER, Congestion
from shunter.nic_frontend.library import library

MS = 1_000_000
DATAGRAM, NEAR = 1472, 1 << 20
NUMBERS = ("window", "threshold", "in_flight", "rest", "recovery_ns", "rtt_ns", "var_ns")
NUMBERS += ("latest_ns", "measured_ns", "due_ns", "filled_ns", "tokens", "asked")


class _Flight(Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("sent_ns", "owner")),
        ("bytes", c_uint32),
        ("part", c_uint16),
        *((name, c_bool) for name in ("asks", "again", "overtaken", "left")),
    )


class _Path(Structure):
    _fields_ = (
        ("datagram", c_uint32),
        ("near", c_uint64),
        *((name, c_uint64) for name in NUMBERS),
        ("full", c_bool),
        ("empty", c_bool),
        ("timeouts", c_uint32),
        ("timed_ns", c_uint64),
        ("flights", ctypes.c_void_p),
        *((name, c_uint64) for name in ("first", "next", "room")),
    )


_LOST = CFUNCTYPE(None, ctypes.c_void_p, c_uint64, c_uint16)


class NativeCongestion:
    """The C module behind the oracle's methods."""

    def __init__(self, datagram, near, rtt=0, now=0):
        self.c = library()
        self.path = _Path()
        self.c.shunter_congestion_may_send_at.restype = c_uint64
        self.c.shunter_congestion_timeout_ns.restype = c_uint64
        self.c.shunter_congestion_holds.restype = c_bool
        self.c.shunter_congestion_should_ask.restype = c_bool
        self._lost = []
        self._told = _LOST(lambda _, owner, part: self._lost.append((owner, part)))
        args = byref(self.path), datagram, c_uint64(near), c_uint64(rtt), c_uint64(now)
        self.c.shunter_congestion_init(*args)

    def __del__(self):
        self.c.shunter_congestion_free(byref(self.path))

    def __getattr__(self, name):
        return getattr(self.path, name)

    @property
    def timeout_ns(self):
        return self.c.shunter_congestion_timeout_ns(byref(self.path))

    def should_ask(self, count):
        return self.c.shunter_congestion_should_ask(byref(self.path), count)

    def flying(self, owner):
        bits = (ctypes.c_uint8 * 256)()
        self.c.shunter_congestion_mark(byref(self.path), c_uint64(owner), bits)
        return int.from_bytes(bits, "little")

    def measure(self, rtt, now):
        self.c.shunter_congestion_measure(byref(self.path), c_uint64(rtt), c_uint64(now))

    def may_send_at(self, count, unsent, now):
        args = byref(self.path), count, c_uint64(unsent), c_uint64(now)
        return self.c.shunter_congestion_may_send_at(*args)

    def holds(self, count, now):
        return self.c.shunter_congestion_holds(byref(self.path), c_uint64(count), c_uint64(now))

    def sent(self, now, owner, part, count, *, asks, again):
        flight = _Flight(now, owner, count, part, asks, again)
        assert self.c.shunter_congestion_sent(byref(self.path), byref(flight)) == 0

    def heard(self, owner, have, now, *, question=False):
        bits = None if have is None else have.to_bytes(256, "little")
        args = bits, 256, c_bool(question), c_uint64(now), self._told, None
        self.c.shunter_congestion_heard(byref(self.path), c_uint64(owner), *args)
        return self._taken()

    def tick(self, now):
        self.c.shunter_congestion_tick(byref(self.path), c_uint64(now), self._told, None)
        return self._taken()

    def forget(self, owner):
        self.c.shunter_congestion_forget(byref(self.path), c_uint64(owner))

    def _taken(self):
        lost, self._lost = self._lost, []
        return lost


@pytest.fixture(params=[Congestion, NativeCongestion])
def make(request, built):
    return request.param


def send(path, now, parts, owner=1, count=DATAGRAM, again=False, asks=False):
    for part in parts:
        path.sent(now, owner, part, count, asks=asks, again=again)


def bits(*parts):
    return sum(1 << part for part in parts)


# ---- the window


@pytest.mark.parametrize(
    ("datagram", "window"),
    [(1200, 12_000), (1472, 14_720), (1500, 14_720), (8000, 16_000), (61_504, 123_008)],
)
def test_an_unknown_path_begins_with_the_initial_window(make, datagram, window):
    assert make(datagram, NEAR).window == window


@pytest.mark.parametrize(("rtt", "window"), [(MS - 1, NEAR), (MS, 14_720), (0, 14_720)])
def test_a_near_peer_may_be_sent_what_it_has_given_credit_for(make, rtt, window):
    path = make(DATAGRAM, NEAR, rtt, 5)
    assert path.window == window
    assert path.holds(window, 6) and not path.holds(window + 1, 6)


def test_what_is_sent_is_on_its_way_until_it_is_heard_of(make):
    path = make(DATAGRAM, NEAR)
    for part in range(10):
        assert path.may_send_at(DATAGRAM, DATAGRAM, 1) == 1
        send(path, 1, [part])
    assert path.in_flight == 14_720
    assert path.may_send_at(1, 1, 2) == 1 + 30 * MS
    assert path.heard(1, bits(0, 1), 2) == []
    assert path.in_flight == 8 * DATAGRAM
    path.forget(1)
    assert path.in_flight == 0


def test_what_nobody_says_anything_of_does_not_fill_the_window_for_ever(make):
    """It is still lost when it turns out to be."""
    path = make(DATAGRAM, NEAR, 20 * MS, 1)
    send(path, 2, range(10))
    at = path.may_send_at(DATAGRAM, DATAGRAM, 3)
    assert at == 2 + path.timeout_ns
    assert path.may_send_at(DATAGRAM, DATAGRAM, at) == at and path.in_flight == 0
    assert path.flying(1) == bits(*range(10))
    assert len(path.heard(1, 0, at)) == 10
    assert path.window == path.threshold == 14_720 // 2


def test_something_may_always_be_on_its_way(make):
    path = make(61_504, NEAR)
    assert path.may_send_at(1 << 20, 1 << 20, 1) == 1
    send(path, 1, [0], count=1 << 20)
    assert path.may_send_at(1, 1, 2) > 2


def test_slow_start_doubles_what_is_used(make):
    path = make(DATAGRAM, NEAR)
    send(path, 1, range(10))
    path.heard(1, None, 20 * MS)
    assert path.window == 2 * 14_720


def test_what_is_not_used_does_not_grow(make):
    path = make(DATAGRAM, NEAR)
    send(path, 1, range(4))
    path.heard(1, None, 20 * MS)
    assert path.window == 14_720


def test_beyond_the_threshold_it_grows_by_one_datagram_a_window(make):
    path = make(DATAGRAM, NEAR, 20 * MS, 1)
    send(path, 2, range(10))
    path.heard(1, bits(*range(1, 10)), 20 * MS)
    window = path.window
    assert window == path.threshold
    count = window // DATAGRAM
    send(path, 50 * MS, range(count), owner=2)
    path.heard(2, None, 70 * MS)
    assert path.window - window == pytest.approx(DATAGRAM, rel=0.2)


def test_a_wide_window_grows_beyond_the_threshold_too(make):
    """By less than a byte for each datagram, where it is wider than the datagram's square."""
    path = make(DATAGRAM, 8 << 20, 50_000, 1)
    parts = range(2000)
    for owner in range(3):
        send(path, 2, parts, owner)
    path.heard(0, bits(*parts[1:]), 3)
    window = path.window
    assert DATAGRAM**2 < window == path.threshold
    for owner in range(1, 3):
        path.heard(owner, None, 4)
    for owner in range(3, 5):
        send(path, MS, parts, owner)
        path.heard(owner, None, 2 * MS)
    assert path.window == window  # it was not full
    for owner in range(5, 7):
        send(path, 3 * MS, parts, owner)
    for owner in range(5, 7):
        path.heard(owner, None, 4 * MS)
    assert 0 < path.window - window <= DATAGRAM


# ---- losses


def test_three_later_ones_make_it_lost_and_halve_the_window(make):
    path = make(DATAGRAM, NEAR)
    send(path, 1, range(10))
    assert path.heard(1, bits(1, 2), 2) == []
    assert path.heard(1, bits(1, 2, 3), 3) == [(1, 0)]
    assert path.window == path.threshold == (14_720 + 3 * DATAGRAM) // 2


def test_what_is_lost_together_halves_once(make):
    path = make(DATAGRAM, NEAR)
    send(path, 1, range(10))
    path.heard(1, bits(3), 2)
    window = path.window
    assert path.heard(1, bits(3, 9), 3) == [(1, part) for part in (1, 2, 4, 5, 6)]
    assert path.window == window
    send(path, 4, range(5), owner=2)
    path.heard(2, bits(4), 5)
    assert path.window < window


def test_a_datagram_that_others_overtook_is_lost_when_time_has_passed(make):
    path = make(DATAGRAM, NEAR, 16 * MS, 1)
    send(path, 2, range(2))
    assert path.heard(1, bits(1), 3) == []
    assert path.due_ns == 2 + 18 * MS
    assert path.tick(path.due_ns - 1) == []
    assert path.tick(path.due_ns) == [(1, 0)]
    assert path.due_ns == NEVER


def test_what_a_peer_lacks_is_lost_when_it_should_have_come(make):
    """The last of all has nothing behind it."""
    path = make(DATAGRAM, NEAR, 16 * MS, 1)
    send(path, 2, range(2))
    assert path.heard(1, bits(0), 1 + 18 * MS) == []
    assert path.heard(1, bits(0), 2 + 18 * MS) == [(1, 1)]


def test_what_has_come_of_one_request_says_nothing_of_another(make):
    """Requests are answered in any order: those that still run have come, too."""
    path = make(DATAGRAM, NEAR, 16 * MS, 1)
    for owner in range(5):
        send(path, 2, [0, 1], owner=owner)
    assert path.heard(4, None, 30 * MS) == []
    assert path.heard(3, bits(1), 10 * MS) == []
    assert path.tick(60 * MS) == [(3, 0)]


def test_it_is_not_halved_below_what_moves(make):
    path = make(DATAGRAM, NEAR)
    for round_ in range(10):
        send(path, 1 + round_ * 100 * MS, range(5), owner=round_)
        path.heard(round_, bits(4), (round_ * 100 + 50) * MS)
        path.heard(round_, None, (round_ * 100 + 50) * MS)
    assert path.window == 2 * DATAGRAM


def test_a_long_silence_narrows_it_to_the_least(make):
    path = make(DATAGRAM, NEAR, 20 * MS, 1)
    for k in range(5):
        send(path, 10 * MS + k * 70 * MS, [k])
    lost = path.heard(1, 0, 1000 * MS)
    assert lost == [(1, k) for k in range(5)]
    assert path.window == 2 * DATAGRAM


def test_questions_that_bring_nothing_new_are_answered_less_and_less_often(make):
    path = make(DATAGRAM, NEAR, 8 * MS, 1)
    now, gaps = 2, []
    for _ in range(10):
        send(path, now, [0], again=True)
        sent = now
        while not path.heard(1, 0, now, question=True):
            now += MS
        gaps.append((now - sent) // MS)
    assert gaps == [9, 18, 36, 72, 144, 288, 576, 576, 576, 576]
    send(path, now, [0, 1])
    path.heard(1, bits(1), now, question=True)
    assert path.timeouts == 0


def test_questions_about_requests_that_were_lost_together_count_once(make):
    path = make(DATAGRAM, NEAR, 8 * MS, 1)
    for owner in range(5):
        send(path, 2, [0], owner=owner)
    now = 50 * MS
    for owner in range(5):
        assert path.heard(owner, 0, now + owner, question=True) == [(owner, 0)]
    assert path.timeouts == 1


# ---- the round trip


def test_only_what_asks_and_was_sent_once_measures(make):
    for asks, again, measured in ((1, 0, True), (0, 0, False), (1, 1, False)):
        path = make(DATAGRAM, NEAR)
        send(path, 1, [0], asks=bool(asks), again=bool(again))
        path.heard(1, bits(0), 1 + 30 * MS)
        assert bool(path.measured_ns) == measured
        assert path.rtt_ns == (30 if measured else 10) * MS


def test_round_trips_are_smoothed(make):
    path = make(DATAGRAM, NEAR)
    path.measure(80 * MS, 1)
    assert (path.rtt_ns, path.var_ns) == (80 * MS, 40 * MS)
    path.measure(160 * MS, 2)
    assert (path.rtt_ns, path.var_ns) == (90 * MS, 50 * MS)
    assert path.timeout_ns == 290 * MS


# ---- pacing


def test_a_burst_goes_at_once_and_the_rest_in_its_time(make):
    path = make(DATAGRAM, NEAR, 100 * MS, 1)
    send(path, 1, range(10))
    path.heard(1, None, 100 * MS)  # the window is two bursts now
    now, times = 100 * MS, []
    for part in range(20):
        now = path.may_send_at(DATAGRAM, DATAGRAM, now)
        assert path.may_send_at(DATAGRAM, DATAGRAM, now) == now
        times.append(now)
        send(path, now, [part], owner=2)
    assert times[9] == 100 * MS
    expected = 10 / 20 * 100 * MS / 1.25
    assert times[19] - times[9] == pytest.approx(expected, rel=0.1)


def test_who_waits_until_it_is_told_may_send(make):
    path = make(DATAGRAM, NEAR, 50 * MS, 1)
    now = 1
    for part in range(200):
        at = path.may_send_at(DATAGRAM, DATAGRAM, now)
        now = max(now, at)
        assert path.may_send_at(DATAGRAM, DATAGRAM, now) == now
        send(path, now, [part % 4], owner=part)
        path.heard(part, None, now)


def test_no_near_request_is_paced(make):
    path = make(DATAGRAM, 64 * 588_000, 200_000, 1)
    for part in range(420):
        assert path.may_send_at(DATAGRAM, DATAGRAM, 2) == 2
        send(path, 2, [part])


@pytest.mark.parametrize(
    ("window", "unsent", "room"),
    [
        (16, 100, 1),  # a small one stays full
        (40, 100, 3),
        (480, 1000, 30),
        (2000, 9000, 64),
        (2000, 5, 5),  # all that is left
        (2000, 1, 1),
    ],
)
def test_who_stood_still_goes_on_with_several(make, window, unsent, room):
    """All in datagrams: a full window opens for ``room`` of them together, not for each."""
    path = make(DATAGRAM, window * DATAGRAM, 900_000, 1)
    for owner in range(window):
        send(path, 2, [0], owner)
    assert path.may_send_at(DATAGRAM, unsent * DATAGRAM, 2) > 2
    now = MS // 2
    for freed in range(1, room + 1):
        path.forget(freed - 1)
        may = path.may_send_at(DATAGRAM, unsent * DATAGRAM, now) == now
        assert may == (freed == room), freed
    for left in range(room, 0, -1):  # and then each goes
        assert path.may_send_at(DATAGRAM, left * DATAGRAM, now) == now
        send(path, now, [0], owner=window + left)
    assert path.may_send_at(DATAGRAM, DATAGRAM, now) > now


def test_a_full_window_is_asked_for_by_the_quantum(make):
    """As many questions as quanta go, however often a single datagram leaves the path."""
    path = make(DATAGRAM, 400 * DATAGRAM, MS // 2, 1)
    now, asked, went = MS, 0, 400
    for owner in range(went):
        send(path, now, [0], owner)
    for came in range(400):
        path.forget(came)
        now += 2000
        while path.may_send_at(DATAGRAM, 1000 * DATAGRAM, now) == now:
            asks = path.should_ask(DATAGRAM)
            send(path, now, [0], owner=went, asks=asks)
            asked, went = asked + asks, went + 1
    assert 800 - 25 < went <= 800 and asked <= 400 // 25 + 2


@pytest.mark.parametrize(
    ("doublings", "unsent", "run"),
    [
        (1, 1000, 1),  # 0.25 datagrams in 1 ms
        (7, 1000, 16),  # 16
        (7, 5, 5),  # all that is left
        (11, 4000, 64 + 5),  # of 256 a quantum, and what 20 us bring until it is tried again
    ],
)
def test_who_is_paced_goes_on_with_what_the_rate_brings_in_a_millisecond(
    make, doublings, unsent, run
):
    """Windows of 10 datagrams, doubled so often, in round trips of 100 ms; runs in datagrams."""
    path, now = make(DATAGRAM, NEAR, 100 * MS, 1), 1
    for _ in range(doublings):
        send(path, now, range(path.window // DATAGRAM))
        now += 100 * MS
        path.heard(1, None, now)
    assert path.window == 14_720 << doublings

    def burst(at):
        went = 0
        while path.may_send_at(DATAGRAM, unsent * DATAGRAM, at) == at:
            send(path, at, [went], owner=2)
            went += 1
        return went

    assert burst(now) >= 10
    at = path.may_send_at(DATAGRAM, unsent * DATAGRAM, now)
    assert burst(at - MS // 10) == 0
    assert burst(path.may_send_at(DATAGRAM, unsent * DATAGRAM, at - MS // 10)) == run


def test_some_ask_and_the_last_that_may_go(make):
    path = make(DATAGRAM, NEAR)
    asked = []
    for part in range(10):
        asked.append(path.should_ask(DATAGRAM))
        send(path, 1, [part], asks=asked[-1])
    assert asked == [True, False] * 4 + [True, True]
    path.forget(1)
    near = make(DATAGRAM, NEAR, 1000, 1)
    for part in range(193):
        assert near.should_ask(DATAGRAM) == (part % 64 == 0)
        send(near, 1, [part], asks=part % 64 == 0)


def test_what_is_on_its_way_is_known(make):
    path = make(DATAGRAM, NEAR)
    send(path, 1, range(4), owner=7)
    send(path, 1, [9], owner=8)
    path.heard(7, bits(1), 2)
    assert (path.flying(7), path.flying(8), path.flying(9)) == (bits(0, 2, 3), bits(9), 0)


# ---- both the same

STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 4), st.integers(1, 12), st.booleans()),
    st.tuples(st.just("heard"), st.integers(0, 4), st.integers(0, 4095), st.booleans()),
    st.tuples(st.just("all"), st.integers(0, 4), st.just(0), st.just(False)),
    st.tuples(st.just("forget"), st.integers(0, 4), st.just(0), st.just(False)),
    st.tuples(st.just("tick"), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("wait"), st.sampled_from([1000, 30_000, MS, 20 * MS, 3000 * MS])).map(
        lambda step: (*step, 0, False)
    ),
)


def apply(path, step, now):
    kind, owner, number, flag = step
    if kind == "send":
        found = [path.may_send_at(DATAGRAM, number * DATAGRAM, now)]
        found += [path.holds(number * DATAGRAM, now), path.full, path.empty]
        found += [path.should_ask(DATAGRAM), path.flying(owner)]
        send(path, now, range(number), owner, again=flag, asks=number % 3 == 0)
        return found
    if kind == "heard":
        return path.heard(owner, number, now, question=flag)
    if kind == "all":
        return path.heard(owner, None, now)
    return path.forget(owner) if kind == "forget" else path.tick(now)


@given(
    st.lists(STEPS, max_size=60),
    st.sampled_from([0, 50_000, 20 * MS]),
    st.sampled_from([100, DATAGRAM, 61_504]),
)
def test_both_say_the_same(built, steps, rtt, datagram):
    pair = [kind(datagram, NEAR, rtt, 7) for kind in (Congestion, NativeCongestion)]
    now = 7
    for step in steps:
        now += step[1] if step[0] == "wait" else 1
        if step[0] == "wait":
            continue
        found = [apply(path, step, now) for path in pair]
        assert found[0] == found[1], step
        states = [[getattr(path, name) for name in NUMBERS] for path in pair]
        assert states[0] == states[1], (step, *zip(NUMBERS, *states, strict=True))
        assert pair[0].timeout_ns == pair[1].timeout_ns
        assert pair[0].window >= 2 * datagram
