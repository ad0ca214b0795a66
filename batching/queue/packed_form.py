"""What the requests and answers of a packed function are, and how large. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shunter.batching.queue.packed import MOST_BYTES, Packing
from shunter.batching.queue.tensor_spec import TensorSpec

USUAL_BYTES = 1 << 20
"""A request, or an answer, is not longer where the model does not say so."""


@dataclass(frozen=True)
class PackedForm:
    """Of a function each of whose requests, and answers, is one run of bytes."""

    batched: bool = False
    """Whether a request is a batch itself: its tensors have a first dimension more, of its rows."""
    streamed: bool = False
    """Whether an answer is a sequence of parts, each a run of its own."""
    request_bytes: int = USUAL_BYTES
    """Longest request."""
    answer_bytes: int = USUAL_BYTES
    """Longest answer, or part of one."""
    optional: int = 0
    """So many of the last inputs may be missing, if the server knows of that; they are texts, and
    empty then."""

    def carried_inputs(self) -> tuple[TensorSpec, ...]:
        """What those see of its requests who only carry them: one tensor, at most so long."""
        return (TensorSpec("request", "uint8", (self.request_bytes,)),)

    def carried_outputs(self) -> tuple[TensorSpec, ...]:
        """The same of its answers."""
        return (TensorSpec("answer", "uint8", (self.answer_bytes,)),)

    def check(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        """Raises ValueError, or TypeError, for a form that these tensors cannot have."""
        for name in ("batched", "streamed"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: {getattr(self, name)!r}; allowed: true or false")
        for name, specs in (("request_bytes", inputs), ("answer_bytes", outputs)):
            most, least = getattr(self, name), Packing(tuple(specs), self.batched).least
            if type(most) is not int or not least <= most <= MOST_BYTES:
                raise ValueError(
                    f"{name}: {most!r}; allowed: {least}, which the smallest has, to {MOST_BYTES}"
                )


def must_be_packed(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Whether the requests, or answers, of a function have different sizes."""
    return not all(spec.is_fixed for spec in (*inputs, *outputs))
