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

A handler goes on when the clients of all its requests have asked for their next parts: up to eight
may be on their way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from shunter.batching.queue.attach import Attach
from shunter.batching.queue.layout import EntryStatus
from shunter.batching.queue.native import Batch, WorkerQueue
from shunter.batching.queue.native_parts import Parts, PartsEnd
from shunter.batching.queue.tensor_spec import BYTES, TensorSpec
from shunter.handlers.queue.packed_batch import PackedBatch
from shunter.handlers.queue.packed_queue import PackedInfer, PackedQueueWorker
from shunter.handlers.queue.tensor_config import Padding

logger = logging.getLogger("shunter.streaming")


class StreamingQueueWorker(PackedQueueWorker):
    """Runs batches whose answers come in parts."""

    def __init__(
        self,
        end: WorkerQueue,
        infer: PackedInfer,
        attach: Attach,
        padding: Padding,
        device: torch.device | None,
    ) -> None:
        """``device``: where the model is, None: on the host."""
        super().__init__(end, infer, attach, padding, device)
        self._end, self._specs = PartsEnd(end), attach.outputs

    def _again(self, batch: Batch, request: int, count: int) -> int:
        """Of its parts some may have been seen: it never runs twice."""
        return EntryStatus.HANDLER_FAILED

    def _work(self, batch: Batch, begin: int, made: PackedBatch, good: list[int]) -> list[int]:
        answers = [Parts(batch.entries[begin + i]) for i in good]
        statuses = [int(EntryStatus.OK)] * len(good)
        steps = self._infer(made)
        steps = steps if isinstance(steps, Iterator) else iter([steps])
        try:
            for found in steps:
                self._give(made, answers, statuses, found)
                for each in answers:  # also those that had no part
                    self._end.look(each)
                made.unwanted.update(i for i, each in enumerate(answers) if not each.wanted)
                if len(made.unwanted | made.refused | made.ended) == len(answers):
                    break
        finally:
            if callable(close := getattr(steps, "close", None)):
                close()
        return [EntryStatus.BAD_REQUEST if i in made.refused else s for i, s in enumerate(statuses)]

    def _give(
        self, made: PackedBatch, answers: list[Parts], statuses: list[int], found: Any
    ) -> None:
        """What the handler has yielded becomes a part of each answer that is wanted, and of some
        the last."""
        self._give_parts(made, answers, statuses, found)
        for i in made.ended - made.refused:
            if answers[i].wanted and not answers[i].is_over:
                self._end.over(answers[i])

    def _give_parts(
        self, made: PackedBatch, answers: list[Parts], statuses: list[int], found: Any
    ) -> None:
        by_output = [
            self._by_request(spec, given, made)
            for spec, given in zip(self._specs, self._outputs.by_output(found), strict=True)
        ]
        has = [i for i in range(len(answers)) if all(each[i] is not None for each in by_output)]
        chosen = [i for i in has if i not in made.refused and not answers[i].is_over]
        self._end.wait([answers[i] for i in chosen])
        chosen = [i for i in chosen if answers[i].wanted]
        if not chosen:
            return
        self._synchronize()
        places = self._end.batch
        places.entries[: len(chosen)] = [answers[i].place for i in chosen]
        given = tuple(
            list(_flat(spec, [each[i] for i in chosen]))
            for spec, each in zip(self._specs, by_output, strict=True)
        )
        rows = [made.rows[i] for i in chosen]
        written = self._outputs.answer(places, 0, range(len(chosen)), rows, given)
        for i, status in zip(chosen, written, strict=True):
            if status == EntryStatus.OK:
                self._end.is_there(answers[i])
            else:
                statuses[i], answers[i].wanted = status, False

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
