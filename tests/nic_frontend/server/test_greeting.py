"""Hellos by datagrams before anything is known of who says them: cookies, and turns."""

import contextlib
import os
import secrets
import socket
import time

import pytest

from shunter.batching.queue.landing import LandingPool
from shunter.nic_frontend.server import data_path as data_paths
from shunter.nic_frontend.server.data_path import HELLOS, DataPath
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.hello import Hello, parse_cookie
from shunter.nic_frontend.wire.layout import HEADER_BYTES, MessageType, WireStatus
from shunter.nic_frontend.wire.siphash import siphash24

COOKIE_NS, BURST, MS = 60 * 10**9, 256, 10**6
COOKIES, EACH_NS = 512, 15625
"""Cookies that are given at once, and one more in such a time."""
POLLS, POLL_NS, POLLED = 16, MS // 2, 32
"""The socket of strangers is read so often at once, once more in such a time, so much of it."""
SO_RCVBUFFORCE = 33
PATIENCE_NS = 20 * 10**9


class Door:
    """A data path without functions, and strangers at several addresses."""

    def __init__(self, secret):
        self.secret = secret
        self.udp = self._socket()
        self.udp.bind(("0.0.0.0", 0))
        self.theirs = self._socket()
        """As if the kernel steered to it: what is sent here."""
        self.theirs.bind(("0.0.0.0", 0))
        self.events = [os.eventfd(0, os.EFD_NONBLOCK) for _ in "12"]
        self.landing = LandingPool(1 << 20, lambda: 1 << 40)
        self.path = DataPath(
            *(self.udp.fileno(), *self.events, self.landing),
            spin_us=0,
            strangers=self.theirs.fileno(),
        )
        self.strangers = []

    @staticmethod
    def _socket():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        return made

    def stranger(self, host="127.0.0.1"):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        made.bind((host, 0))
        self.strangers.append(made)
        return made

    def say(self, stranger, message, to=None):
        stranger.sendto(message, ("127.0.0.1", (to or self.udp).getsockname()[1]))

    def run(self, time_ns=20 * MS):
        return self.path.run(time.monotonic_ns() + time_ns)

    def cookie(self, stranger):
        """One that is good there."""
        hello = Hello(secrets.token_bytes(16), "m")
        self.say(stranger, hello.message(None))
        assert self.run() == []
        answer = stranger.recv(1 << 16)
        return parse_cookie(answer[HEADER_BYTES:], hello.nonce)

    def close(self):
        self.path.close()
        self.landing.close()
        for each in (self.udp, self.theirs, *self.strangers):
            each.close()
        for event in self.events:
            os.close(event)


@pytest.fixture
def make_door(built, monkeypatch):
    made = []

    def make(secret=b"a secret of 16 b"):
        monkeypatch.setattr(data_paths.secrets, "token_bytes", lambda _: secret)
        made.append(Door(secret))
        monkeypatch.undo()
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def door(make_door):
    return make_door()


def hello(cookie=bytes(16), nonce=None):
    return Hello(nonce or secrets.token_bytes(16), "m", cookie=cookie).message(None)


def address_of(stranger):
    """How the kernel's bytes of it begin."""
    host, port = stranger.getsockname()
    raw = socket.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big")
    return raw + socket.inet_aton(host)


def cookie_of(secret, peer, age_ns):
    """As the data path makes it."""
    at = (time.monotonic_ns() - age_ns + siphash24(secret, b"")) % (1 << 64)
    said = at.to_bytes(8, "little")
    return said + siphash24(secret, peer + said).to_bytes(8, "little")


def test_who_has_no_cookie_gets_one_and_nothing_is_handed_on(door):
    stranger, nonce = door.stranger(), secrets.token_bytes(16)
    question = hello(nonce=nonce)
    door.say(stranger, question)
    assert door.run() == []
    answer = stranger.recv(1 << 16)
    header = parse(answer)
    assert (header.type, header.status) == (MessageType.HELLO_ACK, WireStatus.COOKIE)
    assert header.session == 0 and len(answer) < len(question)
    door.say(stranger, hello(parse_cookie(answer[HEADER_BYTES:], nonce), nonce))
    [(peer, _, trip_ns, message)] = door.run()
    assert peer.startswith(address_of(stranger)) and message[64:80] == nonce
    assert 0 < trip_ns < COOKIE_NS


def test_a_cookie_may_be_used_again_while_it_is_good(door):
    stranger = door.stranger()
    cookie = door.cookie(stranger)
    for _ in range(3):
        door.say(stranger, hello(cookie))
        assert len(door.run()) == 1


@pytest.mark.parametrize(
    ("age_ns", "good"),
    [(MS, True), (COOKIE_NS - 5 * 10**9, True), (COOKIE_NS + MS, False), (-(10**9), False)],
)
def test_a_cookie_is_good_for_a_while(door, age_ns, good):
    stranger = door.stranger()
    door.say(stranger, hello(door.cookie(stranger)))
    [(peer, *_)] = door.run()
    door.say(stranger, hello(cookie_of(door.secret, peer, age_ns)))
    assert len(door.run()) == good
    if not good:
        assert parse(stranger.recv(1 << 16)).status == WireStatus.COOKIE


def test_a_cookie_is_of_one_address_and_one_server(door, make_door):
    one, neighbour, far = door.stranger(), door.stranger(), door.stranger("127.0.0.2")
    cookie = door.cookie(one)
    other = make_door(b"another secret..")
    for there, who in ((door, neighbour), (door, far), (other, one)):
        there.say(who, hello(cookie))
        assert there.run() == []
        assert parse(who.recv(1 << 16)).status == WireStatus.COOKIE
    for at in range(16):
        wrong = cookie[:at] + bytes([cookie[at] ^ 1]) + cookie[at + 1 :]
        door.say(one, hello(wrong))
        assert door.run() == [], at


@pytest.mark.parametrize("size", [0, 1, Hello.BYTES - 1, Hello.BYTES + 1, 1400])
def test_what_is_no_hello_is_not_answered(door, size):
    stranger = door.stranger()
    door.say(stranger, Header(type=MessageType.HELLO, length=size).pack() + bytes(size))
    assert door.run() == []
    assert door.path.stats()["drop_length"] == 1
    with pytest.raises(BlockingIOError):
        stranger.recv(1 << 16)


def test_one_address_cannot_take_all_places(door):
    greedy, modest = door.stranger("127.0.0.2"), door.stranger("127.0.0.3")
    cookies = door.cookie(greedy), door.cookie(modest)
    for _ in range(HELLOS + 4):
        door.say(greedy, hello(cookies[0]))
    for _ in range(3):
        door.say(modest, hello(cookies[1]))
    handed = [peer[:8] for peer, *_ in door.run()]
    assert len(handed) == HELLOS
    assert handed.count(address_of(modest)) == 3


def test_an_address_is_heard_so_often_and_no_more(door):
    greedy, modest = door.stranger("127.0.0.2"), door.stranger("127.0.0.3")
    cookies = door.cookie(greedy), door.cookie(modest)
    begun, handed = time.monotonic_ns(), 0
    for _ in range(5 * BURST // HELLOS):
        for _ in range(HELLOS):
            door.say(greedy, hello(cookies[0]))
        handed += len(door.run(MS))
    passed_ms = (time.monotonic_ns() - begun) / MS
    assert BURST <= handed <= BURST + passed_ms + 2
    door.say(modest, hello(cookies[1]))
    assert [peer[:8] for peer, *_ in door.run()] == [address_of(modest)]


def cookies(stranger):
    """So many have come."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while stranger.recv(1 << 16):
            count += 1
    return count


def flood(door, stranger, to, said):
    """How many of so many hellos got a cookie, how many none, and how long reading them took."""
    before = door.path.stats()
    for _ in range(said):
        door.say(stranger, hello(), to)
    began, given = time.monotonic_ns(), 0
    while (stats := door.path.stats())["hellos"] < before["hellos"] + said:
        assert time.monotonic_ns() < began + PATIENCE_NS
        door.run()
        given += cookies(stranger)
    took = time.monotonic_ns() - began
    given += cookies(stranger)
    return given, stats["hellos_unanswered"] - before["hellos_unanswered"], took


@pytest.mark.parametrize("by", ["udp", "theirs"])
def test_only_so_many_cookies_are_given_in_a_time_and_the_others_are_counted(door, by):
    stranger, said = door.stranger(), 3000
    stranger.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    most = said
    while most >= said:  # a busy machine may have had time for all: once more
        given, unanswered, took = flood(door, stranger, getattr(door, by), said)
        most = COOKIES + 1 + took // EACH_NS
        assert given + unanswered == said
        assert 0 < given <= most
        if by == "theirs":  # not read at once
            return
    assert unanswered


def test_the_socket_of_strangers_is_read_so_often_and_the_other_one_is_not_kept_waiting(door):
    stranger, said = door.stranger(), 100 * POLLED
    for _ in range(said):
        door.say(stranger, hello(), door.theirs)
    began = time.monotonic_ns()
    seen = 0
    while seen < said and time.monotonic_ns() < began + PATIENCE_NS:
        door.say(stranger, b"not theirs".ljust(64), door.udp)
        door.run(time_ns=MS)
        stats = door.path.stats()
        seen = stats["hellos"]
        polls = POLLS + 1 + (time.monotonic_ns() - began) // POLL_NS
        assert seen <= polls * POLLED
    assert seen == said and stats["hello_overflows"] == 0
    # Then it is asleep until somebody says something, and hears him.
    cookies(stranger)
    assert door.run() == []
    sleeps = door.path.stats()["sleeps"]
    door.run(time_ns=20 * MS)
    assert door.path.stats()["sleeps"] - sleeps <= 2
    door.say(stranger, hello(), door.theirs)
    door.run()
    assert cookies(stranger) == 1


def test_who_has_a_cookie_is_heard_by_the_socket_of_strangers(door):
    stranger = door.stranger()
    cookie = door.cookie(stranger)
    door.say(stranger, hello(cookie), door.theirs)
    [(peer, *_)] = door.run()
    assert peer.startswith(address_of(stranger))
