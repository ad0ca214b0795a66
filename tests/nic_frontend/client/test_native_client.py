"""Sessions of the client in C: over links with faults, against forged answers, and their memory."""

import contextlib
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from oracle.client_state import FIRST_RTO_NS
from shunter.nic_frontend import library as libraries
from shunter.nic_frontend.client import Session
from shunter.nic_frontend.client import session as sessions
from shunter.nic_frontend.client.native_client import NativeClient
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.layout import SACK_RECEIVING, WINDOW, Flags, MessageType, WireStatus

LONG = 30
STREAMED = 400_000
KEY = bytes(range(32))
RESP, ERROR, SACK, CREDIT, QUERY = (
    int(kind)
    for kind in (
        *(MessageType.RESP, MessageType.ERROR, MessageType.SACK, MessageType.CREDIT),
        MessageType.QUERY,
    )
)


class Link:
    """Datagrams between one client and a server: some lost, doubled or late, by a seed."""

    def __init__(self, port, seed, share):
        self._down, self._up = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "12")
        self._down.bind(("127.0.0.1", 0))
        self._up.connect(("127.0.0.1", port))
        self.port = self._down.getsockname()[1]
        self._random, self._share = random.Random(seed), share
        self._client, self._late, self._over = None, [], False
        self.faults = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._over:
            for ready in select.select([self._down, self._up], [], [], 0.01)[0]:
                try:
                    data, peer = ready.recvfrom(1 << 16)
                except ConnectionRefusedError:
                    continue
                if ready is self._down:
                    self._client = peer
                self._carry(data, ready is self._down)
            late, self._late = self._late, []
            for data, is_up in late:
                self._pass(data, is_up)

    def _carry(self, data, is_up):
        what = self._random.random() / self._share
        self.faults += what < 3
        if what < 1:
            return
        if what < 2:
            self._late.append((data, is_up))
            return
        self._pass(data, is_up)
        if what < 3:
            self._pass(data, is_up)

    def _pass(self, data, is_up):
        if is_up:
            self._up.send(data)
        else:
            self._down.sendto(data, self._client)

    def close(self):
        self._over = True
        self._thread.join()
        self._down.close()
        self._up.close()


class Late(Link):
    """Of each request what is sent first gets lost, so that answers to later ones overtake it.

    So does the client's farewell: the server has only its silence to go by.
    """

    def _carry(self, data, is_up):
        header = parse(data) if is_up else None
        again = Flags.RETRANS | Flags.NEXT
        is_first = header and header.type == MessageType.REQ and not header.flags & again
        if is_first or (header and header.type == MessageType.ACK and header.flags & Flags.LAST):
            self.faults += 1
        else:
            self._pass(data, is_up)


@pytest.mark.parametrize("segment", [300, 60_000])
@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
def test_over_a_bad_link_every_request_is_answered_once(make_service, segment, key, monkeypatch):
    ran = []

    def infer(inputs, outputs):
        ran.extend(inputs[0][:, 0].tolist())
        outputs[0].copy_(inputs[0] + 1)
        outputs[1].copy_(inputs[1][:, :2])

    service = make_service(key=key)
    shapes = [("int64", (200,)), ("float32", (3,))], [("int64", (200,)), ("float32", (2,))]
    service.serve("m", *shapes, infer)
    monkeypatch.setattr(sessions, "segment_of", lambda _: segment)
    link = Link(int(service.url().rpartition(":")[2]), segment, 0.05)
    try:
        with Session(f"udp://127.0.0.1:{link.port}", "m", key=key, timeout_s=LONG) as session:
            assert isinstance(session.native, NativeClient)
            requests = [
                [np.full(200, i, np.int64), np.array([i, -i, 0], np.float32)] for i in range(300)
            ]
            found = session.infer_many(requests)
            numbers = session.native.numbers()
    finally:
        link.close()
    for i, (y, z) in enumerate(found):
        assert (y == i + 1).all() and z.tolist() == [i, -i]
    assert sorted(ran) == list(range(300))
    assert link.faults > 20 and numbers["lost"] > 0 and numbers["pending"] == 0


# ---- a server played by hand


@pytest.fixture
def pair():
    """A session over a connected socket, and the server's end."""
    yield from make_pair()


@pytest.fixture
def packed_pair():
    """The same of a packed function."""
    yield from make_pair(least_answer=4)


def make_pair(**settings):
    if libraries.library() is None:
        pytest.skip("there is no library of the data path")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection,
    ):
        server.bind(("127.0.0.1", 0))
        server.settimeout(LONG)
        connection.connect(server.getsockname())
        connection.setblocking(False)
        server.connect(connection.getsockname())
        how = {"pkt_no": 40, **settings}
        grant = how.pop("grant", 2)
        client = NativeClient(connection.fileno(), 5, 7, (10,), (300,), 100, grant, **how)
        yield client, server
        client.close()


class Memory:
    """Inputs and outputs of one request, with a border that nobody may write to."""

    def __init__(self):
        self.input = np.arange(10, dtype=np.uint8)
        self._all = np.full(500, 0xAA, np.uint8)
        self.output = self._all[100:400]

    def addresses(self):
        return (self.input.ctypes.data,), (self.output.ctypes.data,)

    @property
    def is_bordered(self):
        return bool((self._all[:100] == 0xAA).all() and (self._all[400:] == 0xAA).all())


def answer(number, payload=None, **changes):
    payload = bytes([number + 1]) * 100 if payload is None else payload
    header = Header(
        type=RESP, req_id=1, func_id=7, seq=number, count=3, length=len(payload), total=300,
        offset=100 * number, session=5, status=WireStatus.OK, credit=64,
    )  # fmt: skip
    return header._replace(**changes).pack() + payload


def now():
    return time.monotonic_ns()


def test_an_answer_in_any_order_lies_where_it_belongs(pair):
    client, server = pair
    memory = Memory()
    assert client.begin(*memory.addresses(), 0, 0, False) == 1
    sent = server.recv(1 << 16)
    assert sent[64:] == bytes(range(10))
    assert parse(sent).pkt_no == 41
    for seq in (2, 0, 2, 1):
        server.send(answer(seq))
    assert client.poll(now() + LONG * 10**9) == [(1, WireStatus.OK)]
    assert memory.output.tolist() == [1] * 100 + [2] * 100 + [3] * 100
    assert memory.is_bordered
    assert client.numbers()["below"] == 2 and client.numbers()["grant"] == 64


def test_a_request_that_could_not_be_sent_has_not_begun(pair):
    client, server = pair
    memory = Memory()
    [connection] = [
        int(each)
        for each in os.listdir("/proc/self/fd")
        if is_connected_to(int(each), server.getsockname())
    ]
    kept = os.dup(connection)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nowhere:
        os.dup2(nowhere.fileno(), connection)
        with pytest.raises(OSError):
            client.begin(*memory.addresses(), 0, 0, False)
    os.dup2(kept, connection)
    os.close(kept)
    assert client.numbers()["pending"] == 0 and client.numbers()["below"] == 2
    assert client.begin(*memory.addresses(), 0, 0, False) == 2
    assert client.poll(now() + 300 * 10**6) == []  # nothing asks about the first, or sends it
    server.setblocking(False)
    seen = set()
    with contextlib.suppress(BlockingIOError):
        while True:
            seen.add(parse(server.recv(1 << 16)).req_id)
    assert seen == {2}


def is_connected_to(descriptor, address):
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return found.getpeername() == address
    except OSError:
        return False


def test_who_was_refused_asks_at_once_when_it_hears_of_room(pair):
    client, server = pair
    memory = Memory()
    client.begin(*memory.addresses(), 0, 0, False)
    first = parse(server.recv(1 << 16))
    head = Header(req_id=1, func_id=7, session=5, credit=2)
    server.send(head._replace(type=ERROR, status=WireStatus.RETRY_LATER).pack())
    server.send(head._replace(type=CREDIT).pack())
    assert client.poll(0) == []  # it would ask by itself after 20 ms
    again = parse(server.recv(1 << 16))
    assert (again.type, again.req_id, again.flags) == (first.type, 1, Flags.LAST | Flags.RETRANS)


def test_an_answer_whose_room_others_want_is_acknowledged_when_it_is_complete(pair):
    client, server = pair
    memory = Memory()
    client.begin(*memory.addresses(), 0, 0, False)
    server.recv(1 << 16)
    for seq in (0, 1, 2):
        server.send(answer(seq, flags=int(Flags.ACK_REQ)))
    assert client.poll(now() + LONG * 10**9) == [(1, WireStatus.OK)]
    for have in (0b1, 0b11):  # the server sends the rest when it knows
        data = server.recv(1 << 16)
        said = parse(data)
        assert (said.type, said.req_id, said.flags, data[64]) == (MessageType.QUERY, 1, 0, have)
    said = parse(server.recv(1 << 16))
    assert (said.type, said.credit, said.flags) == (MessageType.ACK, 2, 0)


def test_that_there_is_no_such_session_is_noted_and_nothing_else(pair):
    client, server = pair
    memory = Memory()
    client.begin(*memory.addresses(), 0, 0, False)
    unknown = Header(type=ERROR, req_id=1, session=5, status=WireStatus.UNKNOWN_SESSION)
    heard_ns = client.heard_ns
    server.send(unknown._replace(session=6).pack())
    assert client.poll(0) == [] and client.unknown_ns == 0
    server.send(unknown.pack())
    assert client.poll(0) == [] and client.unknown_ns > 0
    assert client.heard_ns == heard_ns and client.numbers()["pending"] == 1


WRONG = {
    "session": {"session": 6},
    "request": {"req_id": 9},
    "count": {"count": 4},
    "segment": {"seq": 3},
    "offset": {"offset": 250},
    "total": {"total": 400},
    "tensor": {"tensor": 1},
    "magic": {"magic": 1},
    "version": {"version": 9},
    "tag": {"flags": int(Flags.HDR_TAG), "tag": 1},
    "length": {"length": 99},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_what_is_no_answer_ends_nothing_and_leaves_its_place_to_the_true_one(pair, changes):
    client, server = pair
    memory = Memory()
    client.begin(*memory.addresses(), 0, 0, False)
    server.send(answer(0, payload=bytes([0x55]) * 100, **changes))
    server.send(b"short")
    server.send(answer(1, payload=bytes([0x55]) * 60_000, length=100))
    assert client.poll(0) == [] and memory.is_bordered
    for seq in range(3):
        server.send(answer(seq))
    assert client.poll(now() + LONG * 10**9) == [(1, WireStatus.OK)]
    assert memory.output.tolist() == [1] * 100 + [2] * 100 + [3] * 100
    assert memory.is_bordered


def test_credit_ends_with_the_grant_and_grows_with_it(pair):
    client, server = pair
    memory = [Memory() for _ in range(3)]
    begun = [client.begin(*each.addresses(), 0, 0, False) for each in memory]
    assert begun == [1, 2, 0] and not client.may_begin
    server.send(Header(type=CREDIT, session=5, credit=3).pack())
    deadline = now() + LONG * 10**9
    while not client.may_begin and now() < deadline:
        client.poll(now() + 10**7)
    assert client.begin(*memory[2].addresses(), 0, 0, False) == 3


def test_errors_end_a_request_but_retry_later_does_not(pair):
    client, server = pair
    memory = Memory()
    client.begin(*memory.addresses(), 0, 0, False)
    first = server.recv(1 << 16)
    later = answer(0, payload=b"", type=ERROR, status=WireStatus.RETRY_LATER)
    server.send(later)
    assert client.poll(0) == []
    assert client.poll(now() + 10**8) == []
    assert parse(server.recv(1 << 16)).type == QUERY  # it asks first
    server.send(answer(0, payload=b"", type=SACK, status=SACK_RECEIVING))
    client.poll(now() + 10**6)
    while (again := server.recv(1 << 16))[3] == QUERY:
        pass
    assert again[64:] == first[64:]  # sent once more
    server.send(answer(0, payload=b"", type=ERROR, status=WireStatus.HANDLER_FAILED))
    assert client.poll(now() + LONG * 10**9) == [(1, WireStatus.HANDLER_FAILED)]


def heard(client, server):
    """What the server gets next, while time passes for the client."""
    deadline = now() + LONG * 10**9
    while not select.select([server], [], [], 0)[0]:
        assert client.poll(now() + 10**6) == [] and now() < deadline
    return server.recv(1 << 16)


def test_a_late_answer_is_asked_for_without_sending_anything_again(pair):
    client, server = pair
    memory = Memory()
    client.begin(*memory.addresses(), 0, 0, False)
    assert heard(client, server)[3] == MessageType.REQ
    for seq, have in enumerate((0, 1, 3)):
        while (data := heard(client, server))[64:] != bytes([have]):
            assert data[3] == QUERY  # of before the last segment
        header = parse(data)
        assert (header.type, header.req_id, header.flags) == (QUERY, 1, Flags.ACK_REQ)
        server.send(answer(0, payload=b"\1", type=SACK, status=SACK_RECEIVING + 2))
        server.send(answer(seq))
    assert client.poll(now() + LONG * 10**9) == [(1, WireStatus.OK)] and memory.is_bordered
    numbers = client.numbers()
    assert numbers["lost"] == 0 and 0 < numbers["trip_ns"] < LONG * 10**9
    assert numbers["rtt_ns"] >= FIRST_RTO_NS  # it counts although it was asked for


def refuse(client, server, *req_ids):
    for req_id in req_ids:
        later = {"type": ERROR, "status": WireStatus.RETRY_LATER}
        server.send(answer(0, payload=b"", req_id=req_id, **later))


def test_of_those_that_were_refused_the_oldest_is_asked_about_and_more_when_there_is_room(pair):
    client, server = pair
    server.send(Header(type=CREDIT, session=5, credit=9).pack())
    client.poll(now() + LONG * 10**9)
    memory = [Memory() for _ in range(9)]
    for each in memory:
        client.begin(*each.addresses(), 0, 0, False)
        server.recv(1 << 16)
    refuse(client, server, *range(1, 10))

    def asked():
        data = heard(client, server)
        assert data[3] == QUERY
        return parse(data).req_id

    assert client.poll(0) == []
    for _ in range(5):
        assert asked() == 1
        refuse(client, server, 1)
        assert client.poll(0) == []
    while select.select([server], [], [], 0)[0]:
        server.recv(1 << 16)
    server.send(Header(type=CREDIT, req_id=1, session=5, credit=9).pack())
    while (data := heard(client, server))[3] == QUERY:
        assert parse(data).req_id == 1
    assert (data[3], parse(data).req_id) == (MessageType.REQ, 1)
    found = set()
    while len(found) < 2:
        found.add(asked())
    assert found == {2, 3}


def test_what_is_refused_until_after_its_deadline_ends_and_what_was_not_goes_on(pair):
    client, server = pair
    memory, begun = [Memory() for _ in range(2)], now()
    for each in memory:
        client.begin(*each.addresses(), 1000, 0, False)
    refuse(client, server, 2)
    assert client.poll(now() + LONG * 10**9) == [(2, WireStatus.TOO_LATE)]
    assert now() - begun >= FIRST_RTO_NS  # what was said before has come by then
    said = [parse(server.recv(1 << 16)) for _ in range(3)]
    while said[-1].type != MessageType.CANCEL:
        said.append(parse(server.recv(1 << 16)))
    assert said[-1].req_id == 2 and client.numbers()["pending"] == 1


def test_what_was_cancelled_is_not_written_to(pair):
    client, server = pair
    memory = Memory()
    client.begin(*memory.addresses(), 0, 0, False)
    client.cancel(1)
    for seq in range(3):
        server.send(answer(seq))
    assert client.poll(now() + 5 * 10**7) == []
    assert (memory.output == 0xAA).all() and memory.is_bordered
    assert [server.recv(1 << 16)[3] for _ in range(2)] == [MessageType.REQ, MessageType.CANCEL]


def test_nothing_is_written_for_a_request_that_has_only_a_status(packed_pair):
    client, server = packed_pair
    memory = Memory()
    run = memory.input.ctypes.data
    assert client.begin_run(run, 10, 1, 0) == 1  # no memory for an answer
    assert client.begin_run(run, 0, 1, memory.output.ctypes.data, part=(1, 1)) == 2
    said = Header(type=SACK, req_id=1, session=5, status=SACK_RECEIVING, length=1)
    server.send(said.pack() + b"x")
    for seq in (1, 2, 0):
        server.send(answer(seq, req_id=2))
    assert client.poll_runs(now() + LONG * 10**9) == [(2, WireStatus.OK, 300)]
    assert memory.output.tolist() == [1] * 100 + [2] * 100 + [3] * 100
    server.send(answer(0))
    assert client.poll(now() + LONG * 10**9) == [(1, WireStatus.HANDLER_FAILED)]
    assert memory.is_bordered and bytes(memory.input) == bytes(range(10))


def test_who_gives_a_stream_up_says_so_several_times_for_nobody_answers(packed_pair):
    client, server = packed_pair
    memory = Memory()
    client.begin_run(memory.input.ctypes.data, 10, 1, 0)
    client.cancel(1)
    said = [parse(server.recv(1 << 16)) for _ in range(5)]
    assert [each.type for each in said] == [MessageType.REQ] + 4 * [MessageType.CANCEL]
    assert {each.req_id for each in said} == {1} and len({each.pkt_no for each in said}) == 5


def test_at_most_a_window_is_on_its_way(pair):
    client, server = pair
    server.send(Header(type=CREDIT, session=5, credit=1000).pack())
    deadline = now() + LONG * 10**9
    while client.numbers()["grant"] < 1000 and now() < deadline:
        client.poll(now() + 10**7)
    memory = Memory()
    begun = [client.begin(*memory.addresses(), 0, 0, False) for _ in range(WINDOW + 5)]
    assert begun == [*range(1, WINDOW + 1), 0, 0, 0, 0, 0]


@pytest.mark.parametrize("length", [0, 1, 1472, 1473, 65_443])
def test_an_answer_to_a_hello_is_kept_however_long_it_is(pair, length):
    client, server = pair
    assert client.hello() == b""
    for value in (1, 2):
        whole = Header(type=MessageType.HELLO_ACK, length=length).pack() + bytes([value]) * length
        server.send(whole)
        assert client.poll(now() + LONG * 10**9) == [] and client.hello() == whole
    assert client.hello() == b""


def test_a_closed_session_still_says_its_numbers(pair):
    client, _ = pair
    client.close()
    assert client.numbers()["grant"] == 2
    client.close()


def begun(client, *numbers):
    """Requests with inputs of their own; what must stay as it is."""
    memories = [Memory() for _ in numbers]
    for memory, number in zip(memories, numbers, strict=True):
        memory.input[0] = number
        assert client.begin(*memory.addresses()) > 0
    return memories


def told(server, count):
    """Datagrams: type, request and first byte of each."""
    found = [(server.recv(1 << 16)) for _ in range(count)]
    return [(parse(each).type, parse(each).req_id, each[64:65]) for each in found]


@pytest.mark.parametrize("gso", [False, True])
def test_requests_that_begin_together_go_together_and_nothing_goes_twice(gso):
    REQ = MessageType.REQ
    for client, server in make_pair(gso=gso, grant=80):
        client.cork(True)
        memories = begun(client, 1, 2, 3)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(1)
        client.cork(False)
        server.settimeout(LONG)
        assert told(server, 3) == [(REQ, n, bytes([n])) for n in (1, 2, 3)]
        # By poll, although nobody says that it is all.
        client.cork(True)
        memories += begun(client, 4)
        assert client.poll(0) == []
        assert told(server, 1) == [(REQ, 4, b"\4")]
        # Before anything that may be about it.
        memories += begun(client, 5)
        client.cancel(5)
        assert told(server, 2) == [(REQ, 5, b"\5"), (MessageType.CANCEL, 5, b"")]
        assert [client.poll(0), len(memories)] == [[], 5]
    for client, server in make_pair(gso=gso, grant=80):
        # At the latest when as many wait as one system call takes.
        client.cork(True)
        memories = begun(client, *range(1, 65))
        assert told(server, 64) == [(REQ, n, bytes([n])) for n in range(1, 65)]
        client.cork(False)
        assert [client.poll(0), len(memories)] == [[], 64]


def test_a_session_is_freed_once_though_a_signal_interrupts_its_close(pair, monkeypatch):
    client, _ = pair
    freed, real = [], client._c.shunter_client_free

    class Interrupted:
        def shunter_client_free(self, handle):
            freed.append(handle)
            real(handle)
            raise KeyboardInterrupt

    monkeypatch.setattr(client, "_c", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        client.close()
    client.close()
    assert len(freed) == 1


SHARED = (
    "are_not_sent_and_answers_are_the_same",
    "in_each_others_place_are_right",
)


def test_the_same_under_the_sanitizers(sanitized):
    library, environment = sanitized
    folder = Path(__file__).parents[1]
    protected, shared = folder / "test_aead.py", folder / "server" / "test_shared_memory.py"
    files = [__file__, f"{protected}::test_an_answer_that_was_changed_is_asked_for_again"]
    files += [str(Path(__file__).with_name("test_streams.py"))]
    files += [f"{shared}::test_inputs_{which}" for which in SHARED]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *files]
    more = {**environment, libraries.VARIABLE: library}
    done = subprocess.run(
        [*command, "-k", "not bad_link and not sanitizers"],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


# ---- streams


def message(data):
    """Length of the message with this header."""
    return 64 + int.from_bytes(data[22:24], "little")


@pytest.fixture
def narrow():
    """A session over a stream that takes little at once, and the server's end."""
    if libraries.library() is None:
        pytest.skip("there is no library of the data path")
    server, connection = socket.socketpair()
    with server, connection:
        server.settimeout(LONG)
        connection.setblocking(False)
        for end, option in ((connection, socket.SO_SNDBUF), (server, socket.SO_RCVBUF)):
            end.setsockopt(socket.SOL_SOCKET, option, 8192)
        client = NativeClient(
            connection.fileno(), 5, 7, (STREAMED,), (4,), 60_000, 64, stream=True
        )
        yield client, server
        client.close()


class Reader(threading.Thread):
    """Reads so many messages of a stream."""

    def __init__(self, server, count):
        super().__init__()
        self._server, self._count = server, count
        self.kinds, self.payloads, self.done = [], {}, False
        self.start()

    def run(self):
        while len(self.kinds) < self._count:
            head = self._take(64)
            header = parse(bytes(head), message(head))
            self.kinds.append(header.type)
            self.payloads.setdefault(header.req_id, bytearray()).extend(self._take(header.length))
        self.done = True

    def _take(self, length):
        data = bytearray()
        while len(data) < length:
            data += self._server.recv(length - len(data))
        return data


def test_a_stream_that_is_full_keeps_messages_whole_and_asks_the_caller_to_come_back(narrow):
    client, server = narrow
    inputs = [np.full(STREAMED, i, np.uint8) for i in range(1, 3)]
    outputs = [np.zeros(4, np.uint8) for _ in inputs]
    begin = [
        lambda i=i: client.begin((inputs[i].ctypes.data,), (outputs[i].ctypes.data,))
        for i in range(2)
    ]
    assert begin[0]() == 1 and begin[1]() == 0  # nothing is between two of its segments
    kept = client.kept
    client.ask()  # what takes nothing is not asked, now or later
    assert client.kept == kept > 0 and client.due_ns() == 2**64 - 1
    assert client.numbers()["copied"] == 0  # it is sent from where it lies
    client.cancel(1)  # goes behind it, whole
    assert client.numbers()["copied"] >= kept  # its memory is the caller's again
    inputs[0].fill(99)
    reader = Reader(server, 15)
    deadline = now() + LONG * 10**9
    begun = 0
    while not reader.done and now() < deadline:
        client.poll(now() + 10**7)
        begun = begun or begin[1]()
    reader.join(LONG)
    assert reader.kinds == [MessageType.REQ] * 7 + [MessageType.CANCEL] + [MessageType.REQ] * 7
    assert begun == 2 and bytes(reader.payloads[2]) == inputs[1].tobytes()
    assert bytes(reader.payloads[1]) == bytes([1]) * STREAMED


def test_a_request_that_ends_before_it_is_sent_does_not_read_its_inputs_any_more(narrow):
    client, server = narrow
    first, second = (np.full(STREAMED, i, np.uint8) for i in range(1, 3))
    output = np.zeros(4, np.uint8)
    assert client.begin((first.ctypes.data,), (output.ctypes.data,)) == 1
    refusal = Header(type=ERROR, req_id=1, func_id=7, session=5, status=WireStatus.BAD_REQUEST)
    server.sendall(refusal.pack())
    assert client.poll(now() + LONG * 10**9) == [(1, WireStatus.BAD_REQUEST)]
    first.fill(99)
    reader = Reader(server, 14)
    deadline = now() + LONG * 10**9
    begun = 0
    while not reader.done and now() < deadline:
        client.poll(now() + 10**7)
        begun = begun or client.begin((second.ctypes.data,), (output.ctypes.data,))
    reader.join(LONG)
    assert bytes(reader.payloads[1]) == bytes([1]) * STREAMED
    assert begun == 2 and bytes(reader.payloads[2]) == second.tobytes()
