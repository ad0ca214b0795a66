"""The front end's part in a packed queue, for tests of workers."""

import os

import numpy as np
from queue_front import QueueFront

from shunter.batching.queue.attach import Attach
from shunter.batching.queue.packed import Packing
from shunter.batching.queue.packed_form import PackedForm


class PackedFront(QueueFront):
    """A packed queue of a model, with a worker's end of it."""

    def __init__(self, inputs, outputs, entries, part=1000, **form):
        packing = PackedForm(**{"request_bytes": 1 << 16, "answer_bytes": 1 << 14, **form})
        self.attach = Attach(
            *("m", "1", tuple(inputs), tuple(outputs), entries, os.getpid()), packing=packing
        )
        super().__init__(
            *(self.attach.carried_inputs, self.attach.carried_outputs, entries, part), packed=True
        )
        self.requests = Packing(self.attach.inputs, packing.batched)
        self.answers = Packing(self.attach.outputs, packing.batched)

    def ask(self, entry, *tensors):
        """A request is complete."""
        self.ask_run(entry, self.requests.pack(tensors))

    def ask_run(self, entry, run, rows=None):
        """The same with any bytes."""
        words, queue = self.queue.words, self.queue
        self.arrive_bytes(entry, [np.frombuffer(run, np.uint8)])
        rows = int(np.frombuffer(run, "<u4", 1)[0]) if rows is None else rows
        words[queue.entry(entry, "entry_bytes")] = len(run)
        words[queue.entry(entry, "entry_rows")] = rows

    def answer(self, entry):
        """What the worker wrote, as rows and tensors."""
        size = self.queue.words[self.queue.entry(entry, "entry_result_bytes")]
        return self.answers.unpack(self.results[0][entry, :size].tobytes())
