"""Large datagrams that the kernel sends from the caller's memory itself."""

import contextlib
import ctypes
import mmap
import os
import resource
import socket
from pathlib import Path

import numpy as np
import pytest

from shunter.nic_frontend import library as libraries
from shunter.nic_frontend.client import Session
from shunter.nic_frontend.server.listeners import SO_RCVBUFFORCE
from shunter.nic_frontend.wire.layout import LARGEST_SEGMENT

PAGE = mmap.PAGESIZE


class PageSender(ctypes.Structure):
    """struct shunter_page_sender."""

    _fields_ = (
        ("ends", ctypes.c_int * 2),
        ("slots", ctypes.c_uint),
        ("refused", ctypes.c_bool),
    )


class Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def pieces_of(datagrams):
    """Header and payload, as addresses and lengths, of each."""
    found = (Piece * (2 * len(datagrams)))()
    for number, pair in enumerate(datagrams):
        for index, part in enumerate(pair):
            found[2 * number + index] = Piece(part.ctypes.data, part.nbytes)
    return found


@pytest.fixture
def send(built):
    """Sends and tells how many were sent, and the state afterwards."""
    library = libraries.library()
    sender = PageSender()

    def call(connection, pieces):
        count = len(pieces) // 2
        sent = library.shunter_page_send(ctypes.byref(sender), connection.fileno(), pieces, count)
        return sent, sender

    yield call
    library.shunter_page_sender_close(ctypes.byref(sender))


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6])
def pair(request):
    """Two connected sockets with room for what the tests send."""
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(socket.socket(request.param, socket.SOCK_DGRAM)) for _ in "ab")
        for each in (a, b):
            each.bind(("::1" if request.param == socket.AF_INET6 else "127.0.0.1", 0))
            with contextlib.suppress(PermissionError):
                each.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
            each.settimeout(20)
        a.connect(b.getsockname())
        a.setblocking(False)
        yield a, b


def headers(count):
    return [np.full(64, number, np.uint8) for number in range(count)]


def segments(data, size):
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return list(zip(headers(len(parts)), parts, strict=True))


def expect(b, datagrams):
    for header, payload in datagrams:
        assert b.recv(1 << 17) == header.tobytes() + payload.tobytes()


@pytest.mark.parametrize("size", [LARGEST_SEGMENT, LARGEST_SEGMENT - 1, 33_333, 15 * PAGE - 3])
@pytest.mark.parametrize("start", [0, 1, 17, PAGE - 1])
def test_datagrams_arrive_whole_wherever_they_lie(send, pair, size, start):
    a, b = pair
    data = np.random.default_rng(size).integers(0, 256, 180_001 + start, np.uint8)[start:]
    datagrams = segments(data, size)
    for _ in range(3):  # the pipe is used again
        sent, sender = send(a, pieces_of(datagrams))
        assert (sent, sender.refused) == (len(datagrams), False)
        expect(b, datagrams)


def test_more_than_the_pipe_holds_goes_in_turns(send, pair):
    a, b = pair
    if b.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < 1 << 22:
        pytest.skip("the system allows too little room for datagrams that wait")
    data = np.random.default_rng(1).integers(0, 256, 700_000, np.uint8)
    datagrams = segments(data, LARGEST_SEGMENT)
    sent, sender = send(a, pieces_of(datagrams))
    assert sent == len(datagrams) > sender.slots * PAGE // LARGEST_SEGMENT
    expect(b, datagrams)


def test_what_is_too_large_is_left_to_the_caller(send, pair):
    a, b = pair
    base = np.zeros(40 * PAGE, np.uint8)
    skip = -base.ctypes.data % PAGE
    small, large = base[skip : skip + 4 * PAGE], base[skip + 1 : skip + 1 + 16 * PAGE]
    one, two = headers(2)
    sent, sender = send(a, pieces_of([(one, small), (two, large)]))
    assert (sent, sender.refused) == (1, False)
    expect(b, [(one, small)])
    assert send(a, pieces_of([(one, small), (two, base[:0])]))[0] == 1
    expect(b, [(one, small)])


def test_memory_that_is_not_there_is_refused_and_nothing_half_sent_stays(send, pair):
    a, b = pair
    data = np.ones(40_000, np.uint8)
    hole = mmap.mmap(-1, 16 * PAGE)
    address = np.frombuffer(hole, np.uint8).ctypes.data
    hole.close()
    pieces = pieces_of([*zip(headers(2), [data, data], strict=True)])
    pieces[3] = Piece(address, 40_000)
    sent, sender = send(a, pieces)
    assert (sent, sender.refused, sender.slots) == (0, True, 0)
    assert send(a, pieces_of([(headers(1)[0], data)]))[0] == 0  # it does not try again
    a.send(b"next")
    assert b.recv(100) == b"next"


def test_without_descriptors_the_caller_sends(send, pair):
    a, b = pair
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        data = np.ones(40_000, np.uint8)
        sent, sender = send(a, pieces_of([(headers(1)[0], data)]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
    assert (sent, sender.refused) == (0, False)
    assert send(a, pieces_of([(headers(1)[0], data)]))[0] == 1
    expect(b, [(headers(1)[0], data)])


def checksum_errors():
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if "Udp:" in line
    )
    return int(values[names.index("InCsumErrors")])


@pytest.mark.parametrize("start", [0, 1, 1000])
def test_a_sessions_large_inputs_come_as_they_are(make_service, start):
    service = make_service()
    shape = [("uint8", (602_112,))]

    def invert(inputs, outputs):
        outputs[0].copy_(255 - inputs[0])

    service.serve("invert", shape, shape, invert)
    before = checksum_errors()
    with Session(service.url("udp"), "invert", timeout_s=30) as session:
        data = np.random.default_rng(start).integers(0, 256, 602_112 + start, np.uint8)[start:]
        for _ in range(5):
            assert (session.infer([data])[0] == 255 - data).all()
            data[:] = data[::-1].copy()
    assert checksum_errors() == before
