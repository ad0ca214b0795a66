"""A worker of a packed function that is all in Python: it unpacks what lies in the pieces."""

import contextlib
import os
import socket
import threading

import numpy as np

from shunter.batching.queue import attach
from shunter.batching.queue.layout import PIECE
from shunter.batching.queue.native import WorkerQueue, load
from shunter.batching.queue.packed import PackedError, Packing
from shunter.batching.queue.packed_form import PackedForm
from shunter.batching.queue.shared_memory import Mapping
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.handlers.queue.shared_regions import FrontEndWords
from shunter.nic_frontend import library

PATIENCE_S = 60


class PackedWorker:
    """Answers each request by ``infer(*arrays)``, which returns the outputs."""

    def __init__(self, path, model, inputs, outputs, infer, batch=8, version="1", **form):
        """``form``: of PackedForm."""
        packing = PackedForm(**form)
        self.packings = [Packing(tuple(each), packing.batched) for each in (inputs, outputs)]
        self._infer = infer
        self.rows, self.bad = [], 0
        """Of each request; requests that were none."""
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(PATIENCE_S)
        self.connection.connect(str(path))
        said = attach.Attach(
            *(model, version, tuple(inputs), tuple(outputs), batch, os.getpid()), packing=packing
        )
        attach.send(self.connection, said.to_json())
        self.answer, descriptors = attach.receive(self.connection)
        if "refused" in self.answer:
            self.connection.close()
            raise attach.AttachError(self.answer["refused"])
        self._sender = socket.socket(fileno=descriptors[0])
        self._bells = descriptors[1:3]
        self.landing = Mapping(descriptors[3], self.answer["landing"], writable=False)
        os.close(descriptors[3])
        carried = said.carried_inputs, said.carried_outputs
        self.queue = TensorQueue.attach(descriptors[4:], *carried, packed=True)
        [self.results] = self.queue.results()
        self.end = WorkerQueue(
            load(str(library.require()._name)),
            *(self.queue, self.answer["func_id"], self.answer["worker"], self.landing),
            doorbell=self._bells[0],
            socket=self._sender.fileno(),
            front=self._bells[1],
        )
        self.connection.settimeout(None)  # or it would wait where it must not
        self._words = FrontEndWords(self.connection, self.end)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(EOFError, OSError):
            while not self._over.is_set():
                self._words.hear()
                if (batch := self.end.wait([], 0, 10_000_000)) is not None:
                    entries = batch.entries[: batch.count]
                    self.end.answer(batch, [self._answered(entry) for entry in entries])

    def run_of(self, entry):
        """The bytes of its request."""
        found = b""
        for i in range(self.queue.words[self.queue.entry(entry, "entry_pieces")]):
            at = (entry * self.queue.most_pieces + i) * PIECE.size
            offset, length, region = PIECE.unpack_from(self.queue.pieces.bytes, at)
            if region and region not in self._words._mapped:
                self._words.hear()
            memory = self._words._mapped[region] if region else self.landing
            found += bytes(memory.bytes[offset : offset + length])
        return found

    def _answered(self, entry):
        """The status of its answer."""
        word = self.queue.words
        run = self.run_of(entry)
        assert len(run) == word[self.queue.entry(entry, "entry_bytes")]
        said = word[self.queue.entry(entry, "entry_rows")]
        try:
            rows, arrays = self.packings[0].unpack(run)
            if rows != said:
                raise PackedError(f"{rows} rows, not {said}")
        except PackedError:
            self.bad += 1
            return 400
        self.rows.append(rows)
        try:
            answer = self.packings[1].pack(self._infer(*arrays))
        except ValueError:
            return 500
        word[self.queue.entry(entry, "entry_result_bytes")] = len(answer)
        if len(answer) <= self.results.shape[1]:
            self.results[entry, : len(answer)] = np.frombuffer(answer, np.uint8)
        return 200

    def close(self):
        """It is gone."""
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.connection.close()
        self._words.close()
        self.end.close()
        self._sender.close()
        for descriptor in self._bells:
            os.close(descriptor)
        self.results = None
        self.queue.close()
        self.landing.close()
