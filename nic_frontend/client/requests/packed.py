"""Requests of a packed function: the caller's arrays as one run of bytes, and answers as arrays.

Memory for an answer has room for the longest, and most are short: those are copied, and the memory
is that of another request then. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shunter.batching.queue.packed import PackedError, Packing
from shunter.batching.queue.packed_form import PackedForm
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.client.requests.calls import Array, Call, Options, Tensors, call_of
from shunter.nic_frontend.client.requests.errors import BadRequestError, ServerError
from shunter.nic_frontend.wire.layout import WINDOW, WireStatus

SHORT = 64 * 1024
"""Bytes of an answer that is copied."""


class PackedTensors(Tensors):
    """The tensors of a packed function."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        form: PackedForm,
        rows: int,
    ) -> None:
        """As the server declares them. ``rows``: most of a request."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.form, self.rows = form, rows
        self._request = Packing(self.inputs, form.batched)
        self._answer = Packing(self.outputs, form.batched)
        self.least_answer = self._answer.least
        self.wanted, self.made = [], []
        self._free: list[Array] = []

    def __eq__(self, other: object) -> bool:
        """Whether both have the same tensors; how many rows there may be changes with workers."""
        return super().__eq__(other) and self.form == getattr(other, "form", None)

    __hash__ = None  # type: ignore[assignment]

    def pack(self, inputs: Sequence[Any]) -> tuple[Array, int]:
        """A request as a run, and its rows. Raises BadRequestError."""
        try:
            run = self._request.pack(inputs)
        except PackedError as error:
            raise BadRequestError(str(error)) from error
        if len(run) > self.form.request_bytes:
            most = self.form.request_bytes
            raise BadRequestError(f"the request has {len(run)} bytes; the model takes {most}")
        rows = int.from_bytes(run[:4], "little")
        if rows > self.rows:
            raise BadRequestError(f"the request has {rows} rows; the model takes {self.rows}")
        return np.frombuffer(run, np.uint8), rows

    def call(
        self,
        inputs: Sequence[Any],
        options: Options,
        now_ns: int,
        timeout_s: float,
        out: Sequence[Array] | None = None,
    ) -> Call:
        """A request. Raises BadRequestError for wrong arrays, and for ``out``: nobody knows how
        large the answer will be."""
        if self.form.streamed:
            raise BadRequestError("answers of this model come in parts: ask by stream")
        if out is not None:
            raise BadRequestError("out: how large the answers of this model are is not known")
        return self.call_of(*self.pack(inputs), options, now_ns, timeout_s)

    def call_of(
        self, run: Array, rows: int, options: Options, now_ns: int, timeout_s: float
    ) -> Call:
        """The same of a run."""
        call = call_of([run], [], options, now_ns, timeout_s)
        call.rows, call.taken = rows, self.taken
        return call

    def call_of_stream(
        self, inputs: Sequence[Any], options: Options, now_ns: int, timeout_s: float
    ) -> Call:
        """A request whose answer comes in parts. Raises BadRequestError."""
        if not self.form.streamed:
            raise BadRequestError("answers of this model are whole: ask by infer")
        return self.call_of(*self.pack(inputs), options, now_ns, timeout_s)

    # ---- answers

    def memory(self) -> Array:
        """For the longest answer."""
        return self._free.pop() if self._free else np.empty(self.form.answer_bytes, np.uint8)

    def taken(self, memory: Array, size: int) -> list[Array]:
        """The outputs of an answer of so many bytes; the memory is not the caller's any more.

        Raises ServerError for what is no answer of the model.
        """
        if size <= SHORT:
            run = memory[:size].copy()
            if len(self._free) < WINDOW:
                self._free.append(memory)
        else:
            run = memory[:size]
        try:
            return self._answer.unpack(run)[1]
        except PackedError as error:
            text = f"the answer is none of the model's: {error}"
            raise ServerError(text, WireStatus.HANDLER_FAILED) from error

    # ---- many requests in one array

    def cut(self, arrays: Sequence[Any]) -> list[list[Any]]:
        """``[n, ...]``: n requests, or as few as there can be where they are batches themselves."""
        if len(arrays) != len(self.inputs):
            raise BadRequestError(f"{len(arrays)} tensors; the model has {len(self.inputs)}")
        counts = {len(array) for array in arrays}
        if len(counts) != 1:
            raise BadRequestError(f"batches of different sizes: {sorted(counts)}")
        count = counts.pop()
        if not self.form.batched:
            return [[array[i] for array in arrays] for i in range(count)]
        return [[a[i : i + self.rows] for a in arrays] for i in range(0, count, self.rows)]

    def join(self, answers: Sequence[Sequence[Array]]) -> list[Array]:
        """Their answers as such arrays. Raises BadRequestError where they have different shapes."""
        together = np.concatenate if self.form.batched else np.stack
        try:
            return [together(each) for each in zip(*answers, strict=True)]
        except ValueError as error:
            text = "the answers have different shapes: ask by infer_many"
            raise BadRequestError(text) from error
