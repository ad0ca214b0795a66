"""The first batches of a new worker, before any request comes.

They are slow: libraries compile, allocate and start their threads, and the pages of the weights
come into memory. A worker that has a sample of a request runs them itself while it is still
loading, and gentle to those who serve.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from shunter.handlers.sample import Sample
from shunter.handlers.torchserve.metrics import muted
from shunter.handlers.torchserve.receive import Batch, batch_of_bodies

LARGEST = 4
"""Requests of a batch. One that needs too much memory must not keep a worker from loading."""
BUDGET_S = 1.5
"""Processor time; no batch is begun after it."""
LONGEST_S = 10.0
"""Likewise by the clock: a handler may wait for something else."""

logger = logging.getLogger("shunter.warm_up")


class NoSocket:
    """In place of the connection: a handler that streams must not write into the protocol."""

    def sendall(self, data: object) -> None:
        """Forget it."""


def warm_up(answer: Callable[[Batch], bytes], sample: Sample, largest: int) -> None:
    """Let the handler answer batches of 1, 1, 1, 2 and 4 requests, at most ``largest``.

    TorchScript looks at the first runs before it optimises.

    What goes wrong is logged and is no reason not to serve. Metrics are not counted.
    """
    request = sample.body, sample.content_type, {}
    spent, end = 0.0, time.monotonic() + LONGEST_S
    sizes = [1, 1, *(1 << k for k in range(max(1, min(largest, LARGEST)).bit_length()))]
    with muted():
        for size in sizes:
            if spent > BUDGET_S or time.monotonic() > end:
                return
            begin = time.process_time()
            code = int.from_bytes(answer(batch_of_bodies([request] * size))[:4], "big")
            if code != 200:
                logger.warning("The sample was answered %d; the worker is not warmed up.", code)
                return
            spent += time.process_time() - begin
