"""A relay that repeats and reflects what it carries: what somebody on the way could do.

For every datagram it also sends one of those that it has seen before: again to where it went
(replay), and back to where it came from (reflection).
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading

REMEMBERED = 4096
LARGEST = 1 << 16


class Relay:
    """Between one client, which sends to ``port``, and a server. A context manager; it stays in the
    network namespace of the thread that enters it."""

    def __init__(self, host: str, port: int, seed: int = 7) -> None:
        self._server, self._random = (host, port), random.Random(seed)
        self._seen: tuple[list[bytes], list[bytes]] = ([], [])
        self.replayed = self.reflected = 0

    def __enter__(self) -> Relay:
        self._near, self._far = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self._near.bind(("127.0.0.1", 0))
        self._far.connect(self._server)
        self.port = self._near.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._over.is_set():
            for ready in select.select([self._near, self._far], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self._carry(ready is self._near)

    def _carry(self, up: bool) -> None:
        if up:
            data, self._client = self._near.recvfrom(LARGEST)
        else:
            data = self._far.recv(LARGEST)
        self._send(up, data)
        seen = self._seen[up]
        if seen:
            self._send(up, self._random.choice(seen))
            self._send(not up, self._random.choice(seen))
            self.replayed += 1
            self.reflected += 1
        if len(seen) < REMEMBERED:
            seen.append(data)
        else:
            seen[self._random.randrange(REMEMBERED)] = data

    def _send(self, up: bool, data: bytes) -> None:
        if up:
            self._far.send(data)
        else:
            self._near.sendto(data, self._client)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._near.close()
        self._far.close()
