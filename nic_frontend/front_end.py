"""The front end: what is rare, around the data path that does what is frequent.

One thread. The data path runs until something rare is up: a hello, a worker that comes or goes, a
stream, a signal, or 200 ms. A function exists while a worker has it loaded, or a client a session
with it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shunter.batching.attach import (
    Attach,
    AttachError,
    listen,
    peer_uid,
    receive,
    remove_left_over,
    send,
)
from shunter.batching.native import library
from shunter.batching.tensor_queue import QueueError, TensorQueue
from shunter.batching.wire import Header, WrongHeader, parse
from shunter.batching.wire_layout import (
    HEADER_BYTES,
    WINDOW,
    WORKER_COUNT,
    Flags,
    MessageType,
    WireStatus,
)
from shunter.nic_frontend.dispatch import Policy
from shunter.nic_frontend.hello import (
    LARGEST_SEGMENT,
    Hello,
    HelloError,
    Opened,
    cookie_is_good,
    cookie_of,
    pack_cookie,
    session_key,
)
from shunter.nic_frontend.native_server import NativeServer
from shunter.nic_frontend.python_server import PythonServer
from shunter.nic_frontend.sessions import Session

LOGGER = logging.getLogger("shunter.nic")
UDP_GRO = 104
SO_RXQ_OVFL = 40
SO_RCVBUFFORCE = 33
RECEIVE_BUFFER = 64 << 20
CYCLE_NS = 200_000_000
STREAM_HELLO_S = 2.0
PORT_WAIT_S = 2.0
"""The workers of a front end that was killed have its socket until they see that it is gone."""
MOST_SESSIONS = 8192
"""A session of the data path takes about 20 KB."""
_HELLO_BYTES = HEADER_BYTES + Hello.BYTES
_TRUESIZE = 1.1
"""Memory of the kernel for a byte of a large datagram."""
_SMALL = 2304
"""The same for a small datagram as a whole."""


@dataclass(frozen=True)
class Settings:
    """How a front end serves."""

    attach: Path
    """Unix socket at which workers attach."""
    host: str = "127.0.0.1"
    port: int = 8083
    tcp: bool = True
    """Also serve streams at the same port."""
    unix: Path | None = None
    """Also serve streams at this Unix socket."""
    key: bytes | None = None
    """Pre-shared key: only clients that have it are served."""
    spin_us: int = 0
    gro: bool = True
    queue_bytes: int = 64 << 20
    """Memory of the tensors of one function."""


@dataclass
class _Worker:
    """A worker that is attached."""

    connection: socket.socket
    func_id: int
    index: int
    doorbell: int
    leaving: bool = False


@dataclass
class _Served:
    """A function: one version of a model."""

    id: int
    attach: Attach
    queue: TensorQueue
    burst: int
    workers: dict[int, _Worker] = field(default_factory=dict)


class FrontEnd:
    """A front end; :meth:`run` serves until :meth:`stop`."""

    def __init__(self, settings: Settings) -> None:
        """Bind everything. Raises OSError when an address is taken."""
        self.settings = settings
        self._closing: list[Callable[[], object]] = []
        self._secret = secrets.token_bytes(16)
        self._functions: dict[int, _Served] = {}
        self._workers: dict[int, _Worker] = {}
        self._unknown: dict[socket.socket, float] = {}
        """Connections that have not said who they are, and until when they may."""
        self._ready: dict[int, Callable[[], None]] = {}
        self._stopped = False
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        settings = self.settings
        attach = listen(settings.attach)
        self._closing.append(lambda: settings.attach.unlink(missing_ok=True))
        self._closing.append(attach.close)
        self.udp, tcp = _sockets(settings)
        self._closing += [each.close for each in (self.udp, tcp) if each]
        self.port = int(self.udp.getsockname()[1])
        self._receive_bytes = self.udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing.append(lambda: os.close(self.doorbell))
        self._stop_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing.append(lambda: os.close(self._stop_event))
        self._epoll = select.epoll()
        self._closing.append(self._epoll.close)
        self.path = self._data_path()
        self._closing.append(self.path.close)
        self._watch(self._stop_event, self._on_stop)
        self._watch(attach.fileno(), lambda: self._on_worker(attach))
        if tcp:
            self._watch(tcp.fileno(), lambda: self._on_stream(tcp))
        if settings.unix:
            unix = _unix_socket(settings.unix)
            self._closing.append(unix.close)
            self._watch(unix.fileno(), lambda: self._on_stream(unix))
            self._closing.append(lambda: Path(str(settings.unix)).unlink(missing_ok=True))

    def _data_path(self) -> NativeServer | PythonServer:
        """In C where the library is, else in Python."""
        kind: type[NativeServer] | type[PythonServer] = NativeServer
        gro = False
        if library() is None:
            LOGGER.warning("there is no library of the data path: it runs in Python, slower")
            kind = PythonServer
        elif self.settings.gro:
            gro = _set_gro(self.udp)
        descriptors = (self.udp.fileno(), self.doorbell, self._epoll.fileno())
        return kind(*descriptors, spin_us=self.settings.spin_us, gro=gro)

    def _watch(self, descriptor: int, then: Callable[[], None]) -> None:
        self._ready[descriptor] = then
        self._epoll.register(descriptor, select.EPOLLIN)

    def _unwatch(self, descriptor: int) -> None:
        del self._ready[descriptor]
        self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Let go of everything."""
        for worker in list(self._workers.values()):
            worker.connection.close()
            os.close(worker.doorbell)
        self._workers.clear()
        for connection in self._unknown:
            connection.close()
        self._unknown.clear()
        for close in reversed(self._closing):
            close()
        self._closing.clear()
        for served in self._functions.values():
            served.queue.close()
        self._functions.clear()

    def stop(self) -> None:
        """End :meth:`run`; from any thread or signal handler."""
        os.eventfd_write(self._stop_event, 1)

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        while not self._stopped:
            for peer, datagram in self.path.run(time.monotonic_ns() + CYCLE_NS):
                self._on_hello(peer, datagram)
            for descriptor, _ in self._epoll.poll(0):
                if then := self._ready.get(descriptor):
                    then()
            for session in self.path.closed_streams():
                self.path.remove_session(session, time.monotonic_ns())
            self._let_go()
            self._clean_up()

    def _on_stop(self) -> None:
        os.eventfd_read(self._stop_event)
        self._stopped = True

    # ---- sessions

    def _on_hello(self, peer: bytes, datagram: bytes) -> None:
        try:
            header = parse(datagram)
            hello = Hello.parse(datagram[HEADER_BYTES:])
        except (WrongHeader, HelloError):
            return
        now = time.monotonic_ns()
        if not cookie_is_good(self._secret, peer, now, hello.cookie):
            payload = pack_cookie(hello.nonce, cookie_of(self._secret, peer, now))
            self.path.reply(peer, _hello_ack(header, WireStatus.RETRY_LATER, payload))
            return
        self.path.reply(peer, self._answer(header, hello, peer, stream=False)[0])

    def _answer(
        self, header: Header, hello: Hello, peer: bytes, *, stream: bool
    ) -> tuple[bytes, int]:
        """The answer to a hello that may open a session, and the session's id or 0."""
        served = self._find(hello.model, hello.version)
        if served is None:
            return _hello_ack(header, WireStatus.UNKNOWN_FUNCTION, hello.nonce), 0
        nonce = secrets.token_bytes(16)
        key = self.settings.key
        window = min(hello.window, WINDOW, served.queue.entries)
        session = Session(
            id=0,
            func_id=served.id,
            peer=peer,
            segment=min(hello.segment, LARGEST_SEGMENT),
            window=window,
            key=session_key(key, hello.nonce, nonce) if key else None,
            stream=stream,
        )
        try:
            grant = self._add(session)
        except OSError as error:
            status = WireStatus.RETRY_LATER
            if error.errno == errno.E2BIG:
                status = WireStatus.BAD_REQUEST
            else:
                LOGGER.warning("no session for %s: %s", hello.model, error)
            return _hello_ack(header, status, hello.nonce), 0
        attach = served.attach
        opened = Opened(
            hello.nonce, nonce, session.segment, window, attach.inputs, attach.outputs
        )
        return _hello_ack(header, WireStatus.OK, opened.pack(), session, grant), session.id

    def _add(self, session: Session) -> int:
        """Add a session under a new id; its first grant. Raises OSError when it cannot be."""
        if self.path.sessions() >= MOST_SESSIONS:
            raise OSError(errno.EMFILE, f"there are {MOST_SESSIONS} sessions")
        while True:
            session.id = secrets.randbelow((1 << 32) - 1) + 1
            try:
                return self.path.add_session(session, time.monotonic_ns())
            except FileExistsError:  # its place is taken
                continue

    def _find(self, model: str, version: str) -> _Served | None:
        """A function with a worker; without a version the one that was attached last."""
        for served in reversed(self._functions.values()):
            attach = served.attach
            if attach.model == model and version in ("", attach.version) and served.workers:
                return served
        return None

    # ---- streams

    def _on_stream(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        have = bytearray()

        def readable() -> None:
            try:
                data = connection.recv(_HELLO_BYTES - len(have))
            except BlockingIOError:
                return
            except OSError:
                data = b""
            have.extend(data)
            if not data or len(have) == _HELLO_BYTES:
                self._knows(connection)
                self._unwatch(connection.fileno())
                self._open_stream(connection, bytes(have))

        self._asks(connection, readable)

    def _asks(self, connection: socket.socket, then: Callable[[], None]) -> None:
        """Wait for a while for what a connection says first."""
        self._unknown[connection] = time.monotonic() + STREAM_HELLO_S
        self._watch(connection.fileno(), then)

    def _knows(self, connection: socket.socket) -> None:
        self._unknown.pop(connection, None)

    def _open_stream(self, connection: socket.socket, message: bytes) -> None:
        try:
            header, hello = parse(message), Hello.parse(message[HEADER_BYTES:])
            if header.type != MessageType.HELLO:
                raise HelloError("a stream begins with a hello")
        except (WrongHeader, HelloError):
            connection.close()
            return
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = self.path.stream_peer(connection.fileno())
        answer, session = self._answer(header, hello, peer, stream=True)
        try:
            connection.sendall(answer)
            if session:
                self.path.add_stream(connection.fileno(), session)
                connection.detach()
                return
        except OSError as error:
            LOGGER.info("a stream ended at its beginning: %s", error)
        connection.close()
        if session:
            self.path.remove_session(session, time.monotonic_ns())

    # ---- workers

    def _on_worker(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if peer_uid(connection) != os.getuid():
            LOGGER.warning("a process of another user wanted to attach")
            connection.close()
            return
        connection.setblocking(False)
        self._asks(connection, lambda: self._on_message(connection))

    def _on_message(self, connection: socket.socket) -> None:
        descriptor = connection.fileno()
        worker = self._workers.get(descriptor)
        try:
            content, descriptors = receive(connection)
            for each in descriptors:
                os.close(each)
            if worker is None:
                self._attach(connection, Attach.from_json(content))
            elif content == {"leave": True}:
                worker.leaving = True
                self.path.drain_worker(worker.func_id, worker.index)
        except BlockingIOError:
            return
        except (EOFError, OSError, AttachError, QueueError) as error:
            self._unwatch(descriptor)
            if worker is not None:
                self._gone(worker)
                return
            self._knows(connection)
            if not isinstance(error, EOFError):
                LOGGER.warning("a worker was refused: %s", error)
                _try_send(connection, {"refused": str(error)})
            connection.close()

    def _attach(self, connection: socket.socket, attach: Attach) -> None:
        served = self._function(attach)
        free = [i for i in range(WORKER_COUNT) if i not in served.workers]
        if not free:
            raise AttachError(f"{attach.model} has {WORKER_COUNT} workers already")
        doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        worker = _Worker(connection, served.id, free[0], doorbell)
        answer = {"func_id": served.id, "worker": worker.index}
        descriptors = [self.udp.fileno(), doorbell, self.doorbell, *served.queue.descriptors]
        try:
            self.path.add_worker(served.id, worker.index, attach.batch, doorbell)
            send(connection, answer, descriptors)
        except OSError:
            with contextlib.suppress(OSError):
                self.path.remove_worker(served.id, worker.index)
            os.close(doorbell)
            raise
        self._knows(connection)
        served.workers[worker.index] = worker
        self._workers[connection.fileno()] = worker
        LOGGER.info("worker %d (pid %d) serves %s", worker.index, attach.pid, attach.model)

    def _function(self, attach: Attach) -> _Served:
        """The function of a model's version, which is made when it is new."""
        for served in self._functions.values():
            known = served.attach
            if (known.model, known.version) == (attach.model, attach.version):
                if (known.inputs, known.outputs) != (attach.inputs, attach.outputs):
                    raise AttachError(f"{attach.model}: its tensors are not those of its peers")
                return served
        func_id = next(i for i in range(1, 1 << 16) if i not in self._functions)
        size = sum(spec.bytes for spec in (*attach.inputs, *attach.outputs))
        wanted = max(2 * attach.batch, min(1024, self.settings.queue_bytes // max(1, size)))
        queue = TensorQueue.create(func_id, attach.inputs, attach.outputs, wanted)
        asked = sum(max(_SMALL, _TRUESIZE * spec.bytes) for spec in attach.inputs)
        burst = max(1, min(queue.entries, int(self._receive_bytes / asked)))
        served = _Served(func_id, attach, queue, burst)
        try:
            self.path.add_function(func_id, queue, Policy(), burst)
        except BaseException:
            queue.close()
            raise
        self._functions[func_id] = served
        return served

    def _gone(self, worker: _Worker) -> None:
        """Its connection has ended: what it had not answered runs elsewhere, or is answered."""
        del self._workers[worker.connection.fileno()]
        self.path.remove_worker(worker.func_id, worker.index)
        del self._functions[worker.func_id].workers[worker.index]
        os.close(worker.doorbell)
        worker.connection.close()

    def _let_go(self) -> None:
        """Workers that want to leave and have answered everything."""
        for worker in list(self._workers.values()):
            if worker.leaving and self.path.is_idle(worker.func_id, worker.index):
                worker.leaving = False
                _try_send(worker.connection, {"left": True})

    def _clean_up(self) -> None:
        """Close who says nothing; remove functions that have neither workers nor sessions."""
        now = time.monotonic()
        for connection in [each for each, until in self._unknown.items() if now > until]:
            self._knows(connection)
            self._unwatch(connection.fileno())
            connection.close()
        for served in [each for each in self._functions.values() if not each.workers]:
            with contextlib.suppress(OSError):  # it is in use
                self.path.remove_function(served.id)
                del self._functions[served.id]
                served.queue.close()


def _hello_ack(
    header: Header,
    status: WireStatus,
    payload: bytes,
    session: Session | None = None,
    grant: int = 0,
) -> bytes:
    answer = Header(
        type=MessageType.HELLO_ACK,
        flags=Flags.LAST,
        req_id=header.req_id,
        length=len(payload),
        status=status,
        credit=grant,
        func_id=session.func_id if session else 0,
        session=session.id if session else 0,
    )
    return answer.pack(session.key if session else None) + payload


def _try_send(connection: socket.socket, content: dict[str, object]) -> None:
    try:
        send(connection, content)
    except OSError:
        return  # it is gone, or will be


def _sockets(settings: Settings) -> tuple[socket.socket, socket.socket | None]:
    """Of datagrams and of streams at one port."""
    until = time.monotonic() + PORT_WAIT_S
    while True:
        udp = None
        try:
            udp = _udp_socket(settings)
            port = int(udp.getsockname()[1])
            return udp, _tcp_socket(settings, port) if settings.tcp else None
        except OSError as error:
            if udp:
                udp.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(0.02)


def _udp_socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    udp = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        with contextlib.suppress(PermissionError):  # only root may pass the system's limit
            udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        udp.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        udp.bind((settings.host, settings.port))
    except BaseException:
        udp.close()
        raise
    return udp


def _set_gro(udp: socket.socket) -> bool:
    try:
        udp.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    except OSError:
        return False
    return True


def _tcp_socket(settings: Settings, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def _unix_socket(path: Path) -> socket.socket:
    remove_left_over(path, socket.SOCK_STREAM)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
