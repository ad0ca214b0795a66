"""Where clients come in: bound sockets. Each raises OSError that names what could not be had."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shunter.batching.queue.attach import peer_process, remove_left_over
from shunter.batching.queue.native import PEER_BYTES
from shunter.nic_frontend.server.sessions import origin_of, origin_of_user
from shunter.nic_frontend.wire.layout import X64_FIELDS, MessageType

IP_PKTINFO = 8
UDP_GRO = 104
SO_RXQ_OVFL = 40
SO_RCVBUFFORCE = 33
SO_ATTACH_REUSEPORT_CBPF = 51
RECEIVE_BUFFER = 64 << 20
STRANGERS_BUFFER = 128 << 10
"""For as many hellos as are answered in a few milliseconds; more would only wait longer."""
_FILTER = struct.Struct("@HBBI")
BACKLOG = 128
PORT_WAIT_S = 2.0
"""The workers of a front end that was killed have its socket until they see that it is gone."""


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Errors of the system get ``what`` as their file name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, what) from error


def origin_of_stream(connection: socket.socket) -> int:
    """What stands for the other end's host, or for its user where it is this one's.

    Raises OSError when the other end is gone.
    """
    if connection.family == socket.AF_UNIX:
        return origin_of_user(peer_process(connection)[1])
    return origin_of(peer_of(connection.getpeername()))


def peer_of(address: tuple[str, int] | tuple[str, int, int, int]) -> bytes:
    """The kernel's bytes of an address."""
    host, port = address[:2]
    if len(address) == 2:
        raw = socket.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big")
        return (raw + socket.inet_pton(socket.AF_INET, host)).ljust(PEER_BYTES, b"\0")
    flow, scope = address[2:]
    raw = socket.AF_INET6.to_bytes(2, "little") + port.to_bytes(2, "big") + flow.to_bytes(4, "big")
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return (raw + packed + scope.to_bytes(4, "little")).ljust(PEER_BYTES, b"\0")


def client_sockets(
    host: str, port: int, *, tcp: bool, loops: int = 1
) -> tuple[DatagramSockets, socket.socket | None]:
    """For datagrams, and for streams at the same port; port 0: any that is free for both."""
    until = time.monotonic() + PORT_WAIT_S
    while True:
        udp = None
        try:
            udp = datagram_sockets(host, port, loops)
            return udp, tcp_socket(host, udp.port) if tcp else None
        except OSError as error:
            if udp is not None:
                udp.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(0.02)


def _socket_for(host: str, port: int, kind: socket.SocketKind) -> tuple[socket.socket, Any]:
    """A socket that is not bound yet, and where to bind it; ``::`` takes IPv4 as well.

    An address of IPv6 may name its scope: ``fe80::1%eth0``.
    """
    with naming(f"the address {host}"):
        found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    made = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made, where


def steering(loops: int) -> list[tuple[int, int, int, int]]:
    """Instructions of BPF that return the index of a socket: of the first loop, of strangers, of
    the next loops. Each: code, how many to skip if so, if not, and a number."""
    strangers = [
        (0x30, 0, 0, X64_FIELDS["type"][0]),  # load a byte
        (0x15, 0, 1, MessageType.HELLO),  # is it this?
        (0x06, 0, 0, 1),  # return
    ]
    if loops == 1:
        return [*strangers, (0x06, 0, 0, 0)]
    return [
        *strangers,
        (0x30, 0, 0, X64_FIELDS["session"][0] + 3),  # its highest byte
        (0x94, 0, 0, loops),  # what is left when it is divided
        (0x15, 1, 0, 0),
        (0x04, 0, 0, 1),  # add
        (0x16, 0, 0, 0),  # return it
    ]


def loop_of(session: int, loops: int) -> int:
    """Of so many, to which datagrams of a session are steered."""
    return (session >> 24) % loops


@dataclass
class DatagramSockets:
    """Those of one port."""

    main: socket.socket
    strangers: socket.socket | None = None
    """By which hellos come, where the kernel can steer them: who floods the front end with them
    fills this one only."""
    more: list[socket.socket] = field(default_factory=list)
    """Those of all loops but the first."""

    @property
    def loops(self) -> list[socket.socket]:
        """One of each."""
        return [self.main, *self.more]

    @property
    def port(self) -> int:
        """Of both."""
        return int(self.main.getsockname()[1])

    def set_gro(self) -> None:
        """Let the kernel merge datagrams, where it can.

        All or none: whether it merges them is decided before they are steered.
        """
        for each in filter(None, (self.strangers, *self.loops)):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)

    def close(self) -> None:
        """Close them."""
        for each in filter(None, (self.strangers, *self.loops)):
            each.close()


def datagram_sockets(host: str, port: int, loops: int = 1) -> DatagramSockets:
    """For datagrams. The port is for nobody else: two front ends would mix their clients.

    Raises ValueError: it is for several loops, and the kernel cannot steer to them.

    Two sockets can share a port only if others may, too. So first one that cannot sees that nobody
    has it, and whoever shares the port afterwards holds a lock until he does.
    """
    alone = _udp_socket(host, port, RECEIVE_BUFFER)
    port = int(alone.getsockname()[1])
    with contextlib.ExitStack() as undo:
        undo.callback(alone.close)
        lock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        with naming(f"UDP port {port}"):
            lock.bind(f"\0shunter-udp-{port}")  # of this network namespace, as ports are
        if not _can_steer(loops):
            if loops > 1:
                raise ValueError("threads: this kernel cannot steer datagrams to several sockets")
            undo.pop_all()
            lock.close()
            return DatagramSockets(alone)
        alone.close()
        main = _udp_socket(host, port, RECEIVE_BUFFER, shared=True)
        undo.callback(main.close)
        _steer(main, loops)
        found = DatagramSockets(main)
        undo.callback(found.close)
        found.strangers = _udp_socket(host, port, STRANGERS_BUFFER, shared=True)
        for _ in range(1, loops):
            found.more.append(_udp_socket(host, port, RECEIVE_BUFFER, shared=True))
        undo.pop_all()
        lock.close()
        return found


def _can_steer(loops: int) -> bool:
    """Whether the kernel can choose among the sockets of a port by what a datagram says."""
    try:
        with _udp_socket("127.0.0.1", 0, STRANGERS_BUFFER, shared=True) as udp:
            _steer(udp, loops)
    except OSError:
        return False
    return True


def _steer(udp: socket.socket, loops: int) -> None:
    """Of the sockets that share its port, hellos go to the second one, and all else to those of
    loops; to the first also what is too short, which the program does not come to the end of."""
    steps = steering(loops)
    code = ctypes.create_string_buffer(b"".join(_FILTER.pack(*each) for each in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    udp.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)


def _udp_socket(host: str, port: int, receive: int, *, shared: bool = False) -> socket.socket:
    """A bound one, with a buffer for so many bytes."""
    udp, where = _socket_for(host, port, socket.SOCK_DGRAM)
    try:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        with contextlib.suppress(PermissionError):  # only root may pass the system's limit
            udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, receive)
        udp.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        if shared:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with naming(f"UDP {host} port {port}"):
            udp.bind(where)
        _tell_local_address(udp)
    except BaseException:
        udp.close()
        raise
    return udp


def _tell_local_address(udp: socket.socket) -> None:
    """With each datagram, where a socket takes those of all addresses: answers leave from the same
    one, and not from that which the routes prefer."""
    if int(ipaddress.ip_address(udp.getsockname()[0].partition("%")[0])):
        return
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        udp.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)


def tcp_socket(host: str, port: int) -> socket.socket:
    """For streams."""
    listener, where = _socket_for(host, port, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with naming(f"TCP {host} port {port}"):
            listener.bind(where)
            listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def unix_socket(path: Path) -> socket.socket:
    """For streams from this host."""
    remove_left_over(path, socket.SOCK_STREAM)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with naming(f"Unix socket {path}"):
            listener.bind(str(path))
            listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
