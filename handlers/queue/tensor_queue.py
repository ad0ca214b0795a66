"""A model worker that is fed by the network front end: batches straight from the tensor queue.

The handler class is the one that serves TorchServe's requests, too. It declares its tensors in
``model-config.yaml``::

    shunter:
      tensors:
        inputs: [{name: pixels, dtype: float32, shape: [3, 224, 224]}]
        outputs: [{name: scores, dtype: float32, shape: [1000]}]

and has ``infer(inputs, outputs)``: lists of torch tensors, batch first, views of the queue's memory
without a copy, or copies where a request of the batch may run twice, so that its own input stays as
it came; it fills the outputs, which are 0 before, in place. A handler of TorchServe's
``BaseHandler`` kind, with ``inference(batch)``, is used as it is; what it returns must have the
outputs' shapes and is copied into them. Of a model on a GPU they are tensors of that GPU
(:mod:`shunter.handlers.queue.device_queue`), and the handler's kernels belong on torch's current
stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from shunter.batching.queue.layout import IDEMPOTENT, EntryStatus
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import DeviceError

logger = logging.getLogger("shunter.tensor_queue")
Infer = Callable[[list[torch.Tensor], list[torch.Tensor]], None]


class TensorConfigError(ValueError):
    """The ``tensors:`` of a model are wrong; the message says what is allowed."""


def tensor_specs(
    section: Mapping[str, Any],
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of a model's ``shunter:`` section. Raises TensorConfigError."""
    tensors = section.get("tensors")
    if not isinstance(tensors, Mapping) or set(tensors) != {"inputs", "outputs"}:
        raise TensorConfigError("tensors: two lists, inputs and outputs")
    return _specs("inputs", tensors["inputs"]), _specs("outputs", tensors["outputs"])


def _specs(kind: str, content: Any) -> tuple[TensorSpec, ...]:
    if not isinstance(content, list) or not content:
        raise TensorConfigError(f"tensors: {kind}: a list with at least one tensor")
    found = []
    for each in content:
        try:
            name, dtype, shape = each["name"], each["dtype"], each["shape"]
            if set(each) != {"name", "dtype", "shape"}:
                raise ValueError("keys")
            torch.from_numpy(np.empty(0, dtype))
            sizes = tuple(int(n) for n in shape)
            if min(sizes, default=1) < 0:
                raise ValueError("shape")
        except (KeyError, TypeError, ValueError) as error:
            raise TensorConfigError(
                f"tensors: {kind}: {each!r}; allowed: name, dtype (a type of numpy and torch, such "
                "as float32) and shape (a list of sizes without the batch)"
            ) from error
        found.append(TensorSpec(str(name), np.dtype(dtype).name, sizes))
    return tuple(found)


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
            output.zero_()
        infer(inputs, outputs)

    return zeroed


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
    """Runs batches of a queue."""

    def __init__(self, queue: TensorQueue, infer: Infer) -> None:
        """Views of the whole rings are made once; a batch is a slice of them."""
        self._queue = queue
        # Of twice the entries, as the rings have.
        self._flags = [queue.entry(at, "entry_flags") for at in range(queue.entries)] * 2
        inputs, outputs = queue.arrays()
        self._inputs = [torch.from_numpy(array) for array in inputs]
        self._outputs = [torch.from_numpy(array) for array in outputs]
        self._copies = [tensor[:0] for tensor in self._inputs]
        """Room for the inputs of one batch."""
        self._infer = infer

    def run(self, first: int, count: int) -> list[int]:
        """Work on the entries, in inference mode; a status for each.

        Raises DeviceError when the device has failed: nothing will ever work on it.
        """
        try:
            self._work(first, count)
        except DeviceError:
            raise
        except Exception:
            self._failed(first, count)
            logger.exception("The handler failed on a batch of %d.", count)
            if count == 1:
                return [EntryStatus.HANDLER_FAILED]
            # One of them may be the cause: each that may run twice once more, alone.
            return [self._again(at) for at in range(first, first + count)]
        return [EntryStatus.OK] * count

    def _again(self, at: int) -> int:
        if self._may_run_twice(at, 1):
            return self.run(at, 1)[0]
        return EntryStatus.HANDLER_FAILED

    def _may_run_twice(self, first: int, count: int) -> bool:
        """Whether any of these may: here after a failure, or elsewhere when this worker dies."""
        words = self._queue.words
        return any(words[at] & IDEMPOTENT for at in self._flags[first : first + count])

    def _copied(self, inputs: list[torch.Tensor], count: int) -> list[torch.Tensor]:
        if len(self._copies[0]) < count:  # kept: new memory would cost more than the copy
            self._copies = [torch.empty_like(tensor) for tensor in inputs]
        copies = [copy[:count] for copy in self._copies]
        for copy, tensor in zip(copies, inputs, strict=True):
            copy.copy_(tensor)
        return copies

    def _work(self, first: int, count: int) -> None:
        last = first + count
        inputs = [tensor[first:last] for tensor in self._inputs]
        if self._may_run_twice(first, count):
            # A handler may write into its inputs, and the ring's are those of the next run.
            inputs = self._copied(inputs, count)
        self._infer(inputs, [tensor[first:last] for tensor in self._outputs])

    def _failed(self, first: int, count: int) -> None:
        """A batch has failed and ends here."""

    def close(self) -> None:
        """Let go of what it holds, before the queue is unmapped."""
        self._inputs, self._outputs, self._copies = [], [], []


class StagedQueueWorker(QueueWorker):
    """Gives tensors of a device to the handler, copied one batch at a time."""

    def __init__(self, queue: TensorQueue, infer: Infer, device: torch.device) -> None:
        """``device``: where the model is."""
        super().__init__(queue, infer)
        self._device = device

    def _work(self, first: int, count: int) -> None:
        last = first + count
        inputs = [tensor[first:last].to(self._device) for tensor in self._inputs]
        results = [tensor[first:last] for tensor in self._outputs]
        outputs = [torch.empty_like(tensor, device=self._device) for tensor in results]
        self._infer(inputs, outputs)
        for result, output in zip(results, outputs, strict=True):
            result.copy_(output)

    def _failed(self, first: int, count: int) -> None:
        """A device that has failed for good fails at this too."""
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                raise DeviceError(str(error)) from error
