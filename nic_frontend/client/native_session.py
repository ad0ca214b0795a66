"""An open session in C, as the exchange of a client's calls needs it."""

from __future__ import annotations

import contextlib
import os
import socket
from ctypes import addressof, c_char

from shunter.nic_frontend.client.native_client import NativeClient
from shunter.nic_frontend.client.one_call import OneCall, OneRun
from shunter.nic_frontend.client.opening import OpenSession
from shunter.nic_frontend.client.requests.calls import Array, Call, Tensors
from shunter.nic_frontend.client.requests.packed import PackedTensors
from shunter.nic_frontend.client.shared_inputs import SharedInputs


class NativeSession(NativeClient):
    """Goes on with a session that has just been opened over this connection."""

    def __init__(
        self,
        opened: OpenSession,
        connection: socket.socket,
        tensors: Tensors,
        shared: SharedInputs | None = None,
    ) -> None:
        """The socket stays the caller's. ``shared``: memory for the inputs."""
        super().__init__(
            connection.fileno(),
            opened.session,
            opened.func_id,
            [spec.bytes for spec in opened.carried_inputs],
            [spec.bytes for spec in opened.carried_outputs],
            opened.segment,
            opened.grant,
            trip_ns=opened.trip_ns,
            keys=opened.keys,
            protect=opened.protect,
            stream=connection.type != socket.SOCK_DGRAM,
            least_answer=tensors.least_answer if isinstance(tensors, PackedTensors) else 0,
            **({"shared": (shared.address, shared.requests)} if shared else {}),
        )
        self._shared = shared
        self.session, self.func_id, self.protect = opened.session, opened.func_id, opened.protect
        self._connection = connection
        self._packed = tensors if isinstance(tensors, PackedTensors) else None
        self.one_call = OneRun(self, tensors) if self._packed else OneCall(self, tensors)

    def start(self, call: Call, deadline_us: int) -> int:
        """Send a request; its number, 0: not now. Its arrays must stay. Raises OSError."""
        options = call.options
        if self._packed:
            [run] = call.inputs
            call.outputs = call.outputs or [self._packed.memory()]
            where = _address(run), run.size, call.rows, _address(call.outputs[0])
            how = deadline_us, options.priority, options.idempotent
            return self.begin_run(*where, *how, (call.part, call.of))
        return self.begin(
            [_address(array) for array in call.inputs],
            [_address(array) for array in call.outputs],
            deadline_us,
            options.priority,
            options.idempotent,
        )

    @property
    def shares_memory(self) -> bool:
        """Whether inputs are written where workers read them."""
        return self._shared is not None

    def buffer(self) -> list[Array] | None:
        """Where the inputs of the next request belong; None: nowhere, or its place is taken."""
        live, shared = self._live, self._shared
        if shared is None or live.next_id - live.below >= shared.requests:
            return None
        return shared.arrays(live.next_id)

    def say_hello(self, datagram: bytes) -> None:
        """Another session may be wanted; what gets lost is said again. Raises OSError.

        Whether the server is gone is known when it stays silent.
        """
        for _ in range(2):  # the first time it may be told of the fate of an earlier datagram
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                self._connection.send(datagram, socket.MSG_DONTWAIT)
                return


def reason_of(error: OSError) -> str:
    """Why a connection is lost."""
    return os.strerror(error.errno) if error.errno else str(error)


def _address(array: Array) -> int:
    try:
        return addressof(c_char.from_buffer(array))  # a quarter of what numpy needs
    except (TypeError, ValueError):  # it is not to be written to, or empty
        return int(array.ctypes.data) if array.size else 0
