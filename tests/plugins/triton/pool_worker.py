"""A process that serves both of fake_triton's models, m and n, one batch at a time, without torch.

    pool_worker.py SOCKET DIM [seats]

Its workers are of one set. At the end it prints how many batches they had at once, together. With
``seats`` other processes have connected for it, whose numbers it prints first.
"""

import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tensor_worker import BATCH, specs

from shunter.batching.queue.attach import Attach, receive, send
from shunter.batching.queue.native import WorkerQueue, load
from shunter.batching.queue.shared_memory import Mapping
from shunter.batching.queue.tensor_queue import TensorQueue

SET = 7


def connected(path, *, by_another):
    """A connection; ``by_another``: of a process that does nothing else, and ends with this one."""
    if not by_another:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(path)
        return connection
    ours, theirs = socket.socketpair()
    if not (pid := os.fork()):
        ours.close()
        with connected(path, by_another=False) as connection:
            socket.send_fds(theirs, [b"x"], [connection.fileno()])
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    print(pid, flush=True)
    _KEPT.append(ours)
    return socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])


_KEPT = []


class Seat:
    """A worker of a model."""

    def __init__(self, path, model, dim, *, by_another):
        inputs, outputs = specs(dim)
        self.connection = connected(path, by_another=by_another)
        attach = Attach(model, "1", inputs, outputs, BATCH, os.getpid(), pool=SET)
        send(self.connection, attach.to_json())
        answer, (udp, doorbell, front, pool, *rings) = receive(self.connection)
        self.queue = TensorQueue.attach(rings, inputs, outputs)
        self.end = WorkerQueue(
            load(answer["library"]),
            *(self.queue, answer["func_id"], answer["worker"]),
            Mapping(pool, answer["landing"], writable=False),
            doorbell=doorbell,
            socket=udp,
            front=front,
        )
        self.other = [self.connection.fileno()]
        self.given = self.queue.worker(answer["worker"], "batch_number")
        self.rows = np.empty((BATCH, dim), np.float32), np.empty((BATCH, 1), np.int64)
        self.into = (ctypes.c_void_p * 2)(*(each.ctypes.data for each in self.rows))
        self.results, self.done = self.queue.results(), 0

    def held(self):
        """Batches that it was given and has not answered."""
        return self.queue.words[self.given] - self.done

    def next(self):
        """A batch, None: there is none. Raises EOFError when it is over."""
        if (batch := self.end.wait(self.other, 0, 1_000_000)) is None:
            with contextlib.suppress(BlockingIOError):
                receive(self.connection, socket.MSG_DONTWAIT)
        return batch

    def run(self, batch):
        self.end.gather(batch, 0, batch.count, self.into)
        for row in range(batch.count):
            entry = batch.entries[row]
            self.results[0][entry] = self.rows[0][row, :4] + 1
            self.results[1][entry] = 2 * self.rows[1][row]
        self.end.answer(batch, [200] * batch.count)
        self.done += 1


def main(path, dim, *, by_another):
    seats, most = [Seat(path, model, dim, by_another=by_another) for model in "mn"], 0
    try:
        while True:
            for seat in seats:
                if (batch := seat.next()) is not None:
                    most = max(most, sum(each.held() for each in seats))
                    seat.run(batch)
    except (EOFError, OSError):  # who served it is gone
        print(most, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), by_another="seats" in sys.argv)
