"""Two network namespaces with a bottleneck between them: a rate, a queue, a delay, and losses.

The kernel has no netem here, so the link is this process: each end is a TUN device, and what comes
out of one, whole IP packets of at most 1500 bytes as the kernel cut them, goes into the other when
its time has come. Needs root. As a script it makes the network, says where its namespaces are, is
the link, and answers each line of its input with the bytes that have passed, by protocol, port and
direction.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import select
import subprocess
import sys
import time
from collections import Counter, deque
from pathlib import Path
from types import ModuleType
from typing import Any, Self

MTU = 1500
RATE_BITS = 100e6
DELAY_S = 0.010
"""Each way: half of a round trip of 20 ms."""
LOST = 0.01
QUEUE_S = 0.020
"""What waits longer than this for its turn does not come into the queue: one round trip's worth."""
_PROTOCOLS = {6: "tcp", 17: "udp"}


def _lossy_link() -> ModuleType:
    path = Path(__file__).parents[2] / "tests/nic_frontend/lossy_link.py"
    spec = importlib.util.spec_from_file_location("lossy_link", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LINK = _lossy_link()


class Way:
    """From one device to another."""

    def __init__(self, name: str, source: int, target: int, seed: int) -> None:
        self.name, self.source, self.target = name, source, target
        self._random = random.Random(seed)
        self._free_s = 0.0
        """When the last of those that have come is on its way."""
        self._flying: deque[tuple[float, bytes]] = deque()
        self.counts: Counter[str] = Counter()

    def take(self, now: float) -> None:
        """What there is: some of it is lost, by chance or because the queue is full."""
        for _ in range(64):
            try:
                packet = os.read(self.source, 1 << 16)
            except BlockingIOError:
                return
            self._free_s = max(self._free_s, now)
            if self._free_s - now > QUEUE_S:
                self.counts["queue full"] += 1
            elif self._random.random() < LOST:
                self.counts["lost"] += 1
            else:
                self._free_s += len(packet) * 8 / RATE_BITS
                self._flying.append((self._free_s + DELAY_S, packet))

    def pass_on(self, now: float) -> float:
        """What has arrived; seconds until the next does."""
        while self._flying and self._flying[0][0] <= now:
            packet = self._flying.popleft()[1]
            self.counts[self._flow(packet)] += len(packet)
            try:
                os.write(self.target, packet)
            except OSError:
                self.counts["not taken"] += 1
        return self._flying[0][0] - now if self._flying else 1.0

    def _flow(self, packet: bytes) -> str:
        """Protocol and the server's port."""
        if packet[0] >> 4 != 4 or packet[9] not in _PROTOCOLS:
            return "other"
        at = 4 * (packet[0] & 15) + (2 if self.name == "up" else 0)
        return f"{_PROTOCOLS[packet[9]]} {int.from_bytes(packet[at : at + 2], 'big')}"


def run(ways: list[Way]) -> None:
    """Until the input ends."""
    sources = {way.source: way for way in ways}
    while True:
        wait = min(way.pass_on(time.monotonic()) for way in ways)
        ready, _, _ = select.select([0, *sources], [], [], max(0.0, wait))
        for descriptor in ready:
            if descriptor:
                sources[descriptor].take(time.monotonic())
            elif os.read(0, 1 << 12):
                print(json.dumps({way.name: way.counts for way in ways}), flush=True)
            else:
                return


def main() -> None:
    """Make the network, and be the link."""
    devices, spaces = [], []
    try:
        for end in (LINK.SERVER, LINK.CLIENT):
            LINK._call("unshare", LINK.NEW_NETWORK)
            space = os.open("/proc/self/ns/net", os.O_RDONLY)
            spaces.append(f"/proc/{os.getpid()}/fd/{space}")
            devices.append(LINK._device(MTU, end))
    except OSError as error:
        print(json.dumps({"impossible": str(error)}), flush=True)
        return
    print(json.dumps({"server": spaces[0], "client": spaces[1]}), flush=True)
    server, client = devices
    run([Way("up", client, server, 7), Way("down", server, client, 8)])


class Bottleneck:
    """The process that is the link. A context manager."""

    def __enter__(self) -> Self:
        command = [sys.executable, __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process: Any = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        said = json.loads(self._process.stdout.readline())
        if "impossible" in said:
            raise RuntimeError(f"no network of its own: {said['impossible']}")
        self.server, self.client = said["server"], said["client"]
        self.address = LINK.address(MTU, LINK.SERVER)
        return self

    def inside(self, space: str, *command: str) -> list[str]:
        """A command that runs in one of the namespaces."""
        return [sys.executable, LINK.__file__ or "", "enter", space, sys.executable, *command]

    def passed(self) -> dict[str, dict[str, int]]:
        """Bytes so far: by direction, of each flow."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, dict[str, int]] = json.loads(self._process.stdout.readline())
        return found

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    main()
