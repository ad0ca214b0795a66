"""A request that is alone on its session: one call of C begins it, waits, and has the answer.

Small tensors are copied to and from memory whose address is known: that takes a tenth of the time
in which numpy tells where an array lies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.nic_frontend.client.native_client import NativeClient
from shunter.nic_frontend.client.native_structures import Exchange
from shunter.nic_frontend.client.requests.calls import (
    DEFAULT,
    Array,
    Call,
    Options,
    Tensors,
    call_of,
)
from shunter.nic_frontend.client.requests.errors import BadRequestError
from shunter.nic_frontend.client.requests.packed import PackedTensors
from shunter.nic_frontend.wire.layout import WireStatus

SMALL = 16 * 1024
"""Bytes of a tensor that is copied."""
_OK = int(WireStatus.OK)
_Addresses = ctypes.c_uint64 * MAX_TENSORS


class OneCall:
    """The memory of the request, and how it stands."""

    def __init__(self, client: NativeClient, tensors: Tensors) -> None:
        """Both must outlive it; none of the client's requests is on its way while one is asked."""
        self._client = client
        self._run = client.functions.shunter_client_exchange
        self._state, self._handle = Exchange(), client.handle
        self._at = ctypes.addressof(self._state)
        self._in, self._out = _Addresses(), _Addresses()
        self._state.inputs = ctypes.addressof(self._in)
        self._state.outputs = ctypes.addressof(self._out)
        self._wanted = [(*each, _fixed(*each)) for each in tensors.wanted]
        self._made = [(*each, _fixed(*each)) for each in tensors.made]
        for addresses, each in ((self._in, self._wanted), (self._out, self._made)):
            for i, (_, _, fixed) in enumerate(each):
                addresses[i] = 0 if fixed is None else fixed.ctypes.data
        self.inputs: list[Array] = []
        self.outputs: list[Array] = []
        """Memory of the last request; of the next one, too, when it was small."""

    def takes(self, inputs: Sequence[Array]) -> bool:
        """Make the arrays those of the request; False: they are wrong, or not contiguous."""
        if len(inputs) != len(self._wanted):
            return False
        arrays = []
        for i, (dtype, shape, fixed) in enumerate(self._wanted):
            array = inputs[i]
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return False
            if fixed is None:
                if not array.flags.c_contiguous:
                    return False
                self._in[i] = array.ctypes.data
                arrays.append(array)
            else:
                fixed[...] = array
                arrays.append(fixed)
        self.inputs = arrays
        return True

    def _memory(self) -> None:
        """For the answer."""
        outputs = []
        for i, (dtype, shape, fixed) in enumerate(self._made):
            if fixed is None:
                fixed = np.empty(shape, dtype)
                self._out[i] = fixed.ctypes.data
            outputs.append(fixed)
        self.outputs = outputs

    def ask(self, options: Options, until_ns: int, spin: bool) -> int:
        """Its status, 0: it has none yet, and is like any other request then; or an errno < 0."""
        state = self._state
        self._memory()
        if options is DEFAULT:
            state.deadline_us = state.priority = state.idempotent = 0
        else:
            state.deadline_us, state.priority = options.deadline_us, options.priority
            state.idempotent = options.idempotent
        state.until_ns, state.spin, state.req_id = until_ns, spin, 0
        try:
            return self._run(self._handle, self._at) or state.status
        except BaseException:
            self._client.cancel(state.req_id)
            raise

    answer_bytes = 0
    """They are known."""

    def call(self, options: Options, now_ns: int, timeout_s: float) -> Call:
        """The last request, if it goes on."""
        return call_of(self.inputs, self.outputs, options, now_ns, timeout_s)

    @property
    def req_id(self) -> int:
        """Of the last request, 0: it did not begin."""
        return int(self._state.req_id)

    def answer(self) -> list[Array]:
        """The outputs, which are the caller's from now on."""
        return own(self.outputs)


class OneRun(OneCall):
    """The same for a packed function: the request is a run of bytes."""

    def __init__(self, client: NativeClient, tensors: PackedTensors) -> None:
        """Both must outlive it."""
        super().__init__(client, tensors)
        self._tensors = tensors

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Make the arrays those of the request; False: they are wrong."""
        if self._tensors.form.streamed:
            return False
        try:
            run, self._rows = self._tensors.pack(inputs)
        except BadRequestError:
            return False
        self.inputs, self.outputs = [run], [self._tensors.memory()]
        self._in[0], self._out[0] = run.ctypes.data, self.outputs[0].ctypes.data
        self._state.bytes, self._state.rows = run.size, self._rows
        return True

    def _memory(self) -> None:
        """It is there."""

    @property
    def answer_bytes(self) -> int:  # type: ignore[override]
        """Of the last answer."""
        return int(self._state.bytes)

    def call(self, options: Options, now_ns: int, timeout_s: float) -> Call:
        """The last request, if it goes on."""
        call = self._tensors.call_of(self.inputs[0], self._rows, options, now_ns, timeout_s)
        call.outputs = self.outputs
        return call

    def answer(self) -> list[Array]:
        """The outputs. Raises ServerError."""
        return self._tensors.taken(self.outputs[0], self.answer_bytes)


def own(outputs: Sequence[Array]) -> list[Array]:
    """What the next request does not write to."""
    return [out.copy() if out.nbytes <= SMALL else out for out in outputs]


def _fixed(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array | None:
    made = np.empty(shape, dtype)
    return made if made.nbytes <= SMALL else None
