"""A worker of fake_triton's model, without torch.

    tensor_worker.py SOCKET DIM FAIL_EVERY CHILD MODEL [LOCK]

It attaches as every worker does. One batch of FAIL_EVERY fails, and so does the page that it writes
on; 0: none. With CHILD 1 a child of it has its connection, too, until the worker's input ends. With
LOCK it says where it runs, and into that file if anybody else runs there while it does.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import subprocess
import sys

import numpy as np

from shunter.batching.queue.attach import RESPONSE_TIMEOUT_S, Attach, receive, send
from shunter.batching.queue.native import WorkerQueue, load
from shunter.batching.queue.shared_memory import Mapping
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec

BATCH = 8
SLOT, SLICES = 70, 1 << 65 | 1
"""Of the control page, if there is one: where its strict requests run."""


def specs(dim):
    """Inputs and outputs."""
    inputs = (TensorSpec("x", "float32", (dim,)), TensorSpec("b", "int64", (1,)))
    return inputs, (TensorSpec("y", "float32", (4,)), TensorSpec("z", "int64", (1,)))


class Alone:
    """Holds a lock, which nobody else must hold."""

    def __init__(self, path):
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)

    def __enter__(self):
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.write(self._file, b"x")

    def __exit__(self, *_):
        fcntl.flock(self._file, fcntl.LOCK_UN)


def main(path, dim, fail_every, has_child, model, lock=None):
    inputs, outputs = specs(dim)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    if has_child:
        subprocess.Popen(["cat"], pass_fds=[connection.fileno()])
    place = {"slot": SLOT, "slices": SLICES, "place": SLICES if lock else 0}
    timeout_s = int(os.environ.get("RESPONSE_TIMEOUT_S", RESPONSE_TIMEOUT_S))
    attach = Attach(model, "1", inputs, outputs, BATCH, os.getpid(), timeout_s, **place)
    alone = Alone(lock) if lock else contextlib.nullcontext()
    send(connection, attach.to_json())
    answer, (udp, doorbell, front, pool, *rings) = receive(connection)
    queue = TensorQueue.attach(rings, inputs, outputs)
    landing = Mapping(pool, answer["landing"], writable=False)
    end = WorkerQueue(
        load(answer["library"]),
        *(queue, answer["func_id"], answer["worker"], landing),
        doorbell=doorbell,
        socket=udp,
        front=front,
    )
    x, b = np.empty((BATCH, dim), np.float32), np.empty((BATCH, 1), np.int64)
    into = (ctypes.c_void_p * 2)(x.ctypes.data, b.ctypes.data)
    results, batches = queue.results(), 0
    while True:
        batch = end.wait([connection.fileno()], 0, 1_000_000_000)
        if batch is None:
            try:
                content, _ = receive(connection, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            assert content == {"left": True}
            return
        batches += 1
        if fail_every and batches % fail_every == 0:
            for entry in batch.entries[: batch.count]:
                queue.words[queue.entry(entry, "entry_pieces")] = 1 << 30
            end.answer(batch, [500] * batch.count)
            continue
        with alone:
            end.gather(batch, 0, batch.count, into)
            for row in range(batch.count):
                entry = batch.entries[row]
                results[0][entry] = x[row, :4] + 1
                results[1][entry] = 2 * b[row]
        end.answer(batch, [200] * batch.count)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, OSError):  # who served it is gone
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1", *sys.argv[5:])
