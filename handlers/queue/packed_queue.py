"""A model worker whose requests choose the sizes of their tensors, or are batches themselves.

What makes a model such a one is in its ``model-config.yaml``
(:mod:`shunter.handlers.queue.tensor_config`)::

    shunter:
      tensors:
        inputs: [{name: ids, dtype: int64, shape: [-1]}]
        outputs: [{name: embedding, dtype: float32, shape: [384]}]

Its handler has ``infer(batch)``, which gets a :class:`~shunter.handlers.queue.packed_batch.
PackedBatch` and returns the outputs: a tensor whose first dimension are all rows, or a list with
one for each request; of byte strings a list with one for each row. Of several outputs it returns a
tuple, or a dictionary by name. A handler of the kind that has ``inference(*inputs)`` is used as it
is.

Where it is padded, a batch may run in groups of like lengths
(:mod:`shunter.batching.forming.lengths`): then the handler gets one after the other.

The tensors of a batch lie at the same place as those of the one before, as long as it is large
enough; the handler may write into them, and must not keep them.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from shunter.batching.forming.lengths import LengthGroups
from shunter.batching.queue.attach import Attach
from shunter.batching.queue.layout import IDEMPOTENT, EntryStatus
from shunter.batching.queue.native import Batch, FrontEndError, WorkerQueue
from shunter.batching.queue.native_packed import PackedEnd
from shunter.batching.queue.packed import Packing
from shunter.handlers.device.driver import DeviceError
from shunter.handlers.queue.packed_batch import PackedBatch
from shunter.handlers.queue.packed_inputs import PackedInputs, TooLargeError
from shunter.handlers.queue.packed_outputs import PackedOutputs
from shunter.handlers.queue.tensor_config import Padding, TensorConfigError

logger = logging.getLogger("shunter.packed_queue")
PackedInfer = Callable[[PackedBatch], Any]


def packed_infer_of(handler: Any) -> PackedInfer:
    """How a handler works on packed requests. Raises TensorConfigError when it cannot."""
    if callable(getattr(handler, "infer", None)):
        return handler.infer  # type: ignore[no-any-return]
    if callable(getattr(handler, "inference", None)):
        return lambda batch: handler.inference(*batch.inputs)
    who = "a module with handle()" if handler is None else type(handler).__name__
    raise TensorConfigError(f"{who} has neither infer(batch) nor inference(*inputs)")


def keep_batch(batch: PackedBatch) -> Callable[[], tuple[PackedBatch]]:
    """What gives a batch as it is now, whatever its handler writes into its inputs meanwhile."""
    kept = batch.copy()
    return lambda: (kept,)


class PackedQueueWorker:
    """Runs batches of a packed queue; for its caller it is a ``QueueWorker``."""

    def __init__(
        self,
        end: WorkerQueue,
        infer: PackedInfer,
        attach: Attach,
        padding: Padding,
        device: torch.device | None,
    ) -> None:
        """``device``: where the model is, None: on the host."""
        assert attach.packing is not None
        self._queue, self._infer, self._device = end.queue, infer, device
        self._answer_early = end.answer_early
        self._batch = min(attach.batch, end.queue.entries)
        sides = (Packing(each, attach.packing.batched) for each in (attach.inputs, attach.outputs))
        packed = PackedEnd(end, *sides, attach.batch)
        # Of one dimension a padded batch is never larger than its largest request times its rows.
        most_bytes = 2 * attach.batch * attach.packing.request_bytes
        self._inputs = PackedInputs(packed, padding, most_bytes, device)
        self._outputs = PackedOutputs(packed)
        # How long a stream takes is not told by its inputs.
        may_divide = self._inputs.pads and not attach.packing.streamed
        self._groups = LengthGroups(self._inputs.elements) if may_divide else None
        self._tries = 0
        self._ready: deque[tuple[Batch, list[int]]] = deque()

    def begin(self, batch: Batch) -> None:
        """Work on it, in inference mode; here it is finished when this returns.

        Raises DeviceError when the device has failed: nothing will ever work on it; FrontEndError
        for a batch that makes no sense.
        """
        if batch.count > self._batch:
            what = f"a batch of {batch.count}; this worker takes {self._batch}"
            raise FrontEndError(errno.EPROTO, what)
        batch.results[0] = None  # answers are made where they are sent from
        if self._groups:
            statuses = self._run_in_groups(batch, self._groups)
        else:
            statuses = self._run(batch, 0, batch.count)
        self._ready.append((batch, statuses))

    def finished(self) -> tuple[Batch, list[int]] | None:
        """The batch that began first, with a status for each of its requests."""
        return self._ready.popleft() if self._ready else None

    def pause_ns(self) -> int | None:
        """None: nothing is ever under way."""
        return None

    def _run_in_groups(self, batch: Batch, groups: LengthGroups) -> list[int]:
        """Its requests are in the order of their groups then, and so are their statuses. Each group
        is answered before the next runs."""
        counts = [1]
        if batch.count > 1:
            found = groups.of(*self._inputs.sizes(batch))
            counts = [len(group.requests) for group in found]
            if len(found) > 1:
                batch.order([request for group in found for request in group.requests])
        statuses: list[int] = []
        for count in counts:
            if statuses:
                self._answer_early(batch, statuses)
            began, cells, tries = time.monotonic_ns(), self._inputs.cells, self._tries
            mine = self._run(batch, len(statuses), count)
            # What was tried again, one by one, is not the cost of a group.
            if self._tries == tries + 1 and all(each == EntryStatus.OK for each in mine):
                took = time.monotonic_ns() - began
                groups.cost.observe(self._inputs.cells - cells, took)
            statuses += mine
        return statuses

    def _run(self, batch: Batch, begin: int, count: int) -> list[int]:
        self._tries += 1
        try:
            made, good = self._inputs.gather(batch, begin, count)
        except (TooLargeError, MemoryError, RuntimeError) as error:
            return self._too_large(batch, begin, count, error)
        statuses = [int(EntryStatus.BAD_REQUEST)] * count
        if not good:
            return statuses
        try:
            answered = self._work(batch, begin, made, good)
        except (DeviceError, FrontEndError):
            raise
        except Exception:  # also what it says when it cannot read a file, or an image
            self._failed()
            logger.exception("The handler failed on a batch of %d.", len(good))
            # One of them may be the cause: each that may run twice once more, alone.
            answered = [self._again(batch, begin + i, len(good)) for i in good]
        for i, status in zip(good, answered, strict=True):
            statuses[i] = status
        return statuses

    def _too_large(self, batch: Batch, begin: int, count: int, error: Exception) -> list[int]:
        """There is no memory for these requests together; none of them has run."""
        self._failed()
        if count > 1:
            return [self._run(batch, begin + i, 1)[0] for i in range(count)]
        logger.error("A request is refused: %s", error)
        is_its_own = isinstance(error, TooLargeError)
        return [EntryStatus.BAD_REQUEST if is_its_own else EntryStatus.HANDLER_FAILED]

    def _again(self, batch: Batch, request: int, count: int) -> int:
        """The status of a request of a batch of so many that has failed."""
        flags = self._queue.words[self._queue.entry(batch.entries[request], "entry_flags")]
        if count == 1 or not flags & IDEMPOTENT:
            return EntryStatus.HANDLER_FAILED
        return self._run(batch, request, 1)[0]

    def _work(self, batch: Batch, begin: int, made: PackedBatch, good: list[int]) -> list[int]:
        found = self._infer(made)
        self._synchronize()
        if len(made.refused) == len(good):
            return [EntryStatus.BAD_REQUEST] * len(good)
        answered = self._outputs.answer(batch, begin, good, made.rows, found)
        for i, status in made.failed.items():
            if answered[i] == EntryStatus.OK:
                answered[i] = EntryStatus.SAYS + status
        return [
            EntryStatus.BAD_REQUEST if i in made.refused else status
            for i, status in enumerate(answered)
        ]

    def _synchronize(self) -> None:
        """The handler's work is done: the next inputs may come to the place of these."""
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _failed(self) -> None:
        """A device that has failed for good fails at this too."""
        if self._device is not None and self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                raise DeviceError(str(error)) from error

    def close(self) -> None:
        """Let go of what it holds, before the queue is unmapped."""
        del self._inputs, self._outputs
