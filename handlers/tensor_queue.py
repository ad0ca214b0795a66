"""A model worker that is fed by the network front end: batches straight from the tensor queue.

The handler class is the one that serves TorchServe's requests, too. It declares its tensors in
``model-config.yaml``::

    shunter:
      tensors:
        inputs: [{name: pixels, dtype: float32, shape: [3, 224, 224]}]
        outputs: [{name: scores, dtype: float32, shape: [1000]}]

and has ``infer(inputs, outputs)``: lists of torch tensors, batch first, views of the queue's memory
without a copy; it fills the outputs in place. A handler of TorchServe's ``BaseHandler`` kind, with
``inference(batch)``, is used as it is; what it returns is copied into the outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from shunter.batching.tensor_queue import TensorQueue
from shunter.batching.tensor_spec import TensorSpec
from shunter.batching.wire_layout import WireStatus

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
        return handler.infer  # type: ignore[no-any-return]
    if not callable(getattr(handler, "inference", None)):
        raise TensorConfigError(
            f"{type(handler).__name__} has neither infer(inputs, outputs) nor inference(batch)"
        )

    def infer(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        found = handler.inference(*inputs)
        found = [found] if isinstance(found, torch.Tensor) else list(found)
        for output, result in zip(outputs, found, strict=True):
            output.copy_(result)

    return infer


class QueueWorker:
    """Runs batches of a queue."""

    def __init__(self, queue: TensorQueue, infer: Infer) -> None:
        """Views of the whole rings are made once; a batch is a slice of them."""
        inputs, outputs = queue.arrays()
        self._inputs = [torch.from_numpy(array) for array in inputs]
        self._outputs = [torch.from_numpy(array) for array in outputs]
        self._infer = infer

    def run(self, first: int, count: int) -> list[int]:
        """Work on the entries, in inference mode; a status for each."""
        last = first + count
        inputs = [tensor[first:last] for tensor in self._inputs]
        outputs = [tensor[first:last] for tensor in self._outputs]
        try:
            self._infer(inputs, outputs)
        except Exception:
            if count == 1:
                logger.exception("The handler failed.")
                return [WireStatus.HANDLER_FAILED]
            # One of them may be the cause: each once more, alone.
            return [status for entry in range(first, last) for status in self.run(entry, 1)]
        return [WireStatus.OK] * count
