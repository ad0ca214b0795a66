"""The client's core by tables, and against the server's core over a network that loses."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.client_core import MOST_REST_NS, RETRY_NS, ClientCore
from oracle.client_state import (
    FIRST_RTO_NS,
    LEAST_RTO_NS,
    MOST_PATIENCE_NS,
    STREAM_RTO_NS,
    Landing,
    Refused,
)
from oracle.core import Hello, Place, Ready, Send
from oracle.sessions import CallState, Session, keys_of
from shunter.nic_frontend.client.exchange import SILENCE_NS
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.layout import HEADER_BYTES, WINDOW, Flags, MessageType, WireStatus
from shunter.nic_frontend.wire.segments import SegmentPlan

MS = 1_000_000
FUNC, SESSION = 5, 0xBEEF0001
PEER = bytes([2, 0, 0, 9]).ljust(64, b"\0")
KEY = bytes(range(16))
INPUTS, OUTPUTS, SEGMENT = (10, 3), (6,), 4


def make(grant=4, key=None, stream=False):
    plans = SegmentPlan(INPUTS, SEGMENT), SegmentPlan(OUTPUTS, SEGMENT)
    return ClientCore(SESSION, FUNC, keys_of(key), *plans, grant, stream)


def say(client, kind, req_id=1, now=0, payload=b"", **more):
    """Let the client receive a datagram of the server."""
    fields = {"type": kind, "req_id": req_id, "session": SESSION, "func_id": FUNC, "credit": 4}
    header = Header(**{**fields, "length": len(payload), **more})
    return client.receive(header.pack(), HEADER_BYTES + header.length, now, lambda: payload)


def answer(client, seq, req_id=1, now=0, **more):
    segment = SegmentPlan(OUTPUTS, SEGMENT).place(seq)
    fields = {"seq": seq, "count": 2, "total": 6, "status": 200, "length": segment.length}
    fields |= {"offset": segment.offset, "tensor": segment.tensor}
    return say(client, MessageType.RESP, req_id, now, **{**fields, **more})


def headers(outgoing):
    return [parse(each.header, HEADER_BYTES + length_of(each.header)) for each in outgoing]


def length_of(header):
    return int.from_bytes(header[22:24], "little")


# ---- requests


def test_a_request_is_its_segments():
    req_id, sent = make().begin(0, deadline_us=7, priority=1, idempotent=True)
    assert req_id == 1
    found = [(h.seq, h.tensor, h.offset, h.length, h.total) for h in headers(sent)]
    assert found == [(0, 0, 0, 4, 10), (1, 0, 4, 4, 10), (2, 0, 8, 2, 10), (3, 1, 0, 3, 3)]
    for header in headers(sent):
        assert (header.type, header.count, header.session) == (MessageType.REQ, 4, SESSION)
        assert (header.deadline_us, header.priority, header.credit) == (7, 1, 1)
    idempotent = Flags.IDEMPOTENT
    assert [h.flags for h in headers(sent)] == [idempotent] * 3 + [idempotent | Flags.LAST]
    assert [h.pkt_no for h in headers(sent)] == [1, 2, 3, 4]


def test_credit_says_how_many_may_be_sent():
    client = make(grant=2)
    for _ in range(2):
        assert client.may_begin
        client.begin(0)
    assert not client.may_begin
    say(client, MessageType.CREDIT, 0, credit=3)
    assert client.may_begin
    say(client, MessageType.CREDIT, 0, credit=1)  # an old one
    assert client.may_begin


def test_what_is_done_is_told_with_the_next_datagram():
    client = make(grant=9)
    for _ in range(4):
        client.begin(0)
    for req_id in (1, 2, 4):
        for seq in range(2):
            answer(client, seq, req_id)
    assert headers([client.ask_for_credit()])[0].credit == 3
    client.cancel(3)
    assert headers(client.begin(0)[1])[0].credit == 5


# ---- answers


def test_an_answer_lands_in_any_order_and_once():
    client = make()
    client.begin(0)
    assert [s.offset for _, s in client.expected()] == [0, 4]
    found, _ = answer(client, 1)
    assert isinstance(found, Landing) and not found.is_last and found.segment.offset == 4
    assert answer(client, 1) == (None, [])
    assert [s.offset for _, s in client.expected()] == [0]
    found, _ = answer(client, 0)
    assert found.is_last and found.segment.offset == 0
    assert answer(client, 0) == (None, [])
    assert client.pending == {} and list(client.expected()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 2}, {"count": 1}, {"count": 3}, {"length": 3}, {"offset": 4}, {"tensor": 1},
        {"total": 7}, {"session": 1}, {"req_id": 2}, {"req_id": 0}, {"magic": 0}, {"tag": 1},
        {"version": 1}, {"type": MessageType.REQ}, {"type": MessageType.HELLO_ACK},
    ],
)  # fmt: skip
def test_what_is_no_answer_means_nothing(changes):
    client = make()
    client.begin(0)
    header = {"type": MessageType.RESP, "req_id": 1, "session": SESSION, "count": 2, "length": 4}
    wrong = Header(**{**header, "total": 6, "status": 200, **changes}).pack()
    assert client.receive(wrong, HEADER_BYTES + length_of(wrong), 0, bytes) == (None, [])
    assert len(list(client.expected())) == 2


def test_with_a_key_only_tagged_answers_count():
    client = make(key=KEY)
    client.begin(0)
    assert answer(client, 0) == (None, [])
    header = Header(
        type=MessageType.ERROR, req_id=1, session=SESSION, func_id=FUNC, status=500, credit=4
    )
    theirs = client.keys.tag_to_client
    for key, expected in ((bytes(16), None), (KEY, None), (theirs, Refused(1, 500))):
        assert client.receive(header.pack(key), HEADER_BYTES, 0, bytes)[0] == expected


def test_an_error_ends_a_request():
    client = make()
    client.begin(0)
    assert say(client, MessageType.ERROR, status=500) == (Refused(1, 500), [])
    assert say(client, MessageType.ERROR, status=500) == (None, [])


# ---- time


def test_a_late_answer_is_asked_for_without_sending_anything_again():
    client = make()
    client.begin(0)
    assert client.tick(FIRST_RTO_NS - 1) == []
    [asked] = client.tick(FIRST_RTO_NS)
    [header] = headers([asked])
    assert (header.type, header.req_id, header.flags) == (MessageType.QUERY, 1, Flags.ACK_REQ)
    assert asked.segment is None and asked.payload == b"\0"
    assert client.tick(2 * FIRST_RTO_NS) == []  # twice as patient
    assert len(client.tick(3 * FIRST_RTO_NS)) == 1
    assert client.lost == 0


def test_what_the_server_lacks_is_sent_again():
    client = make()
    client.begin(0)
    _, again = say(client, MessageType.SACK, payload=b"\x09", status=CallState.RECEIVING)
    assert [h.seq for h in headers(again)] == [1, 2]
    assert [h.pkt_no for h in headers(again)] == [5, 6]
    assert client.lost == 2


@pytest.mark.parametrize("state", [CallState.RX_COMPLETE, CallState.RUNNING])
def test_a_server_that_has_it_is_asked_ever_more_seldom(state):
    client, asked = make(), []
    client.begin(0)
    for now in range(0, 2000 * MS, MS):
        if client.tick(now):
            asked.append(now // MS)
            say(client, MessageType.SACK, payload=b"\x0f", status=state, now=now)
    assert asked == [20, 40, 80, 160, 320, 640, 1040, 1440, 1840]
    assert MOST_REST_NS < SILENCE_NS


def test_segments_of_an_answer_that_lack_are_named():
    client = make()
    client.begin(0)
    answer(client, 1)
    [asked] = client.tick(FIRST_RTO_NS)
    [header] = headers([asked])
    assert (header.type, header.req_id, asked.payload) == (MessageType.QUERY, 1, b"\2")
    assert header.flags == Flags.ACK_REQ


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_without_room_is_asked_again(stream):
    client = make(stream=stream)
    client.begin(0)
    assert say(client, MessageType.ERROR, status=WireStatus.RETRY_LATER) == (None, [])
    assert [h.type for h in headers(client.tick(RETRY_NS))] == [MessageType.QUERY]
    _, again = say(client, MessageType.SACK, status=CallState.RECEIVING)
    assert [h.seq for h in headers(again)] == [0, 1, 2, 3]


def test_who_was_refused_asks_at_once_when_it_hears_of_room():
    client = make()
    client.begin(0)
    say(client, MessageType.ERROR, status=WireStatus.RETRY_LATER)
    assert say(client, MessageType.CREDIT, req_id=0) == (None, [])
    _, again = say(client, MessageType.CREDIT, now=MS)
    assert [(h.type, h.req_id, h.seq) for h in headers(again)] == [
        (MessageType.REQ, 1, seq) for seq in range(4)
    ]
    assert client.tick(RETRY_NS) == []


def asked(client, now):
    return [h.req_id for h in headers(client.tick(now))]


def test_of_those_that_were_refused_the_oldest_is_asked_about_and_more_when_there_is_room():
    client = make(grant=9)
    for req_id in range(1, 10):
        client.begin(0)
        say(client, MessageType.ERROR, req_id, status=WireStatus.RETRY_LATER)
    assert asked(client, RETRY_NS) == [1]
    say(client, MessageType.ERROR, 1, RETRY_NS, status=WireStatus.RETRY_LATER)
    assert asked(client, 2 * RETRY_NS) == [1]
    say(client, MessageType.CREDIT, 1, 3 * RETRY_NS)
    assert asked(client, 3 * RETRY_NS) == [2, 3]
    for req_id in (2, 3):
        say(client, MessageType.SACK, req_id, 3 * RETRY_NS, status=CallState.RECEIVING)
    assert asked(client, 3 * RETRY_NS) == [4, 5, 6, 7, 8, 9]
    for req_id in (4, 5):
        say(client, MessageType.ERROR, req_id, 3 * RETRY_NS, status=WireStatus.RETRY_LATER)
    client.cancel(4)
    for req_id in (1, 2, 3, 6, 7, 8, 9):
        answer(client, 0, req_id, 3 * RETRY_NS)
        answer(client, 1, req_id, 3 * RETRY_NS)
    assert asked(client, 4 * RETRY_NS) == [5]


def test_what_is_refused_until_after_its_deadline_is_overdue_once_nothing_can_be_on_its_way():
    client = make()
    for deadline_us in (40_000, 40_000, 0):
        client.begin(0, deadline_us=deadline_us)
    for req_id in (1, 3):
        say(client, MessageType.ERROR, req_id, status=WireStatus.RETRY_LATER)
    late = 40 * MS + FIRST_RTO_NS
    assert client.overdue(late) == [] and client.overdue(late + 1) == [1]
    say(client, MessageType.SACK, now=late, status=CallState.RECEIVING)
    assert client.overdue(late + 1) == []


def test_an_answer_whose_room_others_want_is_acknowledged_when_it_is_complete():
    client = make()
    client.begin(0)
    client.begin(0)
    [said] = headers(answer(client, 0, flags=Flags.ACK_REQ)[1])  # the server sends the rest then
    assert (said.type, said.req_id, said.flags, said.length) == (MessageType.QUERY, 1, 0, 1)
    [said] = headers(answer(client, 1, flags=Flags.ACK_REQ | Flags.LAST)[1])
    assert (said.type, said.credit, said.flags) == (MessageType.ACK, 2, 0)
    answer(client, 0, req_id=2)
    assert answer(client, 1, req_id=2)[1] == []


def test_no_more_are_begun_than_have_a_place():
    client = make(grant=2 * WINDOW)
    for _ in range(WINDOW):
        client.begin(0)
    assert not client.may_begin
    for seq in (0, 1):
        answer(client, seq, credit=2 * WINDOW)
    assert client.may_begin


def test_that_there_is_no_such_session_is_noted_and_nothing_else():
    client = make(key=KEY)
    client.begin(0)
    unknown = Header(
        type=MessageType.ERROR, req_id=1, session=SESSION, status=WireStatus.UNKNOWN_SESSION
    )
    nothing = None, []
    assert client.receive(unknown._replace(session=6).pack(), 64, 5, bytes) == nothing
    assert client.unknown_ns == 0
    assert client.receive(unknown.pack(), 64, 5, bytes) == nothing
    assert (client.unknown_ns, client.heard_ns, list(client.pending)) == (5, 0, [1])


def test_on_a_stream_the_server_is_asked_seldom():
    client = make(stream=True)
    client.begin(0)
    assert client.tick(STREAM_RTO_NS - 1) == []
    assert len(client.tick(STREAM_RTO_NS)) == 1
    say(client, MessageType.SACK, status=CallState.TX_COMPLETE, now=STREAM_RTO_NS)
    assert client.tick(2 * STREAM_RTO_NS - 1) == []
    assert len(client.tick(2 * STREAM_RTO_NS)) == 1


def test_patience_follows_the_round_trip():
    client = make(grant=99)
    for number in range(1, 60):
        req_id, _ = client.begin(number * 100 * MS)
        for seq in range(2):
            answer(client, seq, req_id, now=number * 100 * MS + 40 * MS, credit=99)
    assert 40 * MS <= client._rto() <= 60 * MS
    assert make()._rto() == FIRST_RTO_NS
    client.srtt_ns, client.rttvar_ns = 1.0, 0.0
    assert client._rto() == LEAST_RTO_NS
    client.srtt_ns = 1e9
    assert client._rto() == MOST_PATIENCE_NS
    client.trip_ns = 150 * MS  # over a long way
    assert client._rto() == 450 * MS
    client.srtt_ns = 0
    assert client._rto() == 450 * MS


def run(client, number, takes, ask=True):
    """A request whose answer takes so long, and a server that is there; questions meanwhile."""
    begun, asked = number * 10_000 * MS, []
    req_id, _ = client.begin(begun)
    for now in range(begun, begun + takes, MS // 4):
        for each in headers(client.tick(now)):
            asked.append(each)
            if ask:
                say(client, MessageType.SACK, req_id, now + 50_000, status=3, credit=99)
    for seq in range(2):
        answer(client, seq, req_id, now=begun + takes, credit=99)
    return asked


@pytest.mark.parametrize("takes_ms", [30, 60, 90])
def test_a_slow_model_is_measured_although_it_was_asked_about(takes_ms):
    client = make(grant=99)
    asked = [run(client, number, takes_ms * MS) for number in range(1, 30)]
    assert asked[0] and asked[5:] == [[]] * 24
    assert abs(client.srtt_ns - takes_ms * MS) < MS
    assert client.trip_ns == 50_000 and client.lost == 0


def test_an_answer_that_a_question_may_have_called_forth_measures_nothing():
    client = make(grant=99)
    run(client, 1, 5 * MS)
    for number in range(2, 5):
        assert run(client, number, 60 * MS, ask=False)
    assert client.srtt_ns == 5 * MS


def test_what_was_sent_again_measures_nothing():
    client = make()
    client.begin(0)
    client.tick(FIRST_RTO_NS)
    say(client, MessageType.SACK, status=CallState.RECEIVING, now=21 * MS)
    say(client, MessageType.SACK, status=CallState.RUNNING, now=22 * MS)
    for seq in range(2):
        answer(client, seq, now=30 * MS)
    assert client.srtt_ns == 0 and client.pending == {}


def test_a_deadline_is_what_is_left_of_it():
    client = make()
    client.begin(0, deadline_us=50_000)
    for now, left in ((30 * MS, 20_000), (900 * MS, 1)):
        _, again = say(client, MessageType.SACK, status=CallState.RECEIVING, now=now)
        assert {h.deadline_us for h in headers(again)} == {left}


# ---- both cores, and a network between them


class World:
    """A client, a server with workers, and a network that loses, doubles and reorders."""

    def __init__(self, core, seed, key):
        self.random = random.Random(seed)
        self.core, self.client = core, make(grant=0, key=key)
        core.add_function(FUNC, INPUTS, OUTPUTS, 3)
        window = self.random.randrange(1, 5)
        core.add_session(Session(SESSION, FUNC, PEER, SEGMENT, window, keys_of(key)), 0)
        self.client.grant = core.grant(SESSION)
        self.key, self.now = key, 0
        self.to_server, self.to_client = [], []
        self.memory = {}
        self.ready, self.ran = [], []
        self.wanted = [bytes(self.random.randbytes(13)) for _ in range(12)]
        self.sent, self.found, self.ended = {}, {}, []

    # the client

    def begin(self):
        while self.client.may_begin and len(self.sent) < len(self.wanted):
            req_id, datagrams = self.client.begin(self.now)
            self.sent[req_id] = self.wanted[len(self.sent)]
            self.found[req_id] = bytearray(6)
            self.post(datagrams)
        if not self.client.pending and len(self.sent) < len(self.wanted):
            self.post([self.client.ask_for_credit()])

    def post(self, datagrams):
        for each in datagrams:
            payload = each.payload
            if each.segment is not None:
                at = each.segment.offset + (10 if each.segment.tensor else 0)
                payload = self.sent[each.req_id][at : at + each.segment.length]
            self.to_server.append(each.header + payload)

    def client_takes(self, datagram):
        found, answers = self.client.receive(
            bytearray(datagram[:64]), len(datagram), self.now, lambda: datagram[64:]
        )
        self.post(answers)
        if isinstance(found, Landing):
            begin = found.segment.offset
            self.found[found.req_id][begin : begin + found.segment.length] = datagram[64:]
            if found.is_last:
                self.ended.append(found.req_id)
        assert not isinstance(found, Refused), found

    # the server

    def server_takes(self, datagram):
        actions = self.core.receive(PEER, datagram, self.now)
        for action in actions:
            if isinstance(action, Place):
                entry = self.memory.setdefault(action.entry, bytearray(13))
                at = action.offset + (10 if action.tensor else 0)
                entry[at : at + action.length] = datagram[64:]
                self.act(self.core.accept(datagram, self.now))
        self.act(actions)

    def act(self, actions):
        for action in actions:
            assert not isinstance(action, Hello)
            if isinstance(action, Ready):
                self.ready.append(action.entry)
            elif isinstance(action, Send):
                payload = action.payload
                if action.entry >= 0:
                    length = length_of(action.header)
                    output = self.output(action.entry)
                    payload = output[action.offset : action.offset + length]
                self.to_client.append(action.header + payload)

    def output(self, entry):
        data = self.memory[entry]
        return bytes(a ^ b for a, b in zip(data[:6], data[7:], strict=True))

    def work(self):
        if not self.ready:
            return
        entry = self.ready.pop(self.random.randrange(len(self.ready)))
        whom = self.core.running(FUNC, entry, self.now)
        self.ran.append(whom.req_id)
        sent = self.random.random() < 0.5
        if sent:
            self.worker_answers(entry, whom)
        self.act(self.core.finished(FUNC, entry, 200, self.now, sent=sent))

    def worker_answers(self, entry, whom):
        plan = SegmentPlan(OUTPUTS, whom.segment)
        for seq in range(plan.count):
            part = plan.place(seq)
            header = Header(
                type=MessageType.RESP, req_id=whom.req_id, func_id=FUNC, seq=seq,
                count=plan.count, length=part.length, total=6, offset=part.offset,
                session=whom.session, credit=whom.credit, status=200, pkt_no=whom.pkt_no + seq,
            )  # fmt: skip
            payload = self.output(entry)[part.offset : part.offset + part.length]
            self.to_client.append(header.pack(whom.key) + payload)

    # the network

    def deliver(self, queue, take, chaos):
        if not queue:
            return
        at = self.random.randrange(len(queue)) if chaos else 0
        datagram = queue[at]
        fate = self.random.random() if chaos else 1
        if fate > 0.15:  # below, it comes once more
            queue.pop(at)
        if fate > 0.35 or fate < 0.15:
            take(datagram)

    def step(self, chaos):
        self.begin()
        for _ in range(self.random.randrange(1, 6)):
            self.deliver(self.to_server, self.server_takes, chaos)
            self.deliver(self.to_client, self.client_takes, chaos)
        self.work()
        self.now += self.random.choice([0, 100_000, 2 * MS])
        self.post(self.client.tick(self.now))
        self.act(self.core.tick(self.now))


@pytest.mark.parametrize("takes_ms", [0, 5, 50, 500])
def test_where_nothing_is_lost_nothing_is_sent_again(both, takes_ms):
    for core in both():
        world, came = World(core, 3, None), []
        while len(world.ended) < len(world.wanted):
            world.begin()
            while world.to_server or world.to_client:
                for datagram in world.to_server:
                    came.append((parse(datagram).req_id, parse(datagram).seq, datagram[3]))
                for queue, take in (
                    (world.to_server, world.server_takes), (world.to_client, world.client_takes)
                ):  # fmt: skip
                    while queue:
                        world.now += MS // 100
                        take(queue.pop(0))
            world.now += MS
            if world.now % (max(1, takes_ms) * MS) < MS:
                world.work()
            world.post(world.client.tick(world.now))
            world.act(core.tick(world.now))
        requests = [each for each in came if each[2] == MessageType.REQ]
        assert len(requests) == len(set(requests)) == 4 * len(world.wanted)
        assert len(came) < len(requests) + len(world.wanted) * (3 + takes_ms // 30)
        assert world.client.lost == 0


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_every_request_is_answered_once_and_runs_once(both, key, seed):
    for core in both():
        world = World(core, seed, key)
        for _ in range(150):
            world.step(chaos=True)
        for _ in range(5000):
            if len(world.ended) == len(world.wanted):
                break
            world.step(chaos=False)
        ids = list(range(1, len(world.wanted) + 1))
        assert sorted(world.ended) == ids and sorted(world.ran) == ids
        for req_id, sent in world.sent.items():
            expected = bytes(a ^ b for a, b in zip(sent[:6], sent[7:], strict=True))
            assert bytes(world.found[req_id]) == expected
        assert world.client.pending == {}
        # Told that everything is done, the server keeps nothing.
        world.to_server = [each.header for each in world.client.farewell()]
        world.deliver(world.to_server, world.server_takes, chaos=False)
        assert core.free_entries(FUNC) == 3
