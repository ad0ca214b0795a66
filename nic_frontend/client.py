"""A client of the front end: ``infer(numpy) -> numpy``, over datagrams or a stream.

    with Client("udp://127.0.0.1:8083", "resnet50") as client:
        [probabilities] = client.infer([pixels])
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from shunter.batching.segments import Segment, SegmentPlan, TooLarge
from shunter.batching.tensor_queue import TensorSpec
from shunter.batching.wire import Header, WrongHeader, check_tag, parse
from shunter.batching.wire_layout import HEADER_BYTES, Flags, MessageType, WireStatus
from shunter.nic_frontend.client_core import ClientCore, Landing, Outgoing, Refused
from shunter.nic_frontend.hello import (
    LARGEST_SEGMENT,
    SMALLEST_SEGMENT,
    Hello,
    HelloError,
    Opened,
    parse_cookie,
    session_key,
)

IP_MTU, IP_MTU_DISCOVER, IP_PMTUDISC_DO = 14, 10, 2
IPV6_MTU, IPV6_MTU_DISCOVER = 24, 23
SO_RCVTIMEO_NS = 10_000_000
HELLO_TRIES = 8
BUFFER = 4 << 20
Array = NDArray[np.generic]


class InferenceError(Exception):
    """A request was not answered; the subclasses say whose fault that is."""


class BadRequestError(InferenceError):
    """The caller's: the tensors are not those of the model, or there is no such model."""


class ServerError(InferenceError):
    """The server's: the handler failed, or its worker died."""

    def __init__(self, message: str, status: int) -> None:
        """``status``: as on the wire."""
        super().__init__(message)
        self.status = status


class TooLateError(InferenceError):
    """The deadline: the server gave the request up because it had passed."""


class UnreachableError(InferenceError):
    """The network's, or the server is not there: nothing came in time."""


_REASONS: dict[int, tuple[type[InferenceError], str]] = {
    WireStatus.BAD_REQUEST: (BadRequestError, "the server refused the sizes of the tensors"),
    WireStatus.UNKNOWN_FUNCTION: (BadRequestError, "the server has no such model"),
    WireStatus.TOO_LATE: (TooLateError, "the deadline had passed before the request could run"),
}
_SERVER_REASONS: dict[int, tuple[type[InferenceError], str]] = {
    WireStatus.HANDLER_FAILED: "the handler failed",
    WireStatus.WORKER_DIED: "the worker died; it is not known whether the request ran",
    WireStatus.LOST_ANSWER: "the request ran, but its answer is no longer kept",
    WireStatus.UNKNOWN_SESSION: "the server does not know this session",
}


def error_of(status: int) -> InferenceError:
    """The exception for a status that is not OK."""
    if status in _REASONS:
        kind, text = _REASONS[status]
        return kind(text)
    return ServerError(_SERVER_REASONS.get(status, f"status {status}"), status)


@dataclass(frozen=True)
class Address:
    """Where a front end listens."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """``udp://HOST:PORT``, ``tcp://HOST:PORT`` or ``unix:///PATH``. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls("unix", parts.path, 0)
        if parts.scheme not in ("udp", "tcp") or not parts.hostname or not parts.port:
            raise ValueError(f"{url!r} is not udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH")
        return cls(parts.scheme, parts.hostname, parts.port)


def connect(address: Address, timeout_s: float) -> tuple[socket.socket, int]:
    """A socket to the front end, and the largest segment that its path takes."""
    if address.scheme == "unix":
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.settimeout(timeout_s)
        stream.connect(address.host)
        return stream, LARGEST_SEGMENT
    kind = socket.SOCK_DGRAM if address.scheme == "udp" else socket.SOCK_STREAM
    family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=kind)[0]
    connection = socket.socket(family, kind)
    connection.settimeout(timeout_s)
    connection.connect(where)
    if kind == socket.SOCK_STREAM:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, LARGEST_SEGMENT
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    return connection, _path_segment(connection)


def _path_segment(connection: socket.socket) -> int:
    """Largest payload that is not cut into fragments on the way."""
    if connection.family == socket.AF_INET6:
        connection.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_DO)
        mtu = connection.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) - 48
    else:
        connection.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        mtu = connection.getsockopt(socket.IPPROTO_IP, IP_MTU) - 28
    return max(SMALLEST_SEGMENT, min(mtu - HEADER_BYTES, LARGEST_SEGMENT))


@dataclass(frozen=True)
class OpenSession:
    """What HELLO_ACK said."""

    core: ClientCore
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def hello_datagram(hello: Hello) -> bytes:
    """A HELLO."""
    payload = hello.pack()
    return Header(type=MessageType.HELLO, flags=Flags.LAST, length=len(payload)).pack() + payload


def opened(
    datagram: bytes, hello: Hello, key: bytes | None, *, stream: bool
) -> OpenSession | Hello:
    """A session, or the HELLO to send next (with the cookie).

    Raises HelloError for what is no answer to this hello, InferenceError when the server refuses.
    """
    try:
        header = parse(datagram)
    except WrongHeader as error:
        raise HelloError(str(error)) from error
    payload = datagram[HEADER_BYTES:]
    if header.type != MessageType.HELLO_ACK:
        raise HelloError("not an answer to a hello")
    if header.session == 0:
        if header.status != WireStatus.RETRY_LATER:
            if payload != hello.nonce:
                raise HelloError("not the answer to this hello")
            raise error_of(header.status)
        if payload == hello.nonce:
            return hello
        cookie = parse_cookie(payload, hello.nonce)
        return Hello(
            hello.nonce, hello.model, hello.version, hello.segment, hello.window, cookie
        )
    found = Opened.parse(payload, hello.nonce)
    shared = session_key(key, hello.nonce, found.server_nonce) if key else None
    try:
        check_tag(header, datagram, shared)
    except WrongHeader as error:
        raise HelloError("the server's key is not ours") from error
    core = ClientCore(
        header.session,
        header.func_id,
        shared,
        SegmentPlan(tuple(spec.bytes for spec in found.inputs), found.segment),
        SegmentPlan(tuple(spec.bytes for spec in found.outputs), found.segment),
        header.credit,
        stream,
    )
    return OpenSession(core, found.inputs, found.outputs)


def check_inputs(specs: Sequence[TensorSpec], inputs: Sequence[Array]) -> list[memoryview]:
    """The bytes of the inputs. Raises BadRequestError when they are not of the model."""
    if len(inputs) != len(specs):
        raise BadRequestError(f"{len(inputs)} tensors; the model has {len(specs)}")
    views = []
    for spec, array in zip(specs, inputs, strict=True):
        if array.dtype != np.dtype(spec.dtype) or array.shape != spec.shape:
            raise BadRequestError(
                f"{spec.name}: {array.dtype} {array.shape}; the model wants {spec.dtype} "
                f"{spec.shape}"
            )
        views.append(bytes_of(np.ascontiguousarray(array)))
    return views


def bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    return memoryview(array).cast("B") if array.size else memoryview(b"")


class Client:
    """A session with one model, for one thread. Use as a context manager."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        version: str = "",
        key: bytes | None = None,
        timeout_s: float = 5.0,
        window: int = 64,
        spin: bool = False,
    ) -> None:
        """Open a session. Raises InferenceError, and ValueError for a wrong address.

        ``spin``: wait for answers without sleeping, which costs a processor.
        """
        self._address = Address.parse(url)
        self._stream = self._address.scheme != "udp"
        self._timeout_s = timeout_s
        try:
            self._socket, segment = connect(self._address, timeout_s)
        except OSError as error:
            raise UnreachableError(f"{url}: {error.strerror or error}") from error
        self._views: dict[int, list[memoryview]] = {}
        self._results: dict[int, list[Array]] = {}
        self._landing: dict[int, list[memoryview]] = {}
        self._header = bytearray(HEADER_BYTES)
        self._spill = bytearray(1 << 16)
        self._failed: dict[int, int] = {}
        try:
            hello = Hello(secrets.token_bytes(16), model, version, segment, window)
            session = self._open(hello, key)
        except BaseException:
            self._socket.close()
            raise
        self.inputs, self.outputs = session.inputs, session.outputs
        """Tensors of one request."""
        self._core = session.core
        self._socket.setblocking(not spin)
        if not spin:
            interval = struct.pack("@ll", 0, SO_RCVTIMEO_NS // 1000)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)

    def _open(self, hello: Hello, key: bytes | None) -> OpenSession:
        end = time.monotonic() + self._timeout_s
        for number in range(HELLO_TRIES * 4):
            self._socket.send(hello_datagram(hello))
            left = max(0.01, end - time.monotonic())
            self._socket.settimeout(min(left, 0.1 * 2 ** min(number, 5)))
            try:
                answer = self._whole_answer() if self._stream else self._socket.recv(1 << 16)
                found = opened(answer, hello, key, stream=self._stream)
            except (TimeoutError, HelloError, ConnectionRefusedError) as error:
                if self._stream or time.monotonic() > end:
                    raise UnreachableError(f"no answer to hello: {error}") from error
                continue
            except (TooLarge, OSError) as error:
                raise UnreachableError(str(error)) from error
            if isinstance(found, OpenSession):
                return found
            hello = found
        raise UnreachableError("the server takes no session now")

    def _whole_answer(self) -> bytes:
        head = self._exactly(HEADER_BYTES)
        return head + self._exactly(int.from_bytes(head[22:24], "little"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise UnreachableError("the server closed the connection")
            data += more
        return data

    # ---- requests

    def infer(
        self,
        inputs: Sequence[Array],
        *,
        deadline_ms: float | None = None,
        best_effort: bool = False,
        idempotent: bool = False,
        timeout_s: float | None = None,
    ) -> list[Array]:
        """Ask once; the outputs. Raises InferenceError."""
        return self.infer_many(
            [inputs],
            deadline_ms=deadline_ms,
            best_effort=best_effort,
            idempotent=idempotent,
            timeout_s=timeout_s,
        )[0]

    def infer_many(
        self,
        requests: Sequence[Sequence[Array]],
        *,
        deadline_ms: float | None = None,
        best_effort: bool = False,
        idempotent: bool = False,
        timeout_s: float | None = None,
    ) -> list[list[Array]]:
        """Ask many times at once, as far as there is credit; the outputs in order.

        Raises the first InferenceError when all are ended.
        """
        views = [check_inputs(self.inputs, inputs) for inputs in requests]
        options: dict[str, Any] = {
            "deadline_us": max(1, int(deadline_ms * 1000)) if deadline_ms is not None else 0,
            "priority": int(best_effort),
            "idempotent": idempotent,
        }
        end_ns = time.monotonic_ns() + int((timeout_s or self._timeout_s) * 1e9)
        ids: list[int] = []
        waiting = views[::-1]
        while waiting or self._core.pending:
            now = time.monotonic_ns()
            while waiting and self._core.may_begin:
                req_id, datagrams = self._core.begin(now, **options)
                ids.append(req_id)
                self._prepare(req_id, waiting.pop())
                self._send(datagrams)
            if waiting and not self._core.pending:
                self._send([self._core.ask_for_credit()])
            if not self._receive() or now > end_ns:
                self._on_time(end_ns)
        failed = [self._failed.pop(i) for i in ids if i in self._failed]
        results = [self._results.pop(i, []) for i in ids]
        if failed:
            raise error_of(failed[0])
        return results

    def _prepare(self, req_id: int, views: list[memoryview]) -> None:
        self._views[req_id] = views
        arrays = [np.empty(spec.shape, spec.dtype) for spec in self.outputs]
        self._results[req_id] = arrays
        self._landing[req_id] = [bytes_of(array) for array in arrays]

    def _send(self, datagrams: Sequence[Outgoing]) -> None:
        for each in datagrams:
            payload: bytes | memoryview = each.payload
            if each.segment is not None:
                view = self._views[each.req_id][each.segment.tensor]
                payload = view[each.segment.offset : each.segment.offset + each.segment.length]
            try:
                self._send_whole(each.header, payload)
            except ConnectionRefusedError:
                continue  # of an earlier datagram: this one is asked for again
            except OSError as error:
                raise UnreachableError(f"sending failed: {error.strerror}") from error

    def _send_whole(self, header: bytes, payload: bytes | memoryview) -> None:
        try:
            sent = self._socket.sendmsg([header, payload])
        except BlockingIOError:
            sent = 0
        if sent == len(header) + len(payload):
            return
        rest = memoryview(header + bytes(payload))[sent:]
        while rest:
            select.select([], [self._socket], [], 1)
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                continue

    def _receive(self) -> bool:
        """Take one datagram in; False when none came in 10 ms."""
        if self._stream:
            return self._receive_from_stream()
        place = next(self._core.expected(), None)
        target = self._place(*place) if place else memoryview(b"")
        try:
            length = self._socket.recvmsg_into([self._header, target, self._spill])[0]
        except (BlockingIOError, TimeoutError, ConnectionRefusedError):
            return False

        def payload() -> bytes:
            behind = max(0, length - HEADER_BYTES - len(target))
            return bytes(target[: length - HEADER_BYTES]) + bytes(self._spill[:behind])

        now = time.monotonic_ns()
        found, answers = self._core.receive(self._header, length, now, payload)
        if isinstance(found, Landing) and (found.req_id, found.segment) != place:
            self._place(found.req_id, found.segment)[:] = payload()
        self._act(found)
        self._send(answers)
        return True

    def _place(self, req_id: int, segment: Segment) -> memoryview:
        """Where a segment of an answer belongs."""
        view = self._landing[req_id][segment.tensor]
        return view[segment.offset : segment.offset + segment.length]

    def _act(self, found: Landing | Refused | None) -> None:
        if isinstance(found, Refused):
            self._failed[found.req_id] = found.status
            self._ended(found.req_id)
        elif isinstance(found, Landing) and found.is_last:
            self._ended(found.req_id)

    def _receive_from_stream(self) -> bool:
        try:
            first = self._socket.recv_into(self._header)
        except (BlockingIOError, TimeoutError):
            return False
        self._fill(memoryview(self._header), first)
        length = int.from_bytes(self._header[22:24], "little")
        found, _ = self._core.receive(
            self._header, HEADER_BYTES + length, time.monotonic_ns(), bytes
        )
        if isinstance(found, Landing):
            self._fill(self._place(found.req_id, found.segment))
        else:
            self._fill(memoryview(self._spill)[:length])
        self._act(found)
        return True

    def _fill(self, view: memoryview, have: int | None = None) -> None:
        """Read until the view is full; ``have`` bytes are there."""
        got = have or 0
        if have == 0:
            raise UnreachableError("the server closed the connection")
        while got < len(view):
            try:
                more = self._socket.recv_into(view[got:])
            except (BlockingIOError, TimeoutError):
                continue
            if more == 0:
                raise UnreachableError("the server closed the connection")
            got += more

    def _ended(self, req_id: int) -> None:
        self._views.pop(req_id, None)
        self._landing.pop(req_id, None)

    def _on_time(self, end_ns: int) -> None:
        now = time.monotonic_ns()
        if now > end_ns:
            for req_id in list(self._core.pending):
                self._send(self._core.cancel(req_id))
                self._ended(req_id)
            raise UnreachableError("no answer in time")
        self._send(self._core.tick(now))

    def close(self) -> None:
        """End the session."""
        try:
            if not self._stream:
                self._send(self._core.farewell())
        except InferenceError:
            pass  # it ends by itself
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
