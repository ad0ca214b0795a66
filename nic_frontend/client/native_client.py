"""The client's end of a session in C: ``c/client/client.h``."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from ctypes import (
    POINTER,
    byref,
    c_bool,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.batching.queue.native import check
from shunter.nic_frontend.client.native_structures import (
    KEYS,
    NUMBERS,
    Ended,
    Key,
    Numbers,
    Run,
    Settings,
)
from shunter.nic_frontend.client.requests.errors import NoCipherError
from shunter.nic_frontend.library import require
from shunter.nic_frontend.wire.keys import Keys
from shunter.nic_frontend.wire.layout import WINDOW


@cache
def functions() -> ctypes.CDLL:
    """The library. Raises LibraryError, which says how to get it."""
    found = require()
    found.shunter_aead_is_there.restype = c_bool
    found.shunter_client_new.argtypes = [POINTER(Settings), POINTER(c_void_p)]
    found.shunter_client_free.argtypes = [c_void_p]
    found.shunter_client_cork.argtypes = [c_void_p, c_uint32]
    found.shunter_client_begin.argtypes = [
        *(c_void_p, c_void_p, c_void_p, c_uint64, c_uint32, c_uint32),
    ]
    found.shunter_client_begin.restype = c_int64
    found.shunter_client_begin_run.argtypes = [c_void_p, c_void_p, c_uint64, c_uint32, c_uint32]
    found.shunter_client_begin_run.restype = c_int64
    found.shunter_client_exchange.argtypes = [c_void_p, c_void_p]
    found.shunter_client_poll.argtypes = [c_void_p, c_void_p, c_uint32, c_uint64, c_uint32]
    found.shunter_client_hello.argtypes = [c_void_p, POINTER(c_void_p)]
    found.shunter_client_hello.restype = c_uint32
    for name in ("cancel", "unwanted"):
        getattr(found, f"shunter_client_{name}").argtypes = [c_void_p, c_uint64]
    for name in ("ask", "farewell", "due_ns"):
        getattr(found, f"shunter_client_{name}").argtypes = [c_void_p]
    found.shunter_client_due_ns.restype = c_uint64
    found.shunter_client_numbers.argtypes = [c_void_p]
    found.shunter_client_numbers.restype = POINTER(Numbers)
    return found


def require_cipher() -> None:
    """Raises NoCipherError when payloads cannot be encrypted here."""
    if not functions().shunter_aead_is_there():
        raise NoCipherError


class NativeClient:
    """Requests of one open session; what they send and where answers go is the caller's memory."""

    handle: int | None = None
    """Of what C holds, None when there is nothing."""

    def __init__(
        self,
        socket: int,
        session: int,
        func_id: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        segment: int,
        grant: int,
        *,
        pkt_no: int = 0,
        trip_ns: int = 0,
        keys: Keys | None = None,
        protect: int = 0,
        stream: bool = False,
        gso: bool = True,
        shared: tuple[int, int] = (0, WINDOW),
        least_answer: int = 0,
    ) -> None:
        """``inputs`` and ``outputs``: bytes of each tensor. The socket does not block, is connected
        and stays the caller's. ``pkt_no``: of the last datagram sent. ``trip_ns``: to the server
        and back, 0: not known. ``protect``: what all payloads carry. ``shared``: the address of
        memory for inputs, 0: none, and for how many requests. ``least_answer``: bytes of an answer
        of a packed function, 0: it is none. Raises OSError.
        """
        self._c = self.functions = functions()
        settings = Settings(socket, stream, gso, keys is not None, protect)
        for name in KEYS if keys is not None else ():
            setattr(settings, name, Key(*getattr(keys, name)))
        settings.session, settings.func_id, settings.segment = session, func_id, segment
        settings.input_count, settings.output_count = len(inputs), len(outputs)
        settings.input_bytes[: len(inputs)] = inputs
        settings.output_bytes[: len(outputs)] = outputs
        settings.grant, settings.pkt_no, settings.trip_ns = grant, pkt_no, trip_ns
        settings.shared, self._most = shared
        settings.shared_requests, settings.least_answer = self._most, least_answer
        handle = c_void_p()
        check(self._c.shunter_client_new(byref(settings), byref(handle)), "a session")
        self.handle, self.socket, self.segment = handle.value, socket, segment
        self.stream, self.request_bytes = stream, sum(inputs)
        self._live = self._c.shunter_client_numbers(self.handle).contents
        self._inputs = (c_uint64 * MAX_TENSORS)()
        self._outputs = (c_uint64 * MAX_TENSORS)()
        self._ended = (Ended * WINDOW)()
        self._at = tuple(map(ctypes.addressof, (self._inputs, self._outputs, self._ended)))
        self._run = Run()

    def begin(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        deadline_us: int = 0,
        priority: int = 0,
        idempotent: bool = False,
    ) -> int:
        """Send a request from these addresses; its number, 0 without credit. Raises OSError."""
        for i, address in enumerate(inputs):
            self._inputs[i] = address
        for i, address in enumerate(outputs):
            self._outputs[i] = address
        result = self._c.shunter_client_begin(
            self.handle, self._at[0], self._at[1], deadline_us, priority, idempotent
        )
        if result > 0:
            return int(result)
        return 0 if result == -errno.EAGAIN else check(result, "sending")

    def begin_run(
        self,
        request: int,
        size: int,
        rows: int,
        answer: int,
        deadline_us: int = 0,
        priority: int = 0,
        idempotent: bool = False,
        part: tuple[int, int] = (0, 0),
    ) -> int:
        """The same of a packed function, with addresses of its run and of memory for its answer.

        ``part``: there is no run, but this part of the answer to that request is asked for.
        """
        run = self._run
        run.request, run.answer, run.bytes, run.rows = request, answer, size, rows
        run.part, run.of = part
        how = ctypes.addressof(run), deadline_us, priority, idempotent
        result = self._c.shunter_client_begin_run(self.handle, *how)
        if result > 0:
            return int(result)
        return 0 if result == -errno.EAGAIN else check(result, "sending")

    def cork(self, corked: bool) -> None:
        """Let small requests that begin go together, until they shall go. Raises OSError."""
        check(self._c.shunter_client_cork(self.handle, corked), "sending")

    def poll(self, until_ns: int, spin: bool = False) -> list[tuple[int, int]]:
        """Numbers and statuses of requests that have ended; none when the time is over.

        Raises OSError, ConnectionResetError when a stream is over.
        """
        return [(req_id, status) for req_id, status, _ in self.poll_runs(until_ns, spin)]

    def poll_runs(self, until_ns: int, spin: bool = False) -> list[tuple[int, int, int]]:
        """The same, with the bytes of answers of a packed function."""
        count = self._c.shunter_client_poll(self.handle, self._at[2], WINDOW, until_ns, spin)
        if count <= 0:
            check(count, "receiving")
        return [(each.req_id, each.status, each.bytes) for each in self._ended[:count]]

    def hello(self) -> bytes:
        """An answer to a hello that has come, empty: none."""
        at = c_void_p()
        length = self._c.shunter_client_hello(self.handle, byref(at))
        return ctypes.string_at(at, length) if length else b""

    def unwanted(self, req_id: int) -> None:
        """No more parts of the answer to a request are wanted."""
        self._c.shunter_client_unwanted(self.handle, req_id)

    def cancel(self, req_id: int) -> None:
        """Give a request up; its memory is the caller's again."""
        self._c.shunter_client_cancel(self.handle, req_id)

    def ask(self) -> None:
        """Ask for credit."""
        check(self._c.shunter_client_ask(self.handle), "sending")

    def farewell(self) -> None:
        """Tell the server that everything is done."""
        self._c.shunter_client_farewell(self.handle)

    def due_ns(self) -> int:
        """When :meth:`poll` has to be called again although nothing came."""
        return int(self._c.shunter_client_due_ns(self.handle))

    def numbers(self) -> dict[str, int]:
        """All of ``struct shunter_client_numbers``."""
        return {name: int(getattr(self._live, name)) for name in NUMBERS}

    @property
    def pending(self) -> int:
        """Requests that are on their way."""
        return int(self._live.pending)

    @property
    def unknown_ns(self) -> int:
        """When somebody said last that there is no such session."""
        return int(self._live.unknown_ns)

    @property
    def heard_ns(self) -> int:
        """When something true came last, by the monotonic clock."""
        return int(self._live.heard_ns)

    @property
    def kept(self) -> int:
        """Bytes that a stream did not take yet."""
        return int(self._live.kept)

    @property
    def may_begin(self) -> bool:
        """Whether there is credit for another request."""
        live = self._live
        return bool(live.next_id <= live.grant and live.next_id - live.below < self._most)

    def close(self) -> None:
        """Free what C holds."""
        handle = self.handle
        if handle is not None:
            self._live = Numbers.from_buffer_copy(self._live)
            self.handle = None  # first: a signal's handler may raise as soon as C has come back
            self._c.shunter_client_free(handle)

    def __del__(self) -> None:
        """What nobody closed."""
        self.close()
