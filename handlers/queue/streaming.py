"""A model worker whose answers come in parts.

What makes a model such a one is ``streamed: true`` beside its tensors in ``model-config.yaml``. Its
handler has ``infer(batch)`` as :mod:`shunter.handlers.queue.packed_queue` describes, and *yields*::

    def infer(self, batch):
        for step in range(64):
            yield self.next_tokens(batch)

What it yields is what another handler returns: the outputs of all requests, of which each becomes
a part of each answer. In a list with one for each request, None stands for a request that has no
part this time. All end together when the handler does, but for those of which it says by
``batch.end(i)`` that what it yields next is their last part. ``batch.unwanted`` are requests whose
clients have gone; a handler may leave them out, and when nobody is left it is closed.

A handler goes on when there are places for the next parts of all answers: up to eight of each may
be on their way. Clients that let others wait too long for that, of their batch or for the worker,
find their next parts in a backlog; when it is full their answers end. The limits are a
:class:`~shunter.handlers.queue.tensor_config.Backlog`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from shunter.batching.queue.attach import Attach
from shunter.batching.queue.layout import EntryStatus
from shunter.batching.queue.native import Batch, WorkerQueue
from shunter.batching.queue.native_parts import LONGEST_SLEEP_NS, Parts, PartsEnd
from shunter.batching.queue.tensor_spec import BYTES, TensorSpec
from shunter.handlers.queue.packed_batch import PackedBatch
from shunter.handlers.queue.packed_outputs import Output
from shunter.handlers.queue.packed_queue import PackedInfer, PackedQueueWorker
from shunter.handlers.queue.tensor_config import USUAL_BACKLOG, Backlog, Padding

_LEAST_BYTES = 64
_FORGIVEN = 4
"""Of all time that passes others may wait this part."""


class Reader(Parts):
    """The answer to one request, and how far behind its client is."""

    def __init__(self, entry: int, rows: int) -> None:
        """``entry`` and ``rows``: of its request."""
        super().__init__(entry)
        self.rows, self.status = rows, int(EntryStatus.OK)
        self.held_ns = 0
        """How long others of its batch have waited for it, less a share of the time since."""
        self.stalled_ns = 0
        """The same of requests that wait for the worker, while none of its batch could go on."""
        self.backlog: deque[list[Output]] = deque()
        """Parts for whose places nobody waits any more."""
        self.bytes = 0
        """Of them."""
        self.ends = False
        """It gets no more parts than those."""

    @property
    def goes_on(self) -> bool:
        """It is to get what is yielded."""
        return self.wanted and not self.ends and self.status == EntryStatus.OK

    def keep(self, outputs: Sequence[Output]) -> None:
        """A part that has no place."""
        self.backlog.append([each.copy() for each in outputs])
        self.bytes += _bytes(outputs)

    def next(self) -> list[Output]:
        """The part that was kept first."""
        outputs = self.backlog.popleft()
        self.bytes -= _bytes(outputs)
        return outputs

    def drop(self) -> None:
        """Of what was kept nothing goes any more."""
        self.backlog.clear()
        self.bytes = 0


def _bytes(outputs: Sequence[Output]) -> int:
    """What a part that is kept counts."""
    return _LEAST_BYTES + sum(each.bytes for each in outputs)


class StreamingQueueWorker(PackedQueueWorker):
    """Runs batches whose answers come in parts."""

    def __init__(
        self,
        end: WorkerQueue,
        infer: PackedInfer,
        attach: Attach,
        padding: Padding,
        device: torch.device | None,
        backlog: Backlog = USUAL_BACKLOG,
    ) -> None:
        """``device``: where the model is, None: on the host."""
        super().__init__(end, infer, attach, padding, device)
        self._end, self._specs = PartsEnd(end), attach.outputs
        self._most_bytes, self._most_ns = backlog.bytes, backlog.ms * 1_000_000
        self._most_stalled_ns = backlog.stall_ms * 1_000_000
        self._given_ns = 0

    def _again(self, batch: Batch, request: int, count: int) -> int:
        """Of its parts some may have been seen: it never runs twice."""
        return EntryStatus.HANDLER_FAILED

    def _work(self, batch: Batch, begin: int, made: PackedBatch, good: list[int]) -> list[int]:
        readers = [
            Reader(batch.entries[begin + i], rows)
            for i, rows in zip(good, made.rows, strict=True)
        ]
        steps = self._infer(made)
        steps = steps if isinstance(steps, Iterator) else iter([steps])
        try:
            for found in steps:
                self._give(made, readers, found)
                made.unwanted.update(i for i, each in enumerate(readers) if not each.wanted)
                if len(made.unwanted | made.refused | made.ended) == len(readers):
                    break
            if any(each.backlog for each in readers):  # the others need not wait for that
                for each in readers:
                    each.ends = True
        finally:
            if callable(close := getattr(steps, "close", None)):
                close()
            self._drain(readers)
        return [
            EntryStatus.BAD_REQUEST if i in made.refused else each.status
            for i, each in enumerate(readers)
        ]

    # ---- what a handler has yielded

    def _give(self, made: PackedBatch, readers: list[Reader], found: Any) -> None:
        """It becomes a part of each answer that is wanted, and of some the last."""
        by_output = [
            self._by_request(spec, given, made)
            for spec, given in zip(self._specs, self._outputs.by_output(found), strict=True)
        ]
        for i in made.refused:  # their clients hear that when the batch ends
            readers[i].status = EntryStatus.BAD_REQUEST
            readers[i].drop()
        self._deliver(readers)
        parts = {
            each: [given[i] for given in by_output]
            for i, each in enumerate(readers)
            if each.goes_on and all(given[i] is not None for given in by_output)
        }
        if parts:
            self._synchronize()
            self._forgive(readers)
            self._hand_out(readers, parts)
        for i in made.ended - made.refused:
            readers[i].ends = True
        self._deliver(readers)

    def _hand_out(self, readers: list[Reader], parts: dict[Reader, list[Any]]) -> None:
        """Each part goes as soon as there is a place for it, or is kept."""
        waiting = [each for each in parts if not each.backlog]
        kept = [each for each in parts if each.backlog]
        while waiting:
            ready = [each for each in waiting if self._end.look(each) and each.wanted]
            if ready:
                self._write(ready, self._made(ready, parts))
            waiting = [each for each in waiting if each.wanted and each not in ready]
            if waiting:
                kept += self._wait(readers, waiting)
                waiting = [each for each in waiting if each not in kept]
                self._deliver(readers)
        for each in kept:
            if each.wanted:
                each.keep(self._made([each], parts))
            if each.bytes > self._most_bytes:
                self._let_go(each)

    def _made(self, readers: list[Reader], parts: dict[Reader, list[Any]]) -> list[Output]:
        given = tuple(
            list(_flat(spec, [parts[each][t] for each in readers]))
            for t, spec in enumerate(self._specs)
        )
        return self._outputs.outputs([each.rows for each in readers], given)

    def _write(self, readers: list[Reader], outputs: Sequence[Output]) -> None:
        """The next parts of these, for all of which there are places."""
        places, rows = self._end.batch, [each.rows for each in readers]
        places.entries[: len(readers)] = [each.place for each in readers]
        statuses = self._outputs.write(places, 0, range(len(readers)), rows, outputs)
        for each, status in zip(readers, statuses, strict=True):
            if status == EntryStatus.OK:
                self._end.is_there(each)
            else:
                each.status, each.wanted = status, False

    # ---- who is behind

    def _wait(self, readers: list[Reader], waiting: list[Reader]) -> list[Reader]:
        """For a place of one of these; those for whom others do not wait any longer."""
        sleeping = waiting + [each for each in readers if each.backlog]
        if all(each in waiting for each in readers if each.goes_on and not each.backlog):
            return self._stall(sleeping, waiting)  # none of the batch waits for another
        if late := [each for each in waiting if each.held_ns >= self._most_ns]:
            return late
        begun_ns = time.monotonic_ns()
        self._end.sleep(sleeping, self._most_ns - max(each.held_ns for each in waiting))
        for each in waiting:
            each.held_ns += time.monotonic_ns() - begun_ns
        return []

    def _stall(self, sleeping: list[Reader], waiting: list[Reader]) -> list[Reader]:
        """The same while the worker waits for all of its clients: only other requests wait."""
        left_ns = LONGEST_SLEEP_NS
        if self._end.waiting_since_ns():
            if late := [each for each in waiting if each.stalled_ns >= self._most_stalled_ns]:
                return late
            left_ns = self._most_stalled_ns - max(each.stalled_ns for each in waiting)
        begun_ns = time.monotonic_ns()
        self._end.sleep(sleeping, left_ns)
        if since_ns := self._end.waiting_since_ns():
            stalled_ns = max(0, time.monotonic_ns() - max(begun_ns, since_ns))
            for each in waiting:
                each.stalled_ns += stalled_ns
        return []

    def _forgive(self, readers: list[Reader]) -> None:
        """Who is a little slower than others may hold them up a little all the time."""
        now_ns = time.monotonic_ns()
        share_ns = (now_ns - self._given_ns) // _FORGIVEN
        self._given_ns = now_ns
        for each in readers:
            each.held_ns = max(0, each.held_ns - share_ns)
            each.stalled_ns = max(0, each.stalled_ns - share_ns)

    def _deliver(self, readers: list[Reader]) -> None:
        """All that was kept and has places now."""
        for each in readers:
            while self._end.look(each) and each.wanted and each.backlog:
                self._write([each], each.next())
            if not each.wanted:
                each.drop()
            elif each.ends and not (each.backlog or each.is_over or each.status != EntryStatus.OK):
                self._end.over(each)

    def _drain(self, readers: list[Reader]) -> None:
        """The handler has ended: what was kept still goes."""
        until_ns = time.monotonic_ns() + self._most_ns
        self._deliver(readers)
        while behind := [each for each in readers if each.backlog]:
            left_ns = until_ns - time.monotonic_ns()
            if left_ns > 0:
                self._end.sleep(behind, left_ns)
                self._deliver(readers)
            else:
                for each in behind:
                    self._let_go(each)

    def _let_go(self, each: Reader) -> None:
        each.drop()
        self._end.late(each)

    @staticmethod
    def _by_request(spec: TensorSpec, given: Any, made: PackedBatch) -> Sequence[Any]:
        """An output in parts, one for each request; None: it has none."""
        if isinstance(given, torch.Tensor):
            if given.ndim == 0 or given.shape[0] != sum(made.rows):
                raise ValueError(f"{spec.name}: {list(given.shape)} for {sum(made.rows)} rows")
            return made.split(given)
        count = sum(made.rows) if spec.dtype == BYTES else len(made)
        if not isinstance(given, list | tuple) or len(given) != count:
            raise ValueError(f"{spec.name}: no tensor, and no list of {count}")
        if spec.dtype != BYTES:
            return given
        ends = list(accumulate(made.rows))
        each = [given[end - n : end] for end, n in zip(ends, made.rows, strict=True)]
        return [None if any(text is None for text in mine) else mine for mine in each]


def _flat(spec: TensorSpec, chosen: list[Any]) -> Iterable[Any]:
    """As outputs are given: of byte strings all rows, of all else one for each request."""
    return (row for mine in chosen for row in mine) if spec.dtype == BYTES else chosen
