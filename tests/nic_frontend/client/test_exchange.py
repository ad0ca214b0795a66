"""The client's parts below the API: sockets, opening a session, and what a silent server means."""

import contextlib
import errno
import select
import socket
from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.client_session import ClientSession
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.client import Session, native_client
from shunter.nic_frontend.client import connection as connections
from shunter.nic_frontend.client import exchange as exchanges
from shunter.nic_frontend.client import session as sessions
from shunter.nic_frontend.client.exchange import (
    IDLE_NS,
    OPENING_NS,
    SILENCE_NS,
    Exchange,
)
from shunter.nic_frontend.client.hello_connection import HelloConnection
from shunter.nic_frontend.client.native_session import NativeSession
from shunter.nic_frontend.client.opening import FIRST_WAIT_NS, Opening, OpenSession
from shunter.nic_frontend.client.requests.call_queue import UNSERVED_NS
from shunter.nic_frontend.client.requests.calls import Options, Tensors
from shunter.nic_frontend.client.requests.errors import (
    AuthenticationError,
    BadRequestError,
    InferenceError,
    ServerError,
    TooLargeError,
    TooLateError,
    UnavailableError,
    UnreachableError,
    error_of,
)
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.hello import Hello, Opened, pack_cookie
from shunter.nic_frontend.wire.keys import (
    SharedKey,
    hello_ack_mac,
    hello_mac,
    session_keys,
)
from shunter.nic_frontend.wire.layout import HEADER_BYTES, Flags, MessageType, WireStatus

LONG = 30
MS = 1_000_000
ASKED_NS = 40 * MS
"""So long a silent server has to give a sign of life."""
RESP = int(MessageType.RESP)




def message(payload, kind=RESP):
    return Header(type=kind, length=len(payload)).pack() + payload


class Stream:
    """A session in C whose server says nothing."""

    stream, pending, may_begin, unknown_ns = True, 1, False, 0

    def __init__(self, heard_ns, kept):
        self.heard_ns, self.kept = heard_ns, kept

    def ask(self):
        pass

    close = ask


@pytest.mark.parametrize(
    ("heard_s", "busy_s", "kept", "is_lost"),
    [
        (0, 0, 0, True),
        (0, 2, 0, False),  # it was idle, and nobody asked
        (2, 0, 0, False),
        (0, 0, 1, False),  # it cannot be asked
    ],
)
def test_a_stream_whose_server_does_not_answer_is_given_up_though_calls_go_on(
    heard_s, busy_s, kept, is_lost
):
    exchange = over_a_stream(heard_s, kept)
    exchange._busy_since_ns = BEGAN_NS + busy_s * SECOND
    ticks(exchange, range(1, 12))
    assert (exchange.core is None) == is_lost


def test_a_thread_may_fork_while_another_makes_a_session(built, monkeypatch):
    class Owned:
        def add(self, made):
            made.leave_to_parent()  # as in a child that is forked at once

    monkeypatch.setattr(connections, "OWNED", Owned())
    assert Exchange("m", "", 64, None).core is None


BEGAN_NS, SECOND = 10**12, 10**9


def over_a_stream(heard_s=0, kept=0):
    """An exchange with a call that is under way since BEGAN_NS."""
    exchange = Exchange("m", "", 64, None)
    exchange.ticked_ns = exchange._busy_since_ns = BEGAN_NS
    exchange.core = Stream(BEGAN_NS + heard_s * SECOND, kept)
    specs = (TensorSpec("x", "float32", (1,)),)
    arrays = [np.zeros(1, np.float32)]
    exchange.running[1] = Tensors(specs, specs).call(arrays, Options(), BEGAN_NS, 60.0, None)
    return exchange


def ticks(exchange, seconds):
    for n in seconds:
        exchange.tick(BEGAN_NS + n * SECOND)


def test_the_time_that_a_request_takes_to_be_sent_is_no_silence():
    exchange = over_a_stream(kept=1)
    ticks(exchange, range(1, 14))
    exchange.core.kept = 0  # only now it can be asked
    ticks(exchange, range(14, 24))
    assert exchange.core is not None
    ticks(exchange, [24])
    assert exchange.core is None


def test_the_time_that_a_process_stood_still_is_no_silence():
    exchange = over_a_stream()
    ticks(exchange, [1, 13])
    assert exchange.core is not None, "nobody has asked meanwhile"
    ticks(exchange, range(14, 24))
    assert exchange.core is not None
    ticks(exchange, [24])
    assert exchange.core is None


# ---- connections without a session


def test_a_refused_hello_is_a_lost_connection():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(address)
        connection = HelloConnection(client)
        connection.say_hello(b"head")
        select.select([client], [], [], LONG)
        with pytest.raises(ConnectionRefusedError):
            connection.receive()


@given(
    st.lists(st.binary(max_size=50), max_size=8),
    st.lists(st.integers(1, 90), min_size=1, max_size=5),
)
def test_messages_come_out_of_a_stream_however_it_is_cut(payloads, cuts):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection, found = HelloConnection(ours), []
        whole = b"".join(map(message, payloads))
        at = turn = 0
        while at < len(whole):
            cut = cuts[turn % len(cuts)]
            theirs.sendall(whole[at : at + cut])
            at, turn = at + cut, turn + 1
            while got := connection.receive():
                found.append(got)
        assert found == [message(payload) for payload in payloads]


def test_what_is_behind_a_message_on_a_stream_stays_there():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(message(b"opened") + b"more")
        assert HelloConnection(ours).receive() == message(b"opened")
        assert ours.recv(100) == b"more"


def test_the_end_of_a_stream_is_a_lost_connection():
    ours, theirs = socket.socketpair()
    with ours:
        connection = HelloConnection(ours)
        theirs.close()
        with pytest.raises(ConnectionResetError):
            connection.receive()
        with pytest.raises(OSError, match="pipe"):
            connection.say_hello(message(b""))


def session_over(connection):
    """An open one, in C."""
    specs = (SPEC,)
    found = OpenSession(5, 7, specs, specs, 1000, 4, None, 0, 1)
    return NativeSession(found, connection, Tensors(specs, specs))


def test_a_port_that_refuses_for_a_moment_loses_no_session_and_no_datagram(built):
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again,
    ):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind(("127.0.0.1", 0))
            address = server.getsockname()
        client.connect(address)
        client.setblocking(False)
        found = session_over(client)
        for _ in range(3):  # each hears of the one before, and leaves all the same
            found.say_hello(b"head")
        again.bind(address)
        again.settimeout(LONG)
        found.say_hello(b"back")
        assert again.recv(100) == b"back"
        found.close()


def test_what_is_refused_twice_counts_as_lost(built):
    class Refuses(socket.socket):
        sent = 0

        def send(self, *_):
            self.sent += 1
            raise ConnectionRefusedError

    with Refuses(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        session = session_over(connection)
        session.say_hello(b"head")
        assert connection.sent == 2
        session.close()


# ---- opening

SPEC = TensorSpec("x", "uint8", (4,))
NONCE, COOKIE = bytes(16), bytes(range(16))


KEY = SharedKey("k", bytes(32))


def hello_ack(payload, status, session=0, mac=b""):
    header = Header(
        type=MessageType.HELLO_ACK,
        session=session,
        status=status,
        length=len(payload + mac),
        credit=4,
    )
    return header.pack() + payload + mac


def opened(nonce=NONCE, segment=1000, inputs=(SPEC,), mac=bytes(32)):
    return Opened(nonce, bytes(16), segment, 4, inputs, (SPEC,)).pack() + mac


def test_a_cookie_is_taken_to_the_server_at_once():
    opening = Opening(Hello(NONCE, "m"), None, stream=False)
    assert Hello.parse(opening.next(0)[HEADER_BYTES:]) == Hello(NONCE, "m")
    assert opening.next(1) is None
    assert opening.receive(hello_ack(pack_cookie(NONCE, COOKIE), WireStatus.COOKIE), 1) is None
    assert Hello.parse(opening.next(1)[HEADER_BYTES:]).cookie == COOKIE
    found = opening.receive(hello_ack(opened(), WireStatus.OK, 5), 2)
    assert (found.session, found.grant, found.inputs) == (5, 4, (SPEC,))


def test_hellos_are_said_again_ever_more_seldom_but_once_on_a_stream():
    opening = Opening(Hello(NONCE, "m"), None, stream=False)
    times = [t for t in range(0, 300 * FIRST_WAIT_NS, MS) if opening.next(t)]
    gaps = [(b - a) // MS for a, b in pairwise(times)]
    assert gaps[:5] == [50, 63, 79, 98, 123] and gaps[-1] == 1000
    opening = Opening(Hello(NONCE, "m"), None, stream=True)
    assert opening.next(0) and not opening.next(1 << 60)


@pytest.mark.parametrize(
    "datagram",
    [
        b"", bytes(64), Header(type=MessageType.CREDIT).pack(),
        hello_ack(opened(nonce=bytes(15) + b"1"), WireStatus.OK, 5),
        hello_ack(b"", WireStatus.OK, 5),
        hello_ack(opened()[:-33], WireStatus.OK, 5),
        hello_ack(pack_cookie(bytes(15) + b"1", COOKIE), WireStatus.COOKIE),
        hello_ack(NONCE, WireStatus.RETRY_LATER),
        hello_ack(bytes(15) + b"1", WireStatus.UNKNOWN_FUNCTION),
    ],
)  # fmt: skip
def test_what_is_no_answer_to_a_hello_means_nothing(datagram):
    opening = Opening(Hello(NONCE, "m"), None, stream=False)
    opening.next(0)
    assert opening.receive(datagram, 1) is None
    assert opening.next(FIRST_WAIT_NS - 1) is None


@pytest.mark.parametrize(
    ("key", "datagram", "error"),
    [
        (None, hello_ack(NONCE, WireStatus.UNKNOWN_FUNCTION), BadRequestError),
        (None, hello_ack(NONCE, WireStatus.BAD_REQUEST), BadRequestError),
        (None, hello_ack(NONCE + b"why", WireStatus.NO_WORKER), UnavailableError),
        (None, hello_ack(NONCE, WireStatus.MUST_ENCRYPT), AuthenticationError),
        (None, hello_ack(NONCE, WireStatus.UNAUTHORIZED), AuthenticationError),
        (None, hello_ack(NONCE + b"this model", WireStatus.FORBIDDEN), AuthenticationError),
        (None, hello_ack(NONCE, WireStatus.TOO_LARGE), TooLargeError),
        (None, hello_ack(opened(mac=b"m" * 32), WireStatus.OK, 5), AuthenticationError),
        (KEY, hello_ack(opened(), WireStatus.OK, 5), AuthenticationError),
        (KEY, hello_ack(opened(mac=b"m" * 32), WireStatus.OK, 5), AuthenticationError),
        (None, hello_ack(opened(segment=1, inputs=[TensorSpec("x", "uint8", (9999,))]), 200, 5),
         BadRequestError),
    ],
)  # fmt: skip
def test_a_server_that_refuses_is_believed(key, datagram, error):
    opening = Opening(Hello(NONCE, "m"), key, stream=False)
    with pytest.raises(error):
        opening.receive(datagram, 1)


def test_only_the_answer_of_who_has_the_key_opens_a_session():
    """Nobody on the way can change what the server says: not a byte of it."""
    opening = Opening(Hello(NONCE, "m"), KEY, stream=False)
    hello = opening.next(0)
    said = Hello.parse(hello[HEADER_BYTES:])
    assert said.key_id == "k" and hello[-32:] == hello_mac(KEY.secret, hello[:-32])
    plain = opened(mac=b"")
    keys = session_keys(KEY.secret, b"", hello[:-32], plain)
    head = hello_ack(plain + bytes(32), WireStatus.OK, 5)[:HEADER_BYTES]
    right = head + plain + hello_ack_mac(keys, head)
    for at in range(len(right)):
        for wrong in (right[at] ^ 1, right[at] ^ 0x80):
            data = right[:at] + bytes([wrong]) + right[at + 1 :]
            with contextlib.suppress(InferenceError):  # it is told that something is wrong
                assert opening.receive(data, 1) is None
    core = opening.receive(right, 1)
    assert core.keys == keys and core.session == 5


@pytest.mark.parametrize(("model", "version"), [("m" * 129, ""), ("m", "v" * 65), ("ü" * 65, "")])
def test_a_name_that_does_not_fit_is_refused(model, version):
    with pytest.raises(BadRequestError):
        Opening(Hello(NONCE, model, version), None, stream=False)


@pytest.mark.parametrize("status", [s for s in WireStatus if s != WireStatus.OK] + [599])
def test_every_status_has_an_exception(status):
    error = error_of(status)
    assert str(error)
    if isinstance(error, ServerError):
        assert error.status == status


# ---- silence, with a clock of our own


class Wire:
    """A socket that keeps what is sent, and what is to come."""

    type = socket.SOCK_DGRAM

    def __init__(self):
        self.sent, self.coming = [], deque()

    def send(self, datagram, _flags):
        self.sent.append(datagram)

    def recv(self, _length, _flags):
        if not self.coming:
            raise BlockingIOError
        return self.coming.popleft()

    def close(self):
        pass

    def take(self):
        sent, self.sent = self.sent, []
        return [(parse(each), each[HEADER_BYTES:]) for each in sent]


@pytest.fixture
def clock(built, monkeypatch):
    class Clock:
        now = 10**12

        def monotonic_ns(self):
            return self.now

    made = Clock()
    for module in (connections, exchanges):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(ClientSession, "clock", made)
    monkeypatch.setattr(connections, "NativeSession", ClientSession)
    return made


class Table:
    """An exchange, and a server played by hand."""

    def __init__(self, clock):
        self.clock, self.wire = clock, Wire()
        self.exchange = Exchange("m", "", 4, None)
        self.exchange.attach(self.wire, 1000)
        self.open(1)

    def open(self, session):
        self.hear(hello_ack(opened(self.nonce()), WireStatus.OK, session))

    def nonce(self):
        """Of the hellos that were said since."""
        [nonce] = {Hello.parse(p).nonce for h, p in self.wire.take() if h.type == 5}
        return nonce

    def hear(self, datagram):
        self.wire.coming.append(datagram)
        self.exchange.receive()

    def say(self, kind, **fields):
        core = self.exchange.core
        header = Header(type=kind, session=core.session, func_id=core.func_id, **fields)
        self.hear(header.pack())

    def submit(self, timeout_s=LONG, **options):
        array = np.zeros(4, np.uint8)
        call = self.exchange.tensors.call([array], Options(**options), self.clock.now, timeout_s)
        self.exchange.submit([call])
        return call

    def pass_time(self, ns, step=10 * MS):
        """Types of what was sent meanwhile."""
        for _ in range(ns // step):
            self.clock.now += step
            self.exchange.receive()
            self.exchange.tick(self.clock.now)

    def kinds(self):
        return {MessageType(header.type) for header, _ in self.wire.take()}


@pytest.fixture
def table(clock):
    made = Table(clock)
    yield made
    made.exchange.close()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_silent_server_is_said_hello_and_a_new_session_takes_over(table, idempotent):
    call = table.submit(idempotent=idempotent)
    assert table.kinds() == {MessageType.REQ}
    table.pass_time(SILENCE_NS)
    assert table.kinds() == {MessageType.QUERY}
    table.pass_time(20 * MS)
    assert table.kinds() == {MessageType.ACK}  # which goes unanswered, as do the next two
    table.pass_time(ASKED_NS)
    assert table.kinds() == {MessageType.HELLO, MessageType.ACK}
    table.pass_time(OPENING_NS // 5)  # another hello
    table.open(2)
    assert table.exchange.core.session == 2
    farewell, *sent = [header for header, _ in table.wire.take()]
    assert (farewell.session, farewell.type, farewell.flags) == (1, MessageType.ACK, Flags.LAST)
    if idempotent:
        assert not call.done and call.req_id == 1
        assert [(h.type, h.session) for h in sent] == [(MessageType.REQ, 2)]
    else:
        assert isinstance(call.error, ServerError)


def test_a_server_that_was_only_slow_keeps_its_session(table):
    call = table.submit()
    table.pass_time(SILENCE_NS + 20 * MS + ASKED_NS)
    table.say(MessageType.CREDIT, credit=4)  # it answers what came before the hello
    table.open(2)
    assert table.exchange.core.session == 1
    assert not call.done and table.exchange.running == {1: call}


def test_who_did_not_run_for_a_while_asks_before_it_doubts_the_server(table):
    call = table.submit()
    table.wire.take()
    table.clock.now += 20 * SILENCE_NS
    for answered in (True, False):
        table.exchange.tick(table.clock.now)
        assert table.kinds() <= {MessageType.ACK, MessageType.QUERY}
        if answered:
            table.say(MessageType.CREDIT, credit=4)
            table.clock.now += 2 * SILENCE_NS
    table.pass_time(ASKED_NS - 10 * MS)
    assert MessageType.HELLO not in table.kinds()
    table.pass_time(20 * MS)
    assert MessageType.HELLO in table.kinds()
    assert table.exchange.core.session == 1 and not call.done


def test_a_silent_server_is_doubted_too_where_all_wait_for_credit(table):
    for _ in range(5):
        table.submit(idempotent=True)
    for req_id in range(1, 5):
        table.say(MessageType.ERROR, req_id=req_id, status=500, credit=4)
    table.pass_time(2 * SILENCE_NS)
    assert MessageType.HELLO in table.kinds()


def unknown(table):
    """Somebody says that there is no such session, and the client asks whether that is so."""
    table.clock.now += MS
    table.say(MessageType.ERROR, req_id=1, status=WireStatus.UNKNOWN_SESSION)
    table.pass_time(20 * MS)
    return table.nonce()


WRONG_HELLOS = {
    "refused": lambda nonce: hello_ack(nonce, WireStatus.UNKNOWN_FUNCTION),
    "forged": lambda nonce: hello_ack(opened(nonce, mac=b"m" * 32), WireStatus.OK, 9),
}


@pytest.mark.parametrize("wrong", WRONG_HELLOS.values(), ids=WRONG_HELLOS)
def test_a_refused_hello_ends_no_session_that_is_not_silent(table, wrong):
    table.exchange._probed_ns = 0
    call = table.submit()
    nonce = unknown(table)
    table.hear(wrong(nonce))
    table.say(MessageType.CREDIT, credit=4)
    assert table.exchange.core.session == 1 and not call.done
    table.pass_time(100 * MS)
    assert MessageType.HELLO not in table.kinds()
    table.say(MessageType.ERROR, req_id=1, status=500)
    assert call.error.status == 500


@pytest.mark.parametrize("wrong", WRONG_HELLOS.values(), ids=WRONG_HELLOS)
def test_a_refused_hello_ends_a_session_that_stays_silent(table, wrong):
    table.exchange._probed_ns = 0
    call = table.submit()
    nonce = unknown(table)
    table.hear(wrong(nonce))
    table.pass_time(SILENCE_NS + ASKED_NS)
    table.hear(wrong(table.nonce()))
    assert table.exchange.socket is None and call.error.status == WireStatus.UNKNOWN_SESSION


def test_a_session_that_lives_is_not_opened_twice(table):
    table.exchange._probed_ns = 0
    call = table.submit()
    nonce = unknown(table)
    table.say(MessageType.CREDIT, credit=4)
    table.hear(hello_ack(pack_cookie(nonce, COOKIE), WireStatus.COOKIE))
    table.pass_time(10 * MS)
    assert MessageType.HELLO not in table.kinds()
    assert table.exchange.core.session == 1 and not call.done


def test_after_a_pause_a_sign_of_life_comes_before_a_request(table):
    table.clock.now += 2_000 * MS
    table.submit()
    [(asked, _)] = table.wire.take()
    assert (asked.type, asked.flags) == (MessageType.ACK, Flags.ACK_REQ)
    table.say(MessageType.CREDIT, credit=4)
    assert table.kinds() == {MessageType.REQ}


def test_after_a_long_pause_the_session_is_given_up(table):
    table.clock.now += IDLE_NS + MS
    table.submit()
    assert table.exchange.socket is None and len(table.exchange.waiting) == 1


def test_without_credit_the_server_is_asked_for_it_now_and_then(table):
    for _ in range(4):
        table.submit()
    fifth = table.submit()
    assert {h.req_id for h, _ in table.wire.take()} == {1, 2, 3, 4}
    for req_id in range(1, 5):
        table.say(MessageType.ERROR, req_id=req_id, status=500, credit=4)
    assert table.kinds() == {MessageType.ACK}
    table.clock.now += MS
    table.exchange.tick(table.clock.now)
    assert table.kinds() == set()
    table.pass_time(20 * MS)
    assert table.kinds() == {MessageType.ACK}
    table.say(MessageType.CREDIT, credit=5)
    assert fifth.req_id == 5


@pytest.mark.parametrize(
    ("hear", "kind", "text"),
    [
        (lambda t: None, UnreachableError, "nothing came"),
        (lambda t: t.say(MessageType.SACK, req_id=1, status=3), TooLateError, "did not answer"),
    ],
)
def test_a_timeout_says_whether_the_server_was_heard(table, hear, kind, text):
    table.clock.now += MS
    call = table.submit(timeout_s=0.1)
    table.clock.now += MS
    hear(table)
    table.pass_time(120 * MS)
    assert isinstance(call.error, kind) and text in str(call.error)
    assert MessageType.CANCEL in table.kinds()
    assert not table.exchange.is_busy


def test_a_connection_that_breaks_after_a_silence_is_lost(table):
    call = table.submit(idempotent=True)
    table.clock.now += SILENCE_NS + 20 * MS

    def send(*_):
        raise OSError(errno.ENETDOWN, "the network is down")

    table.wire.send = send
    table.exchange.tick(table.clock.now)
    assert table.exchange.socket is None and list(table.exchange.waiting) == [call]


def test_what_no_worker_has_run_is_sent_in_a_session_that_takes_over(table):
    calls = [table.submit(idempotent=True) for _ in range(2)]
    table.say(MessageType.ERROR, req_id=1, status=WireStatus.NO_WORKER, credit=9)
    table.pass_time(SILENCE_NS + 20 * MS + ASKED_NS)
    table.open(2)
    sent = {(h.session, h.req_id) for h, _ in table.wire.take() if h.type == MessageType.REQ}
    assert sent >= {(2, 1), (2, 2)} and not any(call.done for call in calls)


def test_what_no_worker_has_run_is_sent_again_when_all_else_has_ended(table):
    calls = [table.submit() for _ in range(3)]
    for req_id in (1, 3):
        table.say(MessageType.ERROR, req_id=req_id, status=WireStatus.NO_WORKER, credit=9)
    assert table.exchange.socket is not None and not any(call.done for call in calls)
    table.say(MessageType.ERROR, req_id=2, status=500, credit=9)
    assert calls[1].done and table.exchange.socket is None
    assert list(table.exchange.waiting) == [calls[0], calls[2]]
    table.wire = Wire()
    table.exchange.attach(table.wire, 1000)
    table.open(2)
    assert [(h.session, h.req_id) for h, _ in table.wire.take()] == [(2, 1), (2, 2)]


@pytest.mark.parametrize("ends", [0, 1], ids=["refused", "running"])
def test_a_session_without_workers_is_left_whichever_of_its_calls_are_given_up(table, ends):
    calls = [table.submit() for _ in range(2)]
    table.say(MessageType.ERROR, req_id=1, status=WireStatus.NO_WORKER, credit=9)
    table.exchange.cancel(calls[ends])
    if ends == 0:
        third = table.submit()  # nobody holds it back any more
        assert third.req_id == 3
    else:
        assert table.exchange.socket is None
        assert list(table.exchange.waiting) == [calls[0]] and table.exchange.is_refused


def test_a_model_that_stays_without_workers_is_the_servers_fault(table):
    call = table.submit()
    table.say(MessageType.ERROR, req_id=1, status=WireStatus.NO_WORKER, credit=9)
    table.pass_time(UNSERVED_NS - 20 * MS)
    assert not call.done
    table.pass_time(40 * MS)
    assert isinstance(call.error, ServerError) and call.error.status == WireStatus.NO_WORKER


@pytest.mark.parametrize(
    ("options", "priority", "deadline_us"),
    [
        ({}, 0, 0),
        ({"best_effort": False}, 1, 0),
        ({"best_effort": True, "deadline_ms": 7}, 2, 7000),
    ],
)
def test_what_a_request_does_not_say_is_left_to_the_model(table, options, priority, deadline_us):
    table.submit(**options)
    [(header, _)] = table.wire.take()
    assert (header.priority, header.deadline_us) == (priority, deadline_us)


def test_a_deadline_that_passes_before_there_is_credit(table):
    calls = [table.submit(deadline_ms=50) for _ in range(5)]
    table.pass_time(100 * MS)
    assert [isinstance(call.error, TooLateError) for call in calls] == [False] * 4 + [True]


def test_a_deadline_that_passes_while_the_server_has_no_room(table):
    accepted, refused = (table.submit(deadline_ms=40) for _ in range(2))
    table.say(MessageType.ERROR, req_id=2, status=WireStatus.RETRY_LATER, credit=4)
    table.pass_time(50 * MS)
    assert not accepted.done and not refused.done
    table.pass_time(30 * MS)
    assert not accepted.done and isinstance(refused.error, TooLateError)
    assert MessageType.CANCEL in table.kinds()


def test_an_address_that_says_nothing_is_given_up(clock):
    exchange = Exchange("m", "", 4, None)
    exchange.attach(Wire(), 1000)
    clock.now += OPENING_NS + MS
    exchange.tick(clock.now)
    assert exchange.socket is None
    with pytest.raises(UnreachableError):
        exchange.check_opening(is_over=True)


def test_tensors_are_the_same_by_their_names_types_and_shapes():
    other = TensorSpec("x", "int8", (4,))
    assert Tensors([SPEC], [SPEC]) == Tensors([SPEC], [SPEC])
    assert Tensors([SPEC], [SPEC]) != Tensors([SPEC], [other])


# ---- with a real server


def test_small_segments_are_sent_together(make_service, monkeypatch):
    # As over a network whose frames have 1500 bytes.
    service = make_service()
    shape = [("float32", (3, 224, 224))]

    def infer(inputs, outputs):
        outputs[0].copy_(inputs[0] + 1)

    service.serve("large", shape, shape, infer)
    monkeypatch.setattr(sessions, "segment_of", lambda _: 1408)
    array = np.random.default_rng(0).random((3, 224, 224), np.float32)
    with Session(service.url(), "large", timeout_s=LONG) as session:
        assert session.native.segment == 1408
        for found in session.infer_many([[array]] * 8, idempotent=True):
            assert np.array_equal(found[0], array + 1)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_session_that_the_server_has_forgotten(make_service, double, idempotent):
    service = make_service()
    service.serve("double", **double)
    with Session(service.url(), "double", timeout_s=LONG) as session:
        settings = native_client.Settings.from_address(session.native.handle)
        settings.session ^= 1  # as good as forgotten
        try:
            [found] = session.infer([np.ones(3, np.float32)], idempotent=idempotent)
            assert idempotent and found.tolist() == [2, 2, 2]
        except ServerError as error:
            assert not idempotent and error.status == WireStatus.UNKNOWN_SESSION
        assert session.infer([np.ones(3, np.float32)])[0].tolist() == [2, 2, 2]
