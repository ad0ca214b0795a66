"""A model worker that is fed by the network front end: batches straight from the tensor queue.

The handler class is the one that serves TorchServe's requests, too. It declares its tensors in
``model-config.yaml``::

    shunter:
      tensors:
        inputs: [{name: pixels, dtype: float32, shape: [3, 224, 224]}]
        outputs: [{name: scores, dtype: float32, shape: [1000]}]

and has ``infer(inputs, outputs)``: lists of torch tensors, batch first. Inputs are gathered from
where the network's payloads landed, each byte copied once, into memory of the worker that is the
same for every batch; the handler may write into them. It fills the outputs, which are 0 before, in
place. A handler of TorchServe's
``BaseHandler`` kind, with ``inference(batch)``, is used as it is; what it returns must have the
outputs' shapes and is copied into them. Of a model on a GPU they are tensors of that GPU
(:mod:`shunter.handlers.queue.device_queue`), and the handler's kernels belong on torch's current
stream.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import Array, c_void_p, memset
from functools import cache
from typing import Any

import torch

from shunter.batching.queue.layout import IDEMPOTENT, EntryStatus
from shunter.batching.queue.native import Batch, FrontEndError, WorkerQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import DeviceError
from shunter.handlers.device.torch_types import torch_type, torch_view
from shunter.handlers.queue.tensor_config import TensorConfigError

logger = logging.getLogger("shunter.tensor_queue")
Infer = Callable[[list[torch.Tensor], list[torch.Tensor]], None]


def infer_of(handler: Any) -> Infer:
    """How a handler works on tensors. Raises TensorConfigError when it cannot."""
    if callable(getattr(handler, "infer", None)):
        return _zeroing(handler.infer)
    if not callable(getattr(handler, "inference", None)):
        who = "a module with handle()" if handler is None else type(handler).__name__
        raise TensorConfigError(f"{who} has neither infer(inputs, outputs) nor inference(batch)")

    def infer(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        found = handler.inference(*inputs)
        found = [found] if isinstance(found, torch.Tensor) else list(found)
        for output, result in zip(outputs, found, strict=True):
            if result.shape != output.shape or not torch.can_cast(result.dtype, output.dtype):
                raise ValueError(
                    f"inference() gave {result.dtype} {tuple(result.shape)}, where the model "
                    f"declares {output.dtype} {tuple(output.shape)}"
                )
            output.copy_(result)

    return infer


def _zeroing(infer: Infer) -> Infer:
    """What a handler does not write is 0, and not of another client's request."""

    def zeroed(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        for output in outputs:
            _zero(output)
        infer(inputs, outputs)

    return zeroed


def _zero(output: torch.Tensor) -> None:
    """Without torch's threads: they spin for milliseconds after each piece of work, on cores that
    the front end and other workers want.
    """
    if output.device.type == "cpu" and output.is_contiguous():
        memset(output.data_ptr(), 0, output.nbytes)
    else:
        output.zero_()


def device_of(handler: Any, gpu_id: int | None) -> torch.device | None:
    """The GPU on which a handler's model is; None when it is not on one.

    ``gpu_id`` is what the server chose, for handlers that do not say it by ``device``.
    """
    device = getattr(handler, "device", None)
    if not isinstance(device, str | torch.device):
        if gpu_id is None or not torch.cuda.is_available():
            return None
        return torch.device("cuda", gpu_id)
    device = torch.device(device)
    return device if device.type == "cuda" else None


def keep_inputs(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> Callable[[], tuple]:
    """What gives a batch as it is now, whatever its handler writes into its inputs meanwhile."""
    kept = [tensor.clone() for tensor in inputs]
    return lambda: (kept, outputs)


class QueueWorker:
    """Runs batches of a queue.

    Its caller gives it a batch by :meth:`begin`, asks :meth:`finished` from time to time, which
    gives batches back in the order in which they came, and may begin as many as it holds.
    """

    def __init__(self, end: WorkerQueue, infer: Infer, batch: int) -> None:
        """``batch``: requests of the largest one. Inputs of all batches lie at the same place."""
        self._end, self._infer = end, infer
        self._batch = min(batch, end.queue.entries)
        self._inputs = self._rows(end.queue.inputs)
        arrays = zip(end.queue.results(), end.queue.outputs, strict=True)
        self._ring = [torch_view(array, spec.dtype) for array, spec in arrays]
        self._scratch = self._rows(end.queue.outputs)
        self._scratch_at = [tensor.data_ptr() or None for tensor in self._scratch]
        # Making a view takes a microsecond: those of whole batches, and of results that go to one
        # entry, are made once.
        self._gathered = cache(self._gathered_at)
        self._results_of_one = cache(lambda entry: [t[entry : entry + 1] for t in self._ring])
        self._ready: deque[tuple[Batch, list[int]]] = deque()

    def _rows(self, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        """A tensor for each, of as many rows as the largest batch."""
        return [
            torch.empty((self._batch, *spec.shape), dtype=torch_type(spec.dtype)) for spec in specs
        ]

    def begin(self, batch: Batch) -> None:
        """Work on it, in inference mode; here it is finished when this returns.

        Results are written where they are sent from, if its entries follow one another, and in
        rows of the worker otherwise. Raises DeviceError when the device has failed: nothing will
        ever work on it; FrontEndError for a batch that makes no sense.
        """
        self._check(batch)
        is_apart = batch.first is None
        for i, at in enumerate(self._scratch_at):
            batch.results[i] = at if is_apart else None
        self._ready.append((batch, self._run(batch, 0, batch.count)))

    def finished(self) -> tuple[Batch, list[int]] | None:
        """The batch that began first, with a status for each of its requests, if it is finished.

        Raises as :meth:`begin`.
        """
        return self._ready.popleft() if self._ready else None

    def pause_ns(self) -> int | None:
        """How soon to ask again, 0: at once; None when nothing is under way."""
        return None

    def _check(self, batch: Batch) -> None:
        if batch.count > self._batch:
            what = f"a batch of {batch.count}; this worker takes {self._batch}"
            raise FrontEndError(errno.EPROTO, what)

    def _run(self, batch: Batch, begin: int, count: int) -> list[int]:
        try:
            self._work(batch, begin, count)
        except (DeviceError, FrontEndError):
            raise
        except Exception:
            self._failed()
            logger.exception("The handler failed on a batch of %d.", count)
            if count == 1:
                return [EntryStatus.HANDLER_FAILED]
            # One of them may be the cause: each that may run twice once more, alone.
            return [self._again(batch, begin + row) for row in range(count)]
        return [EntryStatus.OK] * count

    def _again(self, batch: Batch, row: int) -> int:
        is_allowed = self._may_run_twice(batch, row)
        return self._run(batch, row, 1)[0] if is_allowed else EntryStatus.HANDLER_FAILED

    def _may_run_twice(self, batch: Batch, row: int) -> bool:
        queue = self._end.queue
        return bool(queue.words[queue.entry(batch.entries[row], "entry_flags")] & IDEMPOTENT)

    def _work(self, batch: Batch, begin: int, count: int) -> None:
        inputs = self._gather(batch, begin, count)
        self._infer(inputs, self._outputs(batch, begin, begin + count))

    def _gathered_at(self, begin: int, count: int) -> tuple[list[torch.Tensor], Array[c_void_p]]:
        inputs = [tensor[begin : begin + count] for tensor in self._inputs]
        return inputs, (c_void_p * len(inputs))(*[each.data_ptr() or None for each in inputs])

    def _gather(self, batch: Batch, begin: int, count: int) -> list[torch.Tensor]:
        """The inputs of these rows of the batch."""
        inputs, into = self._gathered(begin, count)
        self._end.gather(batch, begin, count, into)
        return list(inputs)

    def _outputs(self, batch: Batch, begin: int, last: int) -> list[torch.Tensor]:
        """Where results of these rows of the batch belong."""
        first = batch.first
        if first is not None and last - begin == 1:
            return list(self._results_of_one(first + begin))
        if first is None:
            return [tensor[begin:last] for tensor in self._scratch]
        return [tensor[first + begin : first + last] for tensor in self._ring]

    def _failed(self) -> None:
        """A batch has failed and ends here."""

    def close(self) -> None:
        """Let go of what it holds, before the queue is unmapped."""
        self._inputs, self._ring, self._scratch = [], [], []
        self._gathered.cache_clear()
        self._results_of_one.cache_clear()


class StagedQueueWorker(QueueWorker):
    """Gives tensors of a device to the handler, copied one batch at a time."""

    def __init__(
        self, end: WorkerQueue, infer: Infer, batch: int, device: torch.device
    ) -> None:
        """``device``: where the model is."""
        super().__init__(end, infer, batch)
        self._device = device

    def _work(self, batch: Batch, begin: int, count: int) -> None:
        gathered = self._gather(batch, begin, count)
        results = self._outputs(batch, begin, begin + count)
        outputs = [torch.empty_like(tensor, device=self._device) for tensor in results]
        self._infer([tensor.to(self._device) for tensor in gathered], outputs)
        for result, output in zip(results, outputs, strict=True):
            result.copy_(output)

    def _failed(self) -> None:
        """A device that has failed for good fails at this too."""
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                raise DeviceError(str(error)) from error
