"""One request of a client, from the caller's arrays to the answer's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shunter.batching.queue.tensor_spec import TensorSpec, dtype_of
from shunter.nic_frontend.client.requests.errors import BadRequestError, InferenceError

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Options:
    """How a request is to be treated."""

    deadline_ms: float | None = None
    """From now on; the server gives up what cannot run by then. None: the model's."""
    best_effort: bool | None = None
    """Let strict requests pass; None: if the model says so."""
    idempotent: bool = False
    """It may run twice: after the death of a worker or front end it is tried again."""
    timeout_s: float | None = None
    """Wait no longer for the answer; None: the client's.

    Inputs are read where they lie. A request that is given up may still be on its way: if the
    arrays are changed then, it may run with what they have become, and nobody gets its answer.
    """

    @property
    def deadline_us(self) -> int:
        """0: the model's."""
        return 0 if self.deadline_ms is None else max(1, int(self.deadline_ms * 1000))

    @property
    def priority(self) -> int:
        """Of the header: 0: the model's class, else 1 + the class."""
        return 0 if self.best_effort is None else 1 + self.best_effort


DEFAULT = Options()


@dataclass(eq=False, slots=True)
class Call:
    """A request that waits for credit or for its answer, or has ended."""

    inputs: list[Array]
    outputs: list[Array]
    begun_ns: int
    ends_ns: int
    deadline_ns: int
    """0: none."""
    options: Options
    req_id: int = 0
    """0: not sent."""
    unserved_ns: int = 0
    """When the server said first that there is no worker for it, 0: never."""
    done: bool = False
    error: InferenceError | None = None
    on_end: Callable[[Call], None] | None = None
    rows: int = 0
    """Of a request of a packed function: its one input is a run of bytes; 0: it is none."""
    taken: Callable[[Array, int], list[Array]] | None = None
    """Makes the outputs of such an answer, of its memory and its length."""
    part: int = 0
    """Not 0: it asks for this part of the answer to the request ``of``."""
    of: int = 0
    within: object = None
    """The session in which it ended, or to which alone it may be sent."""

    @property
    def result(self) -> list[Array] | InferenceError:
        """Of a call that has ended."""
        return self.outputs if self.error is None else self.error

    def answer(self) -> list[Array]:
        """The outputs. Raises InferenceError."""
        if self.error is not None:
            raise self.error
        return self.outputs

    def end(self, error: InferenceError | None = None, size: int = 0) -> None:
        """It has its answer, or never will. ``size``: bytes of that of a packed function."""
        if self.taken is not None and error is None and self.outputs:
            try:
                self.outputs = self.taken(self.outputs[0], size)
            except InferenceError as wrong:
                error = wrong
        self.done, self.error = True, error
        self.inputs = []
        if self.on_end is not None:
            self.on_end(self)


def call_of(
    inputs: list[Array], outputs: list[Array], options: Options, now_ns: int, timeout_s: float
) -> Call:
    """A call that begins now. ``timeout_s``: if the options do not say otherwise."""
    timeout_s = timeout_s if options.timeout_s is None else options.timeout_s
    deadline_us = options.deadline_us
    deadline_ns = now_ns + 1000 * deadline_us if deadline_us else 0
    return Call(inputs, outputs, now_ns, now_ns + int(timeout_s * 1e9), deadline_ns, options)


class Tensors:
    """The tensors of a model: what fits them, and memory for answers."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        """As the server declares them."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.wanted, self.made = (
            [(dtype_of(spec.dtype), spec.shape) for spec in each]
            for each in (self.inputs, self.outputs)
        )
        """Types and shapes of the arrays."""

    def __eq__(self, other: object) -> bool:
        """Whether both have the same tensors."""
        return isinstance(other, Tensors) and (self.inputs, self.outputs) == (
            other.inputs,
            other.outputs,
        )

    __hash__ = None  # type: ignore[assignment]

    def call(
        self,
        inputs: Sequence[Array],
        options: Options,
        now_ns: int,
        timeout_s: float,
        out: Sequence[Array] | None = None,
    ) -> Call:
        """A request. ``out``: arrays for the answer. Raises BadRequestError for wrong arrays."""
        return call_of(self._inputs(inputs), self._outputs(out), options, now_ns, timeout_s)

    def calls(
        self,
        requests: Sequence[Sequence[Array]],
        options: Options,
        now_ns: int,
        timeout_s: float,
        out: Sequence[Sequence[Array]] | None = None,
    ) -> list[Call | InferenceError]:
        """Many of them; for wrong arrays the error."""
        found: list[Call | InferenceError] = []
        outs = out if out is not None else [None] * len(requests)
        for arrays, places in zip(requests, outs, strict=True):
            try:
                found.append(self.call(arrays, options, now_ns, timeout_s, places))
            except BadRequestError as error:
                found.append(error)
        return found

    def cut(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """``[n, ...]``: n requests, whose arrays lie in these. Raises BadRequestError."""
        if len(arrays) != len(self.inputs):
            raise BadRequestError(f"{len(arrays)} tensors; the model has {len(self.inputs)}")
        for spec, array, (dtype, shape) in zip(self.inputs, arrays, self.wanted, strict=True):
            if not isinstance(array, np.ndarray):
                kind = type(array).__name__
                raise BadRequestError(f"{spec.name}: a {kind}, not an array of numpy")
            if array.shape[1:] != shape or not array.ndim or array.dtype != dtype:
                wanted = ", ".join(map(str, ("n", *shape)))
                raise BadRequestError(
                    f"{spec.name}: {array.dtype} {array.shape}; a batch is {dtype} ({wanted})"
                )
        counts = {len(array) for array in arrays}
        if len(counts) != 1:
            raise BadRequestError(f"batches of different sizes: {sorted(counts)}")
        return [parts(arrays, i) for i in range(counts.pop())]

    def _inputs(self, inputs: Sequence[Array]) -> list[Array]:
        if len(inputs) != len(self.wanted):
            raise BadRequestError(f"{len(inputs)} tensors; the model has {len(self.wanted)}")
        arrays = []
        for i, (dtype, shape) in enumerate(self.wanted):
            array = inputs[i]
            if not isinstance(array, np.ndarray):
                kind = type(array).__name__
                raise BadRequestError(f"{self.inputs[i].name}: a {kind}, not an array of numpy")
            if array.dtype != dtype or array.shape != shape:
                raise BadRequestError(
                    f"{self.inputs[i].name}: {array.dtype} {array.shape}; the model wants "
                    f"{dtype} {shape}"
                )
            arrays.append(array if array.flags.c_contiguous else array.copy("C"))
        return arrays

    def _outputs(self, out: Sequence[Array] | None) -> list[Array]:
        if out is None:
            return [np.empty(shape, dtype) for dtype, shape in self.made]
        if len(out) != len(self.made):
            raise BadRequestError(f"{len(out)} outputs; the model has {len(self.made)}")
        for spec, array, (dtype, shape) in zip(self.outputs, out, self.made, strict=True):
            flags = array.flags
            fits = array.shape == shape and array.dtype == dtype
            if not (fits and flags.c_contiguous and flags.writeable):
                raise BadRequestError(
                    f"{spec.name}: the answer needs a contiguous array, {dtype} {shape}"
                )
        return list(out)


def parts(arrays: Sequence[Array], at: int) -> list[Array]:
    """One of the requests of arrays ``[n, ...]``, or its answer."""
    return [array[at, ...] for array in arrays]


def one_or_all(outputs: list[Array]) -> Array | list[Array]:
    """What a caller who thinks of one output wants to see."""
    return outputs[0] if len(outputs) == 1 else outputs
