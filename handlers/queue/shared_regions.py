"""What a front end says to a worker that is attached: memory of clients, and that it may leave."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from shunter.batching.queue.attach import AttachError, receive, send
from shunter.batching.queue.native import REGIONS, WorkerQueue
from shunter.batching.queue.shared_memory import Mapping


class FrontEndWords:
    """Heard between two batches, and when the inputs of one lie where nothing is known of.

    The front end says where they lie before it gives a batch, but nobody may have listened since.
    """

    def __init__(self, connection: socket.socket, end: WorkerQueue) -> None:
        """Both stay the caller's."""
        self._connection, self._end = connection, end
        self._mapped: dict[int, Mapping] = {}
        self.is_dismissed = False
        """It may leave: nothing comes any more."""

    def hear(self) -> bool:
        """Heed all that has been said; whether there was anything. Never waits.

        Raises EOFError or OSError when the front end is gone, AttachError for what makes no sense.
        """
        heard = False
        while True:
            try:
                content, descriptors = receive(self._connection, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return heard
            heard = True
            with ExitStack() as stack:
                for each in descriptors:
                    stack.callback(os.close, each)
                try:
                    self._heed(content, descriptors)
                except (KeyError, TypeError, ValueError) as error:
                    raise AttachError(f"what does the front end mean by {content!r}?") from error

    def _heed(self, content: dict[str, int], descriptors: list[int]) -> None:
        if content.get("left"):
            self.is_dismissed = True
        elif "region" in content:
            [descriptor] = descriptors
            number = _number(content["region"])
            self._forget(number)
            mapping = Mapping(descriptor, int(content["bytes"]), writable=False)
            self._mapped[number] = mapping
            self._end.set_region(number, mapping)
        elif "unmap" in content:
            number = _number(content["unmap"])
            self._forget(number)
            send(self._connection, {"unmapped": number})

    def _forget(self, number: int) -> None:
        self._end.set_region(number, None)
        if mapping := self._mapped.pop(number, None):
            mapping.close()

    def close(self) -> None:
        """Unmap all of it; no batch runs any more."""
        for number in list(self._mapped):
            self._forget(number)


def _number(said: int) -> int:
    """Of a region. Raises ValueError for what cannot be one."""
    if not 0 < said < REGIONS:
        raise ValueError(said)
    return said
