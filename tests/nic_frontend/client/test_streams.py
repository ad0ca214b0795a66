"""Sessions over a stream whose server is late, silent, or reads no more."""

import contextlib
import mmap
import os
import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shunter.batching.queue.shared_memory import sealed_memory
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.client import Session, TooLateError, UnreachableError
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.hello import NO_MAC, Hello, Opened
from shunter.nic_frontend.wire.layout import (
    HEADER_BYTES,
    WANT_SHARED_MEMORY,
    WINDOW,
    MessageType,
    Rights,
    WireStatus,
)
from shunter.nic_frontend.wire.segments import SegmentPlan

LONG = 30
SOON = 0.1
SESSION = 5
REQ, CANCEL, RESP, CREDIT = (
    int(kind)
    for kind in (MessageType.REQ, MessageType.CANCEL, MessageType.RESP, MessageType.CREDIT)
)


class Server:
    """Opens sessions over a stream; what else it does is up to the test."""

    def __init__(self, address, inputs, outputs, segment=60_000):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen()
        self._listener.settimeout(LONG)
        self.address = self._listener.getsockname()
        self._specs = [(TensorSpec("x", "uint8", (n,)),) for n in (inputs, outputs)]
        self.plan, self.segment = SegmentPlan((outputs,), segment), segment
        self._opened = queue.Queue()
        self._made = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while True:
            connection = self._listener.accept()[0]
            self._made.append(connection)
            connection.settimeout(LONG)
            if not (head := connection.recv(HEADER_BYTES)):
                return  # that was close()
            hello = Hello.parse(self.exactly(connection, length_of(head)))
            self.say_opened(connection, hello)
            self._opened.put(connection)

    def say_opened(self, connection, hello, window=WINDOW, rights=Rights.STRICT, memory=()):
        said = Opened(
            hello.nonce, bytes(16), self.segment, window, *self._specs, rights=rights
        ).pack()
        answer = message(
            MessageType.HELLO_ACK, said + NO_MAC, status=WireStatus.OK, credit=window
        )
        socket.send_fds(connection, [answer], memory)

    def connection(self):
        """The next one, with an open session."""
        return self._opened.get(timeout=LONG)

    @staticmethod
    def exactly(connection, count):
        data = bytearray()
        while len(data) < count:
            more = connection.recv(count - len(data))
            assert more, "the client has closed"
            data += more
        return bytes(data)

    def get(self, connection):
        """The next message; what asks for signs of life is passed over."""
        while True:
            head = self.exactly(connection, HEADER_BYTES)
            header = parse(head, HEADER_BYTES + length_of(head))
            payload = self.exactly(connection, header.length)
            if header.type in (REQ, CANCEL):
                return header, payload

    def answer(self, req_id, value, credit=WINDOW):
        """The whole of an answer."""
        found = b""
        for seq in range(self.plan.count):
            part = self.plan.place(seq)
            found += message(
                RESP, bytes([value]) * part.length, req_id=req_id, seq=seq, count=self.plan.count,
                total=self.plan.sizes[0], offset=part.offset, status=WireStatus.OK, credit=credit,
            )  # fmt: skip
        return found

    def close(self):
        with socket.socket(self._listener.family) as last:
            last.connect(self.address)
        self._thread.join(LONG)
        for each in (*self._made, self._listener):
            each.close()


def length_of(head):
    return int.from_bytes(head[22:24], "little")


def message(kind, payload=b"", **fields):
    fields = {"session": SESSION, "credit": WINDOW, **fields}
    return Header(type=kind, length=len(payload), **fields).pack() + payload


@pytest.fixture(params=["unix", "tcp"])
def opened(request, built, tmp_path):
    """Makes a server and a session with it: ``opened(inputs, outputs)``."""
    made = []

    def make(inputs, outputs):
        is_unix = request.param == "unix"
        server = Server(str(tmp_path / "s") if is_unix else ("127.0.0.1", 0), inputs, outputs)
        made.append(server)
        where = server.address
        url = f"unix://{where}" if is_unix else f"tcp://{where[0]}:{where[1]}"
        session = Session(url, "m", timeout_s=LONG)
        made.append(session)
        return server, session, server.connection()

    yield make
    for each in reversed(made):
        each.close()


@contextlib.contextmanager
def late(ask):
    """Ask in a thread; what is done meanwhile must not make it end in time."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        yield
        found = asked.exception(LONG)
        for each in asked.result() if found is None else [found]:
            assert isinstance(each, TooLateError)


def test_a_call_that_is_late_is_cancelled_once_and_its_answer_is_dropped(opened):
    server, session, connection = opened(100, 200)
    first, second = np.zeros(100, np.uint8), np.ones(100, np.uint8)
    out = np.full(200, 0xAA, np.uint8)
    with late(lambda: session.infer([first], out=[out], timeout_s=SOON)):
        assert server.get(connection)[0].type == REQ
        connection.sendall(message(CREDIT))
    header, _ = server.get(connection)
    assert (header.type, header.req_id) == (CANCEL, 1)
    connection.sendall(server.answer(1, 7) + server.answer(2, 9))
    assert session.infer([second])[0].tolist() == [9] * 200
    assert (out == 0xAA).all()
    header, payload = server.get(connection)  # no other CANCEL; the place is free
    assert (header.type, header.req_id, header.credit) == (REQ, 2, 2)
    assert payload == second.tobytes()


@pytest.mark.parametrize(("size", "came"), [(130_000, 90_000), (50_000, 30_000)])
def test_an_answer_that_has_begun_when_its_call_is_late_ends_in_nobodys_memory(
    opened, size, came
):
    server, session, connection = opened(10, size)
    out = np.full(size, 0xAA, np.uint8)
    answer = server.answer(1, 7)
    # Longer than what comes needs; shorter than a server may be silent.
    with late(lambda: session.infer([np.zeros(10, np.uint8)], out=[out], timeout_s=3 * SOON)):
        server.get(connection)
        connection.sendall(answer[:came])  # in the midst of the last segment
    assert out[came - 1000] == 7
    out[:] = 0xAA
    connection.sendall(answer[came:] + server.answer(2, 9))
    assert (session.infer([np.ones(10, np.uint8)])[0] == 9).all()
    assert (out == 0xAA).all()


def test_places_of_late_calls_are_free_again(opened):
    server, session, connection = opened(10, 10)
    array = np.zeros(10, np.uint8)
    for turn in range(3):
        with late(lambda: session.infer_many([[array]] * WINDOW, timeout_s=SOON)):
            kinds = [server.get(connection)[0] for _ in range(WINDOW)]
            connection.sendall(message(CREDIT, credit=(turn + 1) * WINDOW))
        kinds += [server.get(connection)[0] for _ in range(WINDOW)]
        assert [h.type for h in kinds] == [REQ] * WINDOW + [CANCEL] * WINDOW
        first = turn * WINDOW + 1
        assert [h.req_id for h in kinds] == [*range(first, first + WINDOW)] * 2
        granted = (turn + 2) * WINDOW
        connection.sendall(message(CREDIT, credit=granted))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(session.infer, [array])
        req_id = server.get(connection)[0].req_id
        connection.sendall(server.answer(req_id, 4, credit=granted))
        assert req_id == 3 * WINDOW + 1 and asked.result(LONG)[0].tolist() == [4] * 10
    assert not session._exchange.running and not session._exchange.core.pending
    assert session.native.numbers()["pending"] == 0


def test_a_request_of_which_the_server_took_a_part_ends_with_its_connection(opened):
    size = 16 << 20
    server, session, connection = opened(size, 10)
    array = np.arange(size, dtype=np.uint32).astype(np.uint8)
    with late(lambda: session.infer([array], timeout_s=SOON)):
        connection.recv(1, socket.MSG_PEEK)
        connection.sendall(message(CREDIT))  # it is there, and reads no more
    taken = 0
    while more := connection.recv(1 << 20):  # nothing is behind it: no cut message, no CANCEL
        taken += len(more)
    assert 0 < taken < size
    found = []

    def serve():
        second = server.connection()
        data = b"".join(server.get(second)[1] for _ in range(-(-size // server.segment)))
        found.append(data == array.tobytes())
        second.sendall(server.answer(1, 3))

    thread = threading.Thread(target=serve)
    thread.start()
    assert session.infer([array])[0].tolist() == [3] * 10
    thread.join(LONG)
    assert found == [True]


# ---- inputs in shared memory

EACH = 128
"""Bytes of a request of 100."""


class Sharing(Server):
    """Offers memory for two requests."""

    def __init__(self, address, memory):
        self.memory = memory
        super().__init__(address, 100, 10)

    def say_opened(self, connection, hello):
        assert hello.want == WANT_SHARED_MEMORY
        found = [] if self.memory is None else [self.memory]
        super().say_opened(connection, hello, 2, Rights.SHARED_MEMORY, found)

    def get(self, connection):
        """The next message: its type, request, and where its input lies."""
        while True:
            head = self.exactly(connection, HEADER_BYTES)
            header = parse(head, HEADER_BYTES + length_of(head))
            self.exactly(connection, header.length)
            if header.type != MessageType.ACK:
                assert header.type != REQ or not header.length
                return MessageType(header.type).name, header.req_id, header.offset


@pytest.fixture
def sharing(built, tmp_path):
    """A server that shares memory, a session with it, and their connection."""
    memory = sealed_memory("test", 2 * EACH)
    server = Sharing(str(tmp_path / "s"), memory)
    with Session(f"unix://{server.address}", "m", timeout_s=LONG) as session:
        yield server, session, server.connection()
    server.close()
    os.close(memory)


def array(value):
    return np.full(100, value, np.uint8)


ENDS = {
    "answer": lambda server: server.answer(1, 5, credit=9),
    "withdrawn": lambda _: message(
        MessageType.ERROR, req_id=1, status=WireStatus.CANCELLED, credit=9
    ),
    "no room": lambda _: message(
        MessageType.ERROR, req_id=1, status=WireStatus.RETRY_LATER, credit=9
    ),
    "room": lambda _: message(CREDIT, req_id=1, credit=9),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_place_is_taken_until_a_cancelled_request_has_ended(sharing, end):
    server, session, connection = sharing
    memory = mmap.mmap(server.memory, 2 * EACH)
    with late(lambda: session.infer([array(1)], timeout_s=SOON)):
        assert server.get(connection) == ("REQ", 1, EACH)
        connection.sendall(message(CREDIT, credit=9))
    assert [server.get(connection)[:2] for _ in "12"] == [("CANCEL", 1), ("QUERY", 1)]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(session.infer_many, [[array(2)], [array(3)]])
        assert server.get(connection) == ("REQ", 2, 0)
        running = message(
            MessageType.SACK, req_id=1, status=WireStatus.OK, credit=9
        )
        connection.sendall(running + server.answer(2, 7, credit=9))
        connection.settimeout(2 * SOON)
        with pytest.raises(TimeoutError):  # the third belongs where the first may still be read
            server.get(connection)
        assert memory[:100] == bytes([2]) * 100 and memory[EACH : EACH + 100] == bytes([1]) * 100
        connection.settimeout(LONG)
        connection.sendall(ENDS[end](server))
        assert server.get(connection) == ("REQ", 3, EACH)
        assert memory[EACH : EACH + 100] == bytes([3]) * 100
        connection.sendall(server.answer(3, 8, credit=9))
        assert [found[0].tolist() for found in asked.result(LONG)] == [[7] * 10, [8] * 10]
    assert session.native.numbers()["pending"] == 0


def test_an_answer_to_a_cancelled_request_goes_nowhere(sharing):
    server, session, connection = sharing
    out = np.full(10, 0xAA, np.uint8)
    answer = server.answer(1, 7)
    with late(lambda: session.infer([array(1)], out=[out], timeout_s=SOON)):
        server.get(connection)
        connection.sendall(answer[: HEADER_BYTES + 4])  # in the midst of it
    connection.sendall(answer[HEADER_BYTES + 4 :] + server.answer(2, 9))
    out[:] = 0xAA
    assert session.infer([array(2)])[0].tolist() == [9] * 10
    assert (out == 0xAA).all()
    assert session.native.numbers()["pending"] == 0


def unsealed():
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 2 * EACH)
    return memory


@pytest.mark.parametrize(
    "memory",
    [
        unsealed,
        lambda: sealed_memory("test", 2 * EACH - 1),
        lambda: os.open("/dev/zero", os.O_RDWR),
        lambda: None,
    ],
    ids=["not sealed", "too small", "no memory", "none"],
)
def test_memory_that_is_none_opens_no_session(built, tmp_path, memory):
    made = memory()
    server = Sharing(str(tmp_path / "s"), made)
    with pytest.raises(UnreachableError, match="shares no memory"):
        Session(f"unix://{server.address}", "m", timeout_s=LONG, fail_fast=True)
    server.close()
    if made is not None:
        os.close(made)
