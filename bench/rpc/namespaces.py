"""Two network namespaces with wires between them, so that packets are real ones.

The main thread enters the server's namespace: what it starts runs there. Load comes from the
other: :meth:`Place.run` calls a function in a thread that has entered that one (a namespace is
a thread's), and what that starts runs there, too. The wires are veth pairs, each named by its MTU:

``1500``
    with the offloads that veth has, as NICs have them, for all protocols alike: TSO and USO take
    up to 64 KB from TCP and UDP in one piece, whose segments are of the MTU. It passes the wire in
    one piece too: as if a NIC cut it and the other joined it again.
``1500-cut``
    without any: the kernel cuts what TCP and UDP hand it in one piece into packets before they
    leave, and nothing joins them again.

The namespaces are held by two processes and gone with them. Where this is not permitted there is
loopback alone, and why.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")
LOOPBACK = "loopback"
CUT = "-cut"
WIRES = ("1500", "9000", f"1500{CUT}")
NEW_NETWORK = 0x40000000
THREADS = 4
"""In the clients' namespace: so many functions may run there at a time."""
SIOCETHTOOL = 0x8946
GSTRINGS, SFEATURES, FEATURES = 0x1B, 0x3B, 4
IN_SOFTWARE = "tx-generic-segmentation"
JOINING = ("rx-gro", "rx-gro-list", "rx-udp-gro-forwarding", "rx-lro")
SPOOFED = "198.18.0.0/15"
"""Addresses of nobody (RFC 2544); what the server answers them goes over the first wire."""


class ImpossibleError(Exception):
    """No such network here; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where the clients are, and the server's address as they see it."""

    name: str
    """``loopback``, or ``mtu1500``."""
    host: str
    _threads: ThreadPoolExecutor | None = None

    def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What a function returns there."""
        if self._threads is None:
            return function(*arguments)
        return self._threads.submit(function, *arguments).result()


def addresses(wire: str) -> tuple[str, str]:
    """Of the server and of the client on a wire.

    >>> addresses("1500"), addresses("1500-cut")
    (('10.15.0.1', '10.15.0.2'), ('10.15.1.1', '10.15.1.2'))
    """
    net = f"10.{mtu_of(wire) // 100}.{int(wire.endswith(CUT))}"
    return f"{net}.1", f"{net}.2"


def mtu_of(wire: str) -> int:
    """By its name."""
    return int(wire.removesuffix(CUT))


def interface(wire: str) -> str:
    """Its name at both ends."""
    return f"wire{wire}"


class Network:
    """The places ``mtuWIRE`` of ``wires``. A context manager, to be used by the main thread."""

    def __init__(self, wires: Sequence[str] = WIRES) -> None:
        self._wires = wires
        self._stack = contextlib.ExitStack()
        self.impossible = ""
        """Why there are no namespaces; empty: there are."""

    def __enter__(self) -> Network:
        self._places = {LOOPBACK: Place(LOOPBACK, "127.0.0.1")}
        if self._wires:
            try:
                self._make()
            except ImpossibleError as error:
                self.impossible = str(error)
                self._stack.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def places(self, names: Sequence[str]) -> list[Place]:
        """Those of the names that there are."""
        return [self._places[name] for name in names if name in self._places]

    def packets(self, wire: str) -> tuple[int, int]:
        """Packets and bytes that left the server's end so far."""
        told = _at(self._server, "ip", "-s", "-j", "link", "show", interface(wire))
        sent = json.loads(told)[0]["stats64"]["tx"]
        return sent["packets"], sent["bytes"]

    def _make(self) -> None:
        for tool in ("ip", "unshare", "nsenter"):
            if not shutil.which(tool):
                raise ImpossibleError(f"there is no {tool}")
        self._server, client = self._held(), self._held()
        for end in (self._server, client):
            _at(end, "ip", "link", "set", "lo", "up")
        for wire in self._wires:
            self._wire(wire, client)
        gateway = addresses(self._wires[0])[1]
        _at(self._server, "ip", "route", "add", SPOOFED, "via", gateway)
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._stack.callback(os.close, own)
        self._stack.callback(_enter, own)
        with open(f"/proc/{self._server}/ns/net", "rb") as space:
            _enter(space.fileno())
        threads = ThreadPoolExecutor(THREADS, initializer=_enter_of, initargs=(client,))
        self._stack.enter_context(threads)
        for wire in self._wires:
            if wire.endswith(CUT):
                without_offloads(interface(wire))
                threads.submit(without_offloads, interface(wire)).result()
            place = Place(f"mtu{wire}", addresses(wire)[0], threads)
            self._places[place.name] = place

    def _held(self) -> int:
        """A process that holds a namespace of its own, until the end."""
        command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None and process.stderr is not None
        if not process.stdout.readline():
            raise ImpossibleError(process.stderr.read().decode().strip())
        return process.pid

    def _wire(self, wire: str, client: int) -> None:
        name, mtu = interface(wire), mtu_of(wire)
        ends = (self._server, client)
        _run(
            *("ip", "link", "add", name, "netns", str(ends[0]), "type", "veth"),
            *("peer", "name", name, "netns", str(ends[1])),
        )
        for end, address in zip(ends, addresses(wire), strict=True):
            _at(end, "ip", "address", "add", f"{address}/24", "dev", name)
            _at(end, "ip", "link", "set", name, "mtu", str(mtu), "up")


def without_offloads(name: str) -> None:
    """Of segments, at an interface of this thread's namespace: neither cut nor joined there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        names = bytearray(struct.pack("III", GSTRINGS, FEATURES, 0) + bytes(32 * 256))
        _ethtool(any_socket, name, names)
        count = struct.unpack_from("I", names, 8)[0]
        features = [names[12 + 32 * i :][:32].split(b"\0")[0].decode() for i in range(count)]
        blocks = [[0, 0] for _ in range(-(-count // 32))]
        for i, feature in enumerate(features):
            cuts = feature.endswith("-segmentation") and feature != IN_SOFTWARE
            if cuts or feature in JOINING:
                blocks[i // 32][0] |= 1 << i % 32  # to be changed, to off
        flat = [number for block in blocks for number in block]
        change = struct.pack(f"II{len(flat)}I", SFEATURES, len(blocks), *flat)
        _ethtool(any_socket, name, bytearray(change))


def _ethtool(any_socket: socket.socket, name: str, data: bytearray) -> None:
    memory = (ctypes.c_char * len(data)).from_buffer(data)
    request = struct.pack("16sP", name.encode(), ctypes.addressof(memory)).ljust(40, b"\0")
    try:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
    except OSError as error:
        raise ImpossibleError(f"segmentation offloads of {name}: {error}") from error


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImpossibleError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _at(holder: int, *command: str) -> str:
    return _run("nsenter", "-t", str(holder), "-n", *command)


def _enter(descriptor: int) -> None:
    """Put the calling thread into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NEW_NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _enter_of(holder: int) -> None:
    with open(f"/proc/{holder}/ns/net", "rb") as space:
        _enter(space.fileno())
