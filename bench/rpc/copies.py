"""Payload bytes that our processes, front end, workers and client, copy while one side is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shunter.nic_frontend.wire.layout import HEADER_BYTES

COUNTERS = ("requests", "bytes_in", "datagrams_in", "copied_bytes", "gathered_bytes")
"""Of the front end."""
CLIENT = "client_copied_bytes"


class Copies:
    """Of one model, over all turns of a side."""

    def __init__(self, reply: int) -> None:
        """``reply``: bytes of an answer."""
        self._reply = reply
        self._sums: Counter[str] = Counter()

    @contextmanager
    def turn(
        self, counters: Callable[[], Mapping[str, int]], client: Callable[[], int]
    ) -> Iterator[None]:
        """What is counted in between; ``client``: bytes that the client has copied so far."""
        before = {**counters(), CLIENT: client()}
        yield
        after = {**counters(), CLIENT: client()}
        self._sums.update({name: after[name] - before[name] for name in (*COUNTERS, CLIENT)})

    @property
    def came(self) -> int:
        """Payload bytes that came, requests to the front end and answers to the client."""
        sums = self._sums
        requests = sums["bytes_in"] - HEADER_BYTES * sums["datagrams_in"]
        return requests + self._reply * sums["requests"]

    @property
    def copied(self) -> int:
        """How often one of them was copied, of all: by the front end, by workers, by the client."""
        return self._sums["copied_bytes"] + self._sums["gathered_bytes"] + self._sums[CLIENT]

    def row(self) -> dict[str, float]:
        """By request."""
        count = max(1, self._sums["requests"])
        return {
            "requests": self._sums["requests"],
            "copies_per_byte": round(self.copied / self.came, 4) if self.came else 0,
            "bytes_copied_per_request": round(self.copied / count, 2),
            "of_them_by_workers": round(self._sums["gathered_bytes"] / count, 2),
            "of_them_by_the_client": round(self._sums[CLIENT] / count, 2),
            "payload_bytes_per_request": round(self.came / count, 1),
        }
