"""The sockets of a port: which datagrams come by which, and that nobody else has them."""

import contextlib
import errno
import select
import socket

import numpy as np
import pytest

from shunter.nic_frontend.client import Client
from shunter.nic_frontend.server import listeners
from shunter.nic_frontend.server.listeners import client_sockets, datagram_sockets, loop_of
from shunter.nic_frontend.wire.header import Header
from shunter.nic_frontend.wire.hello import Hello
from shunter.nic_frontend.wire.layout import X64_FIELDS, MessageType

TYPE_AT = X64_FIELDS["type"][0]
SESSION_AT = X64_FIELDS["session"][0]
HELLO = Hello(bytes(16), "m").message(None)
TO_STRANGERS = [HELLO, HELLO[:64], HELLO[: TYPE_AT + 1], HELLO + bytes(1000)]
TO_MAIN = [b"", b"\x05", HELLO[:TYPE_AT], b"\x05" * TYPE_AT, bytes(1400)]
TO_MAIN += [Header(kind, 1).pack(None) for kind in MessageType if kind != MessageType.HELLO]


@pytest.fixture
def pair():
    with contextlib.closing(datagram_sockets("127.0.0.1", 0)) as found:
        if found.strangers is None:
            pytest.skip("this kernel cannot steer")
        yield found


def heard(sockets):
    """What the next datagram is, and which socket it came by."""
    ready, _, _ = select.select([sockets.main, sockets.strangers], [], [], 10)
    assert len(ready) == 1
    return ready[0].recv(1 << 16), ready[0] is sockets.strangers


@pytest.mark.parametrize("gro", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1"])
def test_hellos_come_by_the_socket_of_strangers_and_all_else_by_the_other(host, gro):
    asked = "::1" if host == "::1" else "127.0.0.1"
    family = socket.AF_INET6 if ":" in asked else socket.AF_INET
    with contextlib.closing(datagram_sockets(host, 0)) as sockets, contextlib.ExitStack() as stack:
        if sockets.strangers is None:
            pytest.skip("this kernel cannot steer")
        if gro:
            sockets.set_gro()
        for _ in range(4):  # it does not depend on who says it
            client = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            client.connect((asked, sockets.port))
            for message in TO_STRANGERS:
                client.send(message)
                assert heard(sockets) == (message, True)
            for message in TO_MAIN:
                client.send(message)
                assert heard(sockets) == (message, False)


def test_nobody_else_gets_the_port(pair, monkeypatch):
    monkeypatch.setattr(listeners, "PORT_WAIT_S", 0)
    for host in ("127.0.0.1", "0.0.0.0", "::"):
        with pytest.raises(OSError, match=f"port {pair.port}") as caught:
            client_sockets(host, pair.port, tcp=False)
        assert caught.value.errno == errno.EADDRINUSE
    pair.strangers.close()  # as a worker has it of a front end that was killed
    with pytest.raises(OSError, match="in use"):
        client_sockets("127.0.0.1", pair.port, tcp=False)


def test_of_two_that_begin_at_once_one_waits(pair, monkeypatch):
    monkeypatch.setattr(listeners, "PORT_WAIT_S", 0)
    port = pair.port
    pair.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        lock.bind(f"\0shunter-udp-{port}")
        with pytest.raises(OSError, match="in use"):
            client_sockets("127.0.0.1", port, tcp=False)
    sockets, _ = client_sockets("127.0.0.1", port, tcp=False)
    sockets.close()


def test_where_the_kernel_cannot_steer_there_is_one_socket(monkeypatch):
    monkeypatch.setattr(listeners, "_can_steer", lambda loops: False)
    with contextlib.closing(datagram_sockets("127.0.0.1", 0)) as sockets:
        assert sockets.strangers is None
        sockets.set_gro()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("127.0.0.1", sockets.port))
            client.send(HELLO)
            assert select.select([sockets.main], [], [], 10)[0] and sockets.main.recv(1 << 16)


def test_where_the_kernel_cannot_steer_one_socket_does(site):
    site.serve(steers=False)
    site.worker()
    client = site.client("udp")
    number = client.ask(7)
    assert client.answers(1) == {number: client.expected(7)}


@pytest.mark.parametrize("gro", [False, True])
@pytest.mark.parametrize("loops", [2, 3, 8])
def test_datagrams_of_a_session_come_by_the_socket_of_its_loop(loops, gro):
    with contextlib.closing(datagram_sockets("127.0.0.1", 0, loops)) as sockets:
        if gro:
            sockets.set_gro()
        everything = [sockets.strangers, *sockets.loops]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("127.0.0.1", sockets.port))
            cases = [(each, sockets.strangers) for each in TO_STRANGERS]
            cases += [(each, sockets.main) for each in TO_MAIN if len(each) < SESSION_AT + 4]
            for session in [*range(0, 1 << 32, 0x0FEDCBA9), 1, 0xFF, 0xFFFFFF, 0xFFFFFFFF]:
                kind = MessageType.REQ if session & 1 else MessageType.QUERY
                message = Header(kind, 1, session=session).pack(None)
                cases.append((message, sockets.loops[loop_of(session, loops)]))
            for message, by in cases:
                client.send(message)
                ready, _, _ = select.select(everything, [], [], 10)
                assert ready == [by]
                assert by.recv(1 << 16) == message


def test_where_the_kernel_cannot_steer_there_are_no_loops(monkeypatch):
    monkeypatch.setattr(listeners, "_can_steer", lambda loops: False)
    with pytest.raises(ValueError, match="steer"):
        datagram_sockets("127.0.0.1", 0, 2)


def test_where_the_kernel_cannot_steer_requests_are_answered(make_service, double, monkeypatch):
    monkeypatch.setattr(listeners, "_can_steer", lambda loops: False)
    service = make_service()
    assert service.front_end.udp.strangers is None
    service.serve("double", **double)
    with Client(service.url(), timeout_s=60) as client:
        assert (client.infer("double", np.ones(3, np.float32)) == 2).all()
