"""What of requests goes when: the client in C against a server played by hand."""

import contextlib
import socket
import time

import numpy as np
import pytest

from shunter.nic_frontend.client.native_client import NativeClient
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.layout import SACK_RECEIVING, Flags, MessageType, WireStatus

SEGMENT, COUNT = 1000, 60
FAR_NS, NEAR_NS, BUSY_NS = 40_000_000, 100_000, 5_000_000
"""Ways to a server: the last is on this host, whose processes wait for one another."""
FIRST = 10
"""Segments that may be on their way to a server that is not near."""
LONG_S = 30


class Server:
    """The other end of a session."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(LONG_S)

    def meet(self, connection):
        connection.connect(self.socket.getsockname())
        self.socket.connect(connection.getsockname())

    def take(self):
        """Headers of what has come."""
        found = []
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(parse(self.socket.recv(1 << 16)))
        self.socket.settimeout(LONG_S)
        return found

    def say(self, kind, status, payload=b"", req_id=1, **more):
        header = Header(
            type=kind,
            req_id=req_id,
            session=9,
            length=len(payload),
            credit=8,
            status=status,
            **more,
        )
        self.socket.send(header.pack() + payload)

    def sack(self, *have, status=SACK_RECEIVING, req_id=1):
        bits = sum(1 << seq for seq in have).to_bytes(-(-COUNT // 8), "little")
        self.say(MessageType.SACK, status, bits, req_id)

    def answer(self, req_id=1):
        more = {"count": 1, "total": 4, "flags": int(Flags.LAST)}
        self.say(MessageType.RESP, WireStatus.OK, b"done", req_id, **more)


@pytest.fixture
def make(built):
    """Makes a client so far from the server, and the server."""
    with contextlib.ExitStack() as stack:

        def make(trip_ns, **more):
            server = Server()
            stack.enter_context(server.socket)
            connection = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            connection.setblocking(False)
            server.meet(connection)
            sizes = [SEGMENT * COUNT], [4]
            numbers = connection.fileno(), 9, 3, *sizes, SEGMENT, 8
            client = NativeClient(*numbers, trip_ns=trip_ns, gso=False, **more)
            stack.callback(client.close)
            return client, server

        yield make


INPUT, OUTPUT = np.arange(SEGMENT * COUNT, dtype=np.uint8), np.zeros(4, np.uint8)


def begin(client):
    return client.begin([INPUT.ctypes.data], [OUTPUT.ctypes.data], 0, 0, False)


def poll(client, seconds=0.0):
    return client.poll(time.monotonic_ns() + int(seconds * 1e9))


def seqs(headers):
    return [header.seq for header in headers if header.type == MessageType.REQ]


def until_more(client, server):
    """What comes next of the requests."""
    found = []
    while not seqs(found):
        poll(client, 0.001)
        found = server.take()
    return found


@pytest.mark.parametrize("trip_ns", [0, NEAR_NS, BUSY_NS])
def test_to_a_server_that_is_near_all_of_a_request_goes_at_once(make, trip_ns):
    client, server = make(trip_ns)
    begin(client)
    sent = server.take()
    assert seqs(sent) == list(range(COUNT))
    assert not any(header.flags & Flags.ACK_REQ for header in sent)
    for _ in range(4):
        begin(client)
        assert seqs(server.take()) == list(range(COUNT))


def test_to_another_it_goes_in_parts_that_ask_to_be_acknowledged(make):
    client, server = make(FAR_NS)
    begin(client)
    sent = server.take()
    assert seqs(sent) == list(range(FIRST))
    asks = [header.seq for header in sent if header.flags & Flags.ACK_REQ]
    assert asks[-1] == FIRST - 1 and len(asks) >= FIRST // 2
    begin(client)
    assert seqs(server.take()) == [], "the window is full"
    have = set(range(FIRST))
    while len(have) < COUNT:
        server.sack(*have)
        came = until_more(client, server)
        new = [header.seq for header in came if header.req_id == 1]
        assert not have & set(new)
        have |= set(new)
    assert all(header.req_id == 1 or header.seq < COUNT // 2 for header in came)
    server.sack(*have, status=2)  # it is complete, and waits for a worker
    assert {header.req_id for header in until_more(client, server)} == {2}
    server.answer()
    assert poll(client, LONG_S) == [(1, WireStatus.OK)]


def test_what_is_lost_goes_again_and_what_may_be_on_its_way_does_not(make):
    client, server = make(10 * FAR_NS)  # so long nothing is lost by time, on a busy host neither
    begin(client)
    server.take()
    server.sack(1, 2)
    poll(client)
    assert 0 not in seqs(server.take()), "two later ones say nothing"
    server.sack(1, 2, 3, 4)
    again = [header for header in until_more(client, server) if header.seq == 0]
    assert again and again[0].flags & Flags.RETRANS
    server.sack(1, 2, 3, 4)
    poll(client)
    assert 0 not in seqs(server.take())
    assert client.numbers()["lost"] == 1


def test_to_a_server_that_has_answered_it_already_nothing_goes_again(make):
    client, server = make(NEAR_NS)
    begin(client)
    assert seqs(server.take()) == list(range(COUNT))
    time.sleep(0.01)  # longer than what is on its way should take
    server.say(MessageType.SACK, 4)  # the answer is there, so it says nothing of segments
    poll(client)
    assert seqs(server.take()) == [] and client.numbers()["lost"] == 0
    server.answer()
    assert poll(client, LONG_S) == [(1, WireStatus.OK)]


def test_a_server_that_has_forgotten_it_gets_all_of_it_again(make):
    client, server = make(FAR_NS)
    begin(client)
    server.take()
    have = range(5)
    server.sack(*have)
    poll(client)
    questions = []
    while not questions:
        poll(client, 0.01)
        questions = [each for each in server.take() if each.type == MessageType.QUERY]
    assert questions[0].flags & Flags.ACK_REQ
    server.say(MessageType.SACK, SACK_RECEIVING)  # it has nothing
    found = set()
    while not set(have) <= found:
        found |= set(seqs(until_more(client, server)))
        server.sack(*found)


def test_refused_it_stops_and_begins_again_when_there_is_room(make):
    client, server = make(FAR_NS)
    begin(client)
    server.take()
    server.say(MessageType.ERROR, WireStatus.RETRY_LATER)
    poll(client)
    assert seqs(server.take()) == []
    server.say(MessageType.CREDIT, 0)
    assert seqs(until_more(client, server))[0] == 0


def test_a_request_that_is_given_up_makes_room_for_others(make):
    client, server = make(FAR_NS)
    first = begin(client)
    server.take()
    begin(client)
    client.cancel(first)
    assert seqs(until_more(client, server))[0] == 0
