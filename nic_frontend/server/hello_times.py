"""Round-trip times, measured where a client answers at once: its second hello. Pure.

The first hello gets a cookie, and the second one brings it back. The time between them is a way to
the client, its turn, and the way back. In a session the front end cannot know this: who is slow to
acknowledge may just have nothing to ask.
"""

from __future__ import annotations

from collections import OrderedDict

MOST = 256
"""Clients that may be between their hellos."""


class HelloTimes:
    """Sum and count of the round trips, in nanoseconds."""

    def __init__(self) -> None:
        """None was measured."""
        self.sum_ns = 0
        self.count = 0
        self._sent: OrderedDict[bytes, int | None] = OrderedDict()

    def cookie_sent(self, nonce: bytes, now_ns: int) -> None:
        """A first hello is being answered."""
        # Twice: it will not be known which of the two answers the second hello followed.
        self._sent[nonce] = None if nonce in self._sent else now_ns
        if len(self._sent) > MOST:
            self._sent.popitem(last=False)

    def came_back(self, nonce: bytes, now_ns: int) -> None:
        """The second hello is here."""
        sent_ns = self._sent.pop(nonce, None)
        if sent_ns is not None:
            self.sum_ns += now_ns - sent_ns
            self.count += 1
