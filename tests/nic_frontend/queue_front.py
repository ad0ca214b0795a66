"""The front end's part in a tensor queue, for tests of workers."""

import itertools
import os
import socket

import numpy as np

from shunter.batching.queue.landing import LandingPool
from shunter.batching.queue.layout import AHEAD, BLOCK, PIECE
from shunter.batching.queue.native import WorkerQueue, load
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import dtype_of
from shunter.nic_frontend import build
from shunter.nic_frontend.wire.layout import Flags


class QueueFront:
    """A queue with a worker's end of it, and a pool in which inputs lie in parts."""

    def __init__(self, inputs, outputs, entries, part=1000, *, packed=False):
        """``part``: bytes of a piece at most, as of a datagram."""
        self._part, self._at, self._given = part, 0, 0
        pieces = sum(-(-spec.bytes // part) for spec in inputs)
        self.queue = TensorQueue.create(
            *(1, inputs, outputs, entries, max(1, pieces)), packed=packed
        )
        self.entries = self.queue.entries
        each = sum(spec.bytes for spec in inputs) + 64 * max(1, pieces)
        self.pool = LandingPool(4 * entries * each + BLOCK, lambda: 1 << 40)
        self.pool.grow(self.pool.most)
        self.results = self.queue.results()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        self.end = WorkerQueue(
            load(str(build.ensure())),
            *(self.queue, 1, 0, self.pool.mapping),
            doorbell=self._bells[0],
            socket=self._socket.fileno(),
            front=self._bells[1],
        )

    def arrive(self, entry, *arrays):
        """A request is complete."""
        contents = [
            np.ascontiguousarray(array, dtype_of(spec.dtype)).reshape(-1).view(np.uint8)
            for spec, array in zip(self.queue.inputs, arrays, strict=True)
        ]
        assert [each.size for each in contents] == [spec.bytes for spec in self.queue.inputs]
        self.arrive_bytes(entry, contents)

    def arrive_bytes(self, entry, contents):
        """Its tensors lie in parts, anywhere."""
        memory = np.frombuffer(self.pool.mapping.bytes, np.uint8)
        number = 0
        for content in contents:
            for begin in range(0, content.size, self._part):
                part = content[begin : begin + self._part]
                if self._at + part.size > memory.size:
                    self._at = 0
                memory[self._at : self._at + part.size] = part
                at = (entry * self.queue.most_pieces + number) * PIECE.size
                PIECE.pack_into(self.queue.pieces.bytes, at, self._at, part.size, 0)
                self._at, number = self._at + part.size + 3, number + 1
        self.queue.words[self.queue.entry(entry, "entry_pieces")] = number

    def input_of(self, entry):
        """The bytes of its input, as they are in the pool."""
        found = b""
        for i in range(self.queue.words[self.queue.entry(entry, "entry_pieces")]):
            at = (entry * self.queue.most_pieces + i) * PIECE.size
            offset, length, _ = PIECE.unpack_from(self.queue.pieces.bytes, at)
            found += bytes(self.pool.mapping.bytes[offset : offset + length])
        return found

    def may_run_twice(self, *entries):
        """They are idempotent."""
        for entry in entries:
            self.queue.words[self.queue.entry(entry, "entry_flags")] = Flags.IDEMPOTENT

    def give(self, *entries):
        """A batch for the worker; what its end says of it."""
        words, queue = self.queue.words, self.queue
        for one, other in itertools.pairwise(entries):
            words[queue.entry(one, "entry_next")] = other
        self._given += 1
        place = self._given % AHEAD
        words[queue.worker(0, "batch_first") + place] = entries[0]
        words[queue.worker(0, "batch_count") + place] = len(entries)
        words[queue.worker(0, "batch_number")] = self._given
        found = self.end.wait((), 0, 0)
        assert found is not None and found.entries[: found.count] == list(entries)
        return found

    def run(self, worker, *entries):
        """Let a worker run a batch and answer it; its statuses."""
        worker.begin(self.give(*entries))
        statuses = self.finish(worker)
        said = [self.queue.words[self.queue.entry(entry, "entry_status")] for entry in entries]
        assert said == statuses
        return statuses

    def finish(self, worker):
        """Wait for the oldest batch of a worker and answer it; its statuses."""
        while (found := worker.finished()) is None:
            pass
        self.end.answer(*found)
        return found[1]

    def close(self):
        self.results = []
        self.end.close()
        self.queue.close()
        self.pool.close()
        self._socket.close()
        for descriptor in self._bells:
            os.close(descriptor)
