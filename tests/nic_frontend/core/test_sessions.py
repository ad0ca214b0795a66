"""Sessions: numbers of which only the low half is sent, replays, and grants."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.sessions import (
    NEXT,
    REPLAY_BITS,
    REPLAY_JUMP,
    Call,
    CallState,
    Replay,
    Session,
)
from shunter.nic_frontend.server.sessions import origin_of, origin_of_user
from shunter.nic_frontend.wire.header import nearest
from shunter.nic_frontend.wire.layout import WINDOW

LOW = 1 << 32


def session(**options):
    return Session(**{"id": 1, "func_id": 1, "peer": b"", "segment": 256, "window": 8, **options})


@given(st.integers(0, 2**62), st.integers(-(2**31) + 1, 2**31))
def test_a_number_is_known_from_its_low_half(about, distance):
    number = about + distance
    if number >= 0:
        assert nearest(number % LOW, about) == number


@given(st.integers(0, LOW - 1), st.integers(0, 2**62))
def test_the_nearest_number_has_that_low_half_and_is_not_negative(low, about):
    number = nearest(low, about)
    assert number >= 0
    assert number % LOW == low or number == 0
    assert number == 0 or abs(number - about) <= LOW // 2


NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.integers(0, 3 * REPLAY_BITS),
    st.integers(REPLAY_JUMP - 5, REPLAY_JUMP + 2 * REPLAY_BITS),
    st.integers(0, 2**32 - 1),
)


@given(st.lists(NUMBERS, max_size=200))
def test_no_number_is_new_twice_and_none_in_the_window_is_lost(numbers):
    replay, seen, highest = Replay(), set(), 0
    for number in numbers:
        expected = (
            number >= 1
            and number not in seen
            and highest - REPLAY_BITS < number <= highest + REPLAY_JUMP
        )
        assert replay.is_new(number) is expected
        if expected:
            seen.add(number)
            highest = max(highest, number)
        assert replay.highest == highest


@given(st.permutations(range(1, 60)))
def test_datagrams_may_overtake_one_another(numbers):
    replay = Replay()
    assert all(replay.is_new(number) for number in numbers)
    assert not any(replay.is_new(number) for number in numbers)


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 200)), max_size=50))
def test_a_grant_never_falls_and_never_passes_the_places(events):
    one = session()
    for done, more in events:
        one.done = min(one.done + done, one.grant)
        before, upto = one.grant, one.done + more
        assert one.raise_grant(upto) == one.grant >= before
        assert min(upto, one.done + WINDOW) <= one.grant <= one.done + WINDOW


def peer(family, text, port=80):
    """As the kernel has it."""
    raw = socket.inet_pton(family, text)
    head = int(family).to_bytes(2, "little") + port.to_bytes(2, "big")
    flow = bytes(4) if family == socket.AF_INET6 else b""
    return (head + flow + raw).ljust(64, b"\0")


V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((V4, "10.0.0.1", 1), (V4, "10.0.0.1", 2), True),
        ((V4, "10.0.0.1"), (V4, "10.0.0.2"), False),
        ((V6, "2001:db8::1", 1), (V6, "2001:db8::ffff:2", 2), True),
        ((V6, "2001:db8::1"), (V6, "2001:db8:0:ff::1"), True),
        ((V6, "2001:db8::1"), (V6, "2001:db8:0:100::1"), False),
        ((V6, "fe80::1"), (V6, "fe80::2"), False),
        ((V6, "fe80::1", 1), (V6, "fe80::1", 2), True),
        ((V6, "::ffff:10.0.0.1"), (V4, "10.0.0.1"), True),
        ((V6, "::ffff:10.0.0.1"), (V6, "::ffff:10.0.0.2"), False),
        ((V6, "::1"), (V4, "127.0.0.1"), False),
    ],
)
def test_sessions_are_counted_by_host_or_by_network(one, other, same):
    assert (origin_of(peer(*one)) == origin_of(peer(*other))) is same


def test_a_user_of_this_host_is_no_address():
    assert origin_of_user(1000) not in (origin_of(peer(V4, "0.0.3.232")), origin_of_user(1001))


@given(st.lists(st.integers(1, 2000), max_size=30))
def test_every_datagram_to_the_client_has_a_number_of_its_own(counts):
    one, numbers = session(), []
    for count in counts:
        first = one.next_pkt_no(count)
        numbers += range(first, first + count)
    assert numbers == list(range(1, sum(counts) + 1))


def test_numbers_of_datagrams_go_on_behind_32_bits():
    one = session(pkt_no=LOW - 2)
    assert [one.next_pkt_no() for _ in range(3)] == [LOW - 1, LOW, LOW + 1]


def test_requests_of_a_window_have_places_of_their_own():
    one = session()
    places = [one.call(req_id) for req_id in range(100, 100 + WINDOW)]
    assert len({id(place) for place in places}) == WINDOW
    assert one.call(100 + WINDOW) is one.call(100)


def test_only_what_may_follow_does():
    for state in CallState:
        for following in CallState:
            call = Call(state=state)
            try:
                call.become(following, 5)
            except AssertionError:
                assert following not in NEXT[state]
            else:
                assert following in NEXT[state]
                assert (call.state, call.changed_ns) == (following, 5)
