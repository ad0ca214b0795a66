"""What a handler gets of a batch of packed requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from shunter.batching.queue.native_packed import Table, Words
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec

Input = torch.Tensor | list[torch.Tensor] | list[Any]


class PackedBatch:
    """Requests that run together.

    Where requests are batches themselves each has one or more *rows*; else each is one row.
    """

    def __init__(
        self, table: Table, inputs: list[Input], rows: list[int], words: Words
    ) -> None:
        """``words``: what ``table`` says of each request."""
        self.inputs = inputs
        """In their order: a tensor of all rows, padded with 0; where the model is ragged a list
        with a tensor for each request; of byte strings a list with ``bytes`` for each row, or,
        where the shape is not ``[]``, with a list of them."""
        self.rows = rows
        """Of each request."""
        self.refused: set[int] = set()
        """Requests that the handler has refused."""
        self.failed: dict[int, int] = {}
        """Requests that have failed with a status, as HTTP counts."""
        self.unwanted: set[int] = set()
        """Where answers are streamed: requests whose clients want no more of them."""
        self.ended: set[int] = set()
        """Where answers are streamed: requests whose last parts are yielded next, or were."""
        self._table, self._words = table, words

    def __len__(self) -> int:
        """Requests."""
        return len(self.rows)

    def __getitem__(self, name: str) -> Input:
        """An input by its name."""
        return self.inputs[self._number(name)]

    @property
    def _specs(self) -> Sequence[TensorSpec]:
        return self._table.packing.specs

    def _number(self, name: str) -> int:
        for number, spec in enumerate(self._specs):
            if spec.name == name:
                return number
        raise KeyError(name)

    def _shapes(self, number: int) -> Words:
        """Of an input: the sizes of each request's dimensions, without the rows."""
        return self._words[:, self._table.sizes(number)]

    def sizes(self, name: str) -> torch.Tensor:
        """What is not padding: for each row the sizes of an input's dimensions, as int64."""
        found = torch.from_numpy(self._shapes(self._number(name)))
        if not self._table.packing.batched:
            return found
        return found.repeat_interleave(torch.tensor(self.rows), 0)

    def mask(self, name: str, dim: int | None = None) -> torch.Tensor:
        """For each row which places of a padded dimension are real: bool, [rows, size].

        ``dim``: of a request's shape as declared; the first of any size when it is not given.
        """
        number = self._number(name)
        padded, spec = self.inputs[number], self._specs[number]
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
            shapes = self._shapes(self._number(like)).tolist()
            parts = [
                part[(slice(None), *(slice(n) for n in shape[: part.ndim - 1]))]
                for part, shape in zip(parts, shapes, strict=True)
            ]
        return parts if self._table.packing.batched else [part[0] for part in parts]

    def refuse(self, request: int) -> None:
        """This request is bad: it is answered 400, whatever its outputs are."""
        if not 0 <= request < len(self.rows):
            raise IndexError(request)
        self.refused.add(request)

    def fail(self, request: int, status: int) -> None:
        """This request has failed so; its first output, a byte string, says why."""
        if not 0 <= request < len(self.rows):
            raise IndexError(request)
        self.failed[request] = status

    def end(self, request: int) -> None:
        """Where answers are streamed: with what is yielded next the answer to this request ends;
        None ends it without another part. What is yielded for it later is nobody's."""
        if not 0 <= request < len(self.rows):
            raise IndexError(request)
        self.ended.add(request)

    def copy(self) -> PackedBatch:
        """The same, whatever a handler writes into this one."""
        copied = [_copied(each) for each in self.inputs]
        found = PackedBatch(self._table, copied, self.rows, self._words)
        # What is said of the requests of one is said of those of the other.
        found.refused, found.failed = self.refused, self.failed
        return found


def _copied(given: Input) -> Input:
    if isinstance(given, torch.Tensor):
        return given.clone()
    return [each.clone() if isinstance(each, torch.Tensor) else each for each in given]
