"""A network of two namespaces, and a link between them that loses, doubles and reorders packets.

Each end is a TUN device for each of ``MTUS``: what comes out of one, whole IP packets as the
kernel cut them, goes into the other, if at all. Needs root. As a script:

    lossy_link.py                     make the network, say where its namespaces are, be the link
    lossy_link.py enter PATH COMMAND  run a command in one of them
"""

import contextlib
import ctypes
import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

MTUS = (1500, 9000)
SERVER, CLIENT = 1, 2
"""Last numbers of their addresses."""
HOLD_S = 0.002
"""What is to be overtaken goes after this time at the latest."""
NEW_NETWORK = 0x40000000
TUNSETIFF, TUN_NO_PI = 0x400454CA, 0x1001
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
SIOCSIFMTU, SIOCGIFINDEX, SIOCSIFTXQLEN = 0x8922, 0x8933, 0x8943
UP_RUNNING = 0x41
QUEUE = 20_000
"""Packets; nothing is lost but what the link loses."""
SEED = 7


def address(mtu, end):
    """Of an end at the link with this MTU: IPv4 for the one, IPv6 for the other."""
    return f"10.7.7.{end}" if mtu == MTUS[0] else f"fd07::{end}"


def _call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def enter(path):
    """Put the calling thread into a network namespace."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _call("setns", descriptor, NEW_NETWORK)
    finally:
        os.close(descriptor)


def _device(mtu, end):
    """A TUN device in this thread's namespace; its descriptor."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"link{mtu}".encode()
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name, TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four:
        fcntl.ioctl(four, SIOCSIFMTU, struct.pack("16si20x", name, mtu))
        fcntl.ioctl(four, SIOCSIFTXQLEN, struct.pack("16si20x", name, QUEUE))
        index = fcntl.ioctl(four, SIOCGIFINDEX, struct.pack("16si20x", name, 0))
        index = struct.unpack("16si20x", index)[1]
        where = address(mtu, end)
        if ":" in where:
            fcntl.ioctl(four, SIOCSIFFLAGS, struct.pack("16sh22x", name, UP_RUNNING))
            packed = socket.inet_pton(socket.AF_INET6, where)
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
                fcntl.ioctl(six, SIOCSIFADDR, struct.pack("16sIi", packed, 64, index))
        else:
            for number, value in ((SIOCSIFADDR, where), (SIOCSIFNETMASK, "255.255.255.0")):
                packed = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(four, number, struct.pack("16s16s8x", name, packed))
            fcntl.ioctl(four, SIOCSIFFLAGS, struct.pack("16sh22x", name, UP_RUNNING))
    return tun


class _Way:
    """From one device to another."""

    def __init__(self, link, source, target):
        self.link, self.source, self.target = link, source, target
        self.held, self.since = None, 0.0

    def _pass(self, packet):
        with contextlib.suppress(OSError):  # the device is going away
            os.write(self.target, packet)
        self.link.counts["passed"] += 1

    def release(self):
        """What was held goes on."""
        if self.held is not None:
            packet, self.held = self.held, None
            self._pass(packet)

    def carry(self):
        """Take what there is."""
        for _ in range(64):
            try:
                packet = os.read(self.source, 1 << 16)
            except BlockingIOError:
                return
            if self.link.happens("lost"):
                continue
            if self.held is None and self.link.happens("overtaken"):
                self.held, self.since = packet, time.monotonic()
                continue
            self._pass(packet)
            if self.link.happens("doubled"):
                self._pass(packet)
            self.release()


class _Link:
    """Both ways at every MTU."""

    def __init__(self, servers, clients):
        self.random = random.Random(SEED)
        self.faults = {}
        self.counts = dict.fromkeys(("passed", "lost", "doubled", "overtaken"), 0)
        self.ways = {}
        for server, client in zip(servers, clients, strict=True):
            self.ways[server] = _Way(self, server, client)
            self.ways[client] = _Way(self, client, server)

    def happens(self, fault):
        """Whether it does, to the next packet."""
        found = self.random.random() < self.faults.get(fault, 0)
        self.counts[fault] += found
        return found

    def run(self):
        """Until the input ends; each line of it has other faults, and is answered by counts."""
        poller = select.poll()
        for descriptor in (0, *self.ways):
            poller.register(descriptor, select.POLLIN)
        while True:
            holds = any(way.held is not None for way in self.ways.values())
            for descriptor, _ in poller.poll(1 if holds else None):
                if descriptor:
                    self.ways[descriptor].carry()
                elif line := os.read(0, 1 << 16):
                    self.faults = json.loads(line)
                    print(json.dumps(self.counts), flush=True)
                else:
                    return
            now = time.monotonic()
            for way in self.ways.values():
                if way.held is not None and now - way.since > HOLD_S:
                    way.release()


def main():
    """Make the network, and be the link."""
    ends, spaces = [], []
    try:
        for end in (SERVER, CLIENT):
            _call("unshare", NEW_NETWORK)
            space = os.open("/proc/self/ns/net", os.O_RDONLY)
            spaces.append(f"/proc/{os.getpid()}/fd/{space}")
            ends.append([_device(mtu, end) for mtu in MTUS])
    except OSError as error:
        print(json.dumps({"impossible": str(error)}), flush=True)
        return
    print(json.dumps({"server": spaces[0], "client": spaces[1]}), flush=True)
    _Link(*ends).run()


class Network:
    """The process that is the link. A context manager."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        said = json.loads(self._process.stdout.readline())
        self.impossible = said.get("impossible", "")
        """Why there is no network."""
        self.server, self.client = said.get("server"), said.get("client")
        """Namespaces."""
        return self

    def command(self, space):
        """What stands before a command that is to run there."""
        return (sys.executable, __file__, "enter", space)

    def faults(self, **shares):
        """Shares of the packets from now on; counts until now."""
        self._process.stdin.write(json.dumps(shares) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["enter"]:
        enter(sys.argv[2])
        os.execv(sys.argv[3], sys.argv[3:])
    main()
