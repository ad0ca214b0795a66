"""What a handler gets of a batch of packed requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec

Input = torch.Tensor | list[torch.Tensor] | list[Any]


@dataclass
class PackedBatch:
    """Requests that run together.

    Where requests are batches themselves each has one or more *rows*; else each is one row.
    """

    specs: Sequence[TensorSpec]
    """Of the inputs."""
    inputs: list[Input]
    """In their order: a tensor of all rows, padded with 0; where the model is ragged a list with a
    tensor for each request; of byte strings a list with ``bytes`` for each row, or, where the
    shape is not ``[]``, with a list of them."""
    rows: list[int]
    """Of each request."""
    shapes: list[NDArray[np.int64]]
    """By input: the sizes of each request's dimensions, without the rows."""
    batched: bool = False
    """Whether requests are batches themselves."""
    refused: set[int] = field(default_factory=set)
    """Requests that the handler has refused."""
    unwanted: set[int] = field(default_factory=set)
    """Where answers are streamed: requests whose clients want no more of them."""

    def __len__(self) -> int:
        """Requests."""
        return len(self.rows)

    def __getitem__(self, name: str) -> Input:
        """An input by its name."""
        return self.inputs[self._number(name)]

    def _number(self, name: str) -> int:
        for number, spec in enumerate(self.specs):
            if spec.name == name:
                return number
        raise KeyError(name)

    def sizes(self, name: str) -> torch.Tensor:
        """What is not padding: for each row the sizes of an input's dimensions, as int64."""
        found = torch.from_numpy(self.shapes[self._number(name)])
        return found.repeat_interleave(torch.tensor(self.rows), 0)

    def mask(self, name: str, dim: int | None = None) -> torch.Tensor:
        """For each row which places of a padded dimension are real: bool, [rows, size].

        ``dim``: of a request's shape as declared; the first of any size when it is not given.
        """
        number = self._number(name)
        padded, spec = self.inputs[number], self.specs[number]
        if spec.dtype == BYTES or not isinstance(padded, torch.Tensor):
            raise TypeError(f"{name} is not padded")
        dim = spec.shape.index(ANY) if dim is None else dim
        real = self.sizes(name)[:, dim].to(padded.device)
        return torch.arange(padded.shape[1 + dim], device=padded.device) < real[:, None]

    def split(self, tensor: torch.Tensor, like: str | None = None) -> list[torch.Tensor]:
        """A tensor of all rows in parts, one for each request, as outputs may be given.

        ``like``: an input, padded as this tensor is: of each part only as much is left of its
        dimensions, one after the other, as the request has of that input.
        """
        ends = list(accumulate(self.rows))
        parts = [tensor[end - n : end] for end, n in zip(ends, self.rows, strict=True)]
        if like is not None:
            shapes = self.shapes[self._number(like)].tolist()
            parts = [
                part[(slice(None), *(slice(n) for n in shape[: part.ndim - 1]))]
                for part, shape in zip(parts, shapes, strict=True)
            ]
        return parts if self.batched else [part[0] for part in parts]

    def refuse(self, request: int) -> None:
        """This request is bad: it is answered 400, whatever its outputs are."""
        if not 0 <= request < len(self.rows):
            raise IndexError(request)
        self.refused.add(request)

    def copy(self) -> PackedBatch:
        """The same, whatever a handler writes into this one."""
        return replace(self, inputs=[_copied(each) for each in self.inputs], refused=set())


def _copied(given: Input) -> Input:
    if isinstance(given, torch.Tensor):
        return given.clone()
    return [each.clone() if isinstance(each, torch.Tensor) else each for each in given]
