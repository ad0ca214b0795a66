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
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from shunter.batching.attach import (
    Attach,
    AttachError,
    listen,
    peer_process,
    receive,
    send,
)
from shunter.batching.native import library
from shunter.batching.tensor_queue import QueueError, TensorQueue, entries_within
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
    Hello,
    HelloError,
    Opened,
    agreed,
    cookie_is_good,
    cookie_of,
    pack_cookie,
    payload_keys,
    room,
    session_key,
)
from shunter.nic_frontend.hello_times import HelloTimes
from shunter.nic_frontend.listeners import (
    client_sockets,
    naming,
    set_gro,
    unix_socket,
)
from shunter.nic_frontend.native_server import NativeServer
from shunter.nic_frontend.python_server import PythonServer
from shunter.nic_frontend.sessions import Session

LOGGER = logging.getLogger("shunter.nic")
CYCLE_NS = 200_000_000
LAST_CYCLE_NS = 10_000_000
WORKERLESS_S = 10.0
"""A request waits so long for a function's next worker, when its last one is gone."""
FINISH_S = 2.0
"""At the end, workers go on so long with what waits."""
RUN_S = 5.0
"""At the end, a batch may run so long."""
KILL_NS = 2_000_000_000
"""A process that is killed has so long to end."""
LINGER_S = 0.5
QUIET_STEPS = 5
"""At the end, errors are sent until no request came in so many cycles, or for the time above."""
STREAM_HELLO_S = 2.0
MOST_UNKNOWN = 256
"""Connections that have not said who they are; of more, the oldest is closed."""
MOST_OPENED = 512
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
    encrypt: bool = False
    """Serve encrypted sessions only; they are served anyway to who wants them and has the key."""
    spin_us: int = 0
    gro: bool = True
    queue_bytes: int = 1 << 30
    """The tensors of one function may take so much memory."""
    settle_s: float = 0.0
    """So long after its start, and after each new server, a client whose model is not known gets
    no answer, and asks again: its workers may be on their way."""


@dataclass
class _Worker:
    """A worker that is attached."""

    connection: socket.socket
    func_id: int
    index: int
    doorbell: int
    pid: int
    timeout_ns: int
    """A batch may run so long; 0: as long as it wants."""
    killed: bool = False
    leaving: bool = False
    left: bool = False

    @property
    def stays(self) -> bool:
        """Whether it takes more batches."""
        return not self.leaving and not self.killed


@dataclass
class _Served:
    """A function: one version of a model."""

    id: int
    attach: Attach
    queue: TensorQueue
    burst: int
    workers: dict[int, _Worker] = field(default_factory=dict)
    alone_since: float = 0.0
    """When its last worker went, 0: it has one."""

    def is_for(self, attach: Attach) -> bool:
        """Whether it is the model version of a worker, with the same tensors."""
        known = self.attach
        same = (known.inputs, known.outputs) == (attach.inputs, attach.outputs)
        return same and (known.model, known.version) == (attach.model, attach.version)


@dataclass(frozen=True)
class Function:
    """A function, for who tells of it."""

    id: int
    model: str
    version: str
    entries: int
    workers: int


class FrontEnd:
    """A front end; :meth:`run` serves until :meth:`stop`."""

    def __init__(self, settings: Settings) -> None:
        """Bind everything.

        Raises OSError when an address is taken, ValueError when it is to encrypt and cannot.
        """
        self.settings = settings
        self._closing: list[Callable[[], object]] = []
        self._secret = secrets.token_bytes(16)
        self._functions: dict[int, _Served] = {}
        self._workers: dict[int, _Worker] = {}
        self._unknown: dict[socket.socket, float] = {}
        """Connections that have not said who they are, and until when they may."""
        self._ready: dict[int, Callable[[], None]] = {}
        self._resting: dict[int, Callable[[], None]] = {}
        """Listeners that are not looked at until the next cycle: there are no descriptors."""
        self._attach_at: tuple[socket.socket, Path] | None = None
        self._refused = ""
        self._opened: OrderedDict[tuple[bytes, Hello], tuple[bytes, int]] = OrderedDict()
        """Hellos that opened the last sessions by datagrams: the answer, and the session."""
        self._settled = 0.0
        self._on_cycle: Callable[[int], None] = lambda now_ns: None
        self._due_ns = 0
        self._stopped = False
        self._finishes = True
        self.is_stopping = False
        """Whether :meth:`stop` has been called."""
        self.hello_times = HelloTimes()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        settings = self.settings
        self.udp, tcp = client_sockets(settings.host, settings.port, tcp=settings.tcp)
        self._closing.append(self.udp.close)
        if tcp is not None:
            self._closing.append(tcp.close)
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
        self._no_encryption = self.path.why_no_encryption() if settings.key else "there is no key"
        if settings.encrypt and self._no_encryption:
            raise ValueError(f"payloads cannot be encrypted: {self._no_encryption}")
        self._watch(self._stop_event, self._on_stop)
        self.attach_at(settings.attach)
        self._closing.append(self.detach)
        if tcp is not None:
            self._listen_streams(tcp)
        if settings.unix:
            listener = unix_socket(settings.unix)
            self._closing.append(listener.close)
            self._listen_streams(listener)
            self._closing.append(lambda: Path(str(settings.unix)).unlink(missing_ok=True))

    def attach_at(self, path: Path) -> None:
        """Listen for workers here, unless it ends. Raises OSError when another front end does."""
        if self._stopped:
            return
        with naming(f"Unix socket {path}"):
            listener = listen(path)
        self._attach_at = listener, path
        self._settled = time.monotonic() + self.settings.settle_s
        self._watch(listener.fileno(), lambda: self._on_worker(listener))

    def detach(self) -> None:
        """Listen for workers nowhere: their server is gone, and so are they."""
        if self._attach_at is not None:
            listener, path = self._attach_at
            self._attach_at = None
            self._unwatch(listener.fileno())
            listener.close()
            path.unlink(missing_ok=True)

    def functions(self) -> list[Function]:
        """Those that have a worker, or had one."""
        return [
            Function(
                each.id,
                each.attach.model,
                each.attach.version,
                each.queue.entries,
                len(each.workers),
            )
            for each in self._functions.values()
        ]

    def _data_path(self) -> NativeServer | PythonServer:
        """In C where the library is, else in Python."""
        kind: type[NativeServer] | type[PythonServer] = NativeServer
        gro = False
        if library() is None:
            LOGGER.warning("there is no library of the data path: it runs in Python, slower")
            kind = PythonServer
        elif self.settings.gro:
            gro = set_gro(self.udp)
        descriptors = (self.udp.fileno(), self.doorbell, self._epoll.fileno())
        return kind(*descriptors, spin_us=self.settings.spin_us, gro=gro)

    def _listen_streams(self, listener: socket.socket) -> None:
        self._watch(listener.fileno(), lambda: self._on_stream(listener))

    def _watch(self, descriptor: int, then: Callable[[], None]) -> None:
        self._ready[descriptor] = then
        self._epoll.register(descriptor, select.EPOLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self._resting.pop(descriptor, None):
            return
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

    def stop(self, *, finish: bool = True) -> None:
        """End :meth:`run`; from any thread or signal handler.

        ``finish``: first answer what is on its way, unless another call says otherwise.
        """
        self._finishes = self._finishes and finish
        self.is_stopping = True
        os.eventfd_write(self._stop_event, 1)

    def run(self, on_cycle: Callable[[int], None] = lambda now_ns: None) -> None:
        """Serve until :meth:`stop`.

        ``on_cycle`` is called five times a second, with the time in nanoseconds.
        """
        self._on_cycle = on_cycle
        while not self._stopped:
            self._step(CYCLE_NS)
        if self._finishes:
            self._finish()

    def _cycle(self, now_ns: int) -> None:
        while self._resting:
            self._watch(*self._resting.popitem())
        self._clean_up()
        self._end_stuck(now_ns)
        self._answer_for_nobody()
        self._on_cycle(now_ns)

    def _step(self, time_ns: int) -> None:
        for peer, datagram in self.path.run(time.monotonic_ns() + time_ns):
            self._on_hello(peer, datagram)
        for descriptor, _ in self._epoll.poll(0):
            if then := self._ready.get(descriptor):
                then()
        for session in self.path.closed_streams():
            self.path.remove_session(session, time.monotonic_ns())
        self._let_go()
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + CYCLE_NS
            self._cycle(now_ns)

    # ---- the end

    def _finish(self) -> None:
        """What waits is served while there are workers for it, what runs may end; then errors."""
        self.detach()  # the next front end may listen there
        end = time.monotonic() + FINISH_S
        while any(map(self._goes_on, self._functions.values())) and self._before(end):
            self._step(LAST_CYCLE_NS)
        for worker in self._workers.values():
            self.path.drain_worker(worker.func_id, worker.index)
        end = time.monotonic() + RUN_S
        self._give_up()
        while self._runs() and self._before(end):
            self._step(LAST_CYCLE_NS)
            self._give_up()
        for worker in list(self._workers.values()):
            self._unwatch(worker.connection.fileno())
            self._gone(worker)
        self._linger()

    def _linger(self) -> None:
        """Clients hear that nobody runs their requests, until they ask no more."""
        end, quiet = time.monotonic() + LINGER_S, 0
        while quiet < QUIET_STEPS and self._before(end):
            quiet = 0 if self._give_up() else quiet + 1
            self._step(LAST_CYCLE_NS)

    def _before(self, end: float) -> bool:
        """Whether there is time left to finish."""
        return self._finishes and time.monotonic() < end

    def _goes_on(self, served: _Served) -> bool:
        """Whether a worker has something to do that it will do."""
        if not any(worker.stays for worker in served.workers.values()):
            return False
        return self.path.waiting(served.id) > 0 or self._runs()

    def _runs(self) -> bool:
        return not all(self.path.is_idle(w.func_id, w.index) for w in self._workers.values())

    def _give_up(self) -> int:
        """Answer what waits that it has not run; how many requests."""
        no_worker = WireStatus.NO_WORKER
        return sum(self.path.give_up(served.id, no_worker) for served in self._functions.values())

    def _answer_for_nobody(self) -> None:
        """Requests whose function has no worker any more wait for a next one, but not for long."""
        now = time.monotonic()
        patience = WORKERLESS_S if self._attach_at else 0.0
        for served in self._functions.values():
            if served.workers:
                served.alone_since = 0.0
            elif not served.alone_since:
                served.alone_since = now
            if served.alone_since and now - served.alone_since >= patience:
                self.path.give_up(served.id, WireStatus.NO_WORKER)

    def _on_stop(self) -> None:
        os.eventfd_read(self._stop_event)
        self._stopped = True

    # ---- sessions

    def _on_hello(self, peer: bytes, datagram: bytes) -> None:
        if self._stopped:
            return  # it asks again, and may find the next front end
        try:
            header = parse(datagram)
            hello = Hello.parse(datagram[HEADER_BYTES:])
        except (WrongHeader, HelloError):
            return
        now = time.monotonic_ns()
        if not cookie_is_good(self._secret, peer, now, hello.cookie):
            payload = pack_cookie(hello.nonce, cookie_of(self._secret, peer, now))
            self.path.reply(peer, _hello_ack(header, WireStatus.RETRY_LATER, payload))
            self.hello_times.cookie_sent(hello.nonce, now)
            return
        self.hello_times.came_back(hello.nonce, now)
        asked = peer, replace(hello, cookie=0)
        answer, session = self._opened.get(asked, (b"", 0))
        if session and self.path.has_session(session):  # the answer was lost, or is late
            self.path.reply(peer, answer)
            return
        answer, session = self._answer(header, hello, peer, stream=False)
        if session:
            self._opened[asked] = answer, session
            if len(self._opened) > MOST_OPENED:
                self._opened.popitem(last=False)
        if session or time.monotonic() > self._settled:
            self.path.reply(peer, answer)

    def _answer(
        self, header: Header, hello: Hello, peer: bytes, *, stream: bool
    ) -> tuple[bytes, int]:
        """The answer to a hello that may open a session, and the session's id or 0."""
        if self._stopped:  # the next front end serves it
            return _hello_ack(header, WireStatus.RETRY_LATER, hello.nonce), 0
        served = self._find(hello.model, hello.version)
        if served is None:
            return _hello_ack(header, WireStatus.UNKNOWN_FUNCTION, hello.nonce), 0
        protect = agreed(
            hello.want, can=not self._no_encryption, must=self.settings.encrypt
        )
        if isinstance(protect, WireStatus):
            LOGGER.info("no session for %s: %s", hello.model, self._refusal(protect))
            return _hello_ack(header, protect, hello.nonce), 0
        attach = served.attach
        opened = Opened(
            client_nonce=hello.nonce,
            server_nonce=secrets.token_bytes(16),
            segment=room(hello.segment, protect),
            window=min(hello.window, WINDOW, served.queue.entries),
            inputs=attach.inputs,
            outputs=attach.outputs,
            protect=protect,
        )
        session = self._session(served, hello, opened, peer, stream=stream)
        try:
            grant = self._add(session)
        except OSError as error:
            status = WireStatus.RETRY_LATER
            if error.errno == errno.E2BIG:
                status = WireStatus.BAD_REQUEST
            else:
                LOGGER.warning("no session for %s: %s", hello.model, error)
            return _hello_ack(header, status, hello.nonce), 0
        return _hello_ack(header, WireStatus.OK, opened.pack(), session, grant), session.id

    def _session(
        self, served: _Served, hello: Hello, opened: Opened, peer: bytes, *, stream: bool
    ) -> Session:
        """Its id is not known yet."""
        key = self.settings.key
        encrypts = key and opened.protect & Flags.PAYLOAD_AEAD
        return Session(
            id=0,
            func_id=served.id,
            peer=peer,
            segment=opened.segment,
            window=opened.window,
            key=session_key(key, hello.nonce, opened.server_nonce) if key else None,
            stream=stream,
            protect=opened.protect,
            keys=payload_keys(key, hello, opened.pack()) if encrypts else None,
        )

    def _refusal(self, status: WireStatus) -> str:
        if status == WireStatus.MUST_ENCRYPT:
            return "the client does not encrypt"
        return f"the client wants encryption, and {self._no_encryption}"

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

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        """A connection, None when there is none, or no descriptor for it."""
        try:
            return listener.accept()[0]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                descriptor = listener.fileno()
                then = self._ready[descriptor]
                self._unwatch(descriptor)
                self._resting[descriptor] = then
            return None

    def _on_stream(self, listener: socket.socket) -> None:
        connection = self._accept(listener)
        if connection is None:
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
        if len(self._unknown) >= MOST_UNKNOWN:
            self._drop(next(iter(self._unknown)))
        self._unknown[connection] = time.monotonic() + STREAM_HELLO_S
        self._watch(connection.fileno(), then)

    def _drop(self, connection: socket.socket) -> None:
        """Close who has not said who it is."""
        self._knows(connection)
        self._unwatch(connection.fileno())
        connection.close()

    def _knows(self, connection: socket.socket) -> None:
        self._unknown.pop(connection, None)

    def _open_stream(self, connection: socket.socket, message: bytes) -> None:
        try:
            if self._stopped:
                raise HelloError("the front end is ending")
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
        connection = self._accept(listener)
        if connection is None:
            return
        if peer_process(connection)[1] != os.getuid():
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
                if str(error) != self._refused:  # it tries again and again
                    LOGGER.warning("a worker was refused: %s", error)
                    self._refused = str(error)
                _try_send(connection, {"refused": str(error)})
            connection.close()

    def _attach(self, connection: socket.socket, attach: Attach) -> None:
        served = self._function(attach)
        free = [i for i in range(WORKER_COUNT) if i not in served.workers]
        if not free:
            raise AttachError(f"{attach.model} has {WORKER_COUNT} workers already")
        doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        worker = _Worker(
            connection,
            served.id,
            free[0],
            doorbell,
            peer_process(connection)[0],
            int(attach.response_timeout_s * 1e9),
        )
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
        LOGGER.info("worker %d (pid %d) serves %s", worker.index, worker.pid, attach.model)

    def _function(self, attach: Attach) -> _Served:
        """The function of a model's version, which is made when it is new."""
        for served in self._functions.values():
            if served.is_for(attach):
                return served
            known = served.attach
            if served.workers and (known.model, known.version) == (attach.model, attach.version):
                raise AttachError(f"{attach.model}: its tensors are not those of its peers")
        func_id = next(i for i in range(1, 1 << 16) if i not in self._functions)
        specs = (*attach.inputs, *attach.outputs)
        wanted = entries_within(specs, attach.batch, self.settings.queue_bytes)
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

    def _end_stuck(self, now_ns: int) -> None:
        """Kill workers that do not answer: their server starts others.

        They are gone when their connections end, and nothing of them can write into the queue
        any more; or when even that takes long.
        """
        for worker in list(self._workers.values()):
            busy_ns = self.path.busy_ns(worker.func_id, worker.index, now_ns)
            if not worker.timeout_ns or busy_ns <= worker.timeout_ns:
                continue
            if not worker.killed:
                worker.killed = True
                LOGGER.warning(
                    "worker %d (pid %d) of %s is killed: no answer within responseTimeout of %g s",
                    *(worker.index, worker.pid, self._functions[worker.func_id].attach.model),
                    worker.timeout_ns / 1e9,
                )
                self.path.drain_worker(worker.func_id, worker.index)
                _kill(worker.pid)
            elif busy_ns > worker.timeout_ns + KILL_NS:
                self._unwatch(worker.connection.fileno())
                self._gone(worker)

    def _let_go(self) -> None:
        """Workers that want to leave and have answered everything."""
        for worker in list(self._workers.values()):
            if not worker.leaving or worker.left:
                continue
            if self.path.is_idle(worker.func_id, worker.index):
                worker.left = True
                _try_send(worker.connection, {"left": True})

    def _clean_up(self) -> None:
        """Close who says nothing; remove functions that have neither workers nor sessions."""
        now = time.monotonic()
        for connection in [each for each, until in self._unknown.items() if now > until]:
            self._drop(connection)
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


def _kill(pid: int) -> None:
    """End a process of ours; 0 is one that this process cannot see."""
    if pid > 0:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _try_send(connection: socket.socket, content: dict[str, object]) -> None:
    try:
        send(connection, content)
    except OSError:
        return  # it is gone, or will be
