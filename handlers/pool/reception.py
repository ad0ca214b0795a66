"""Seats come and go: heard by a thread, also while a batch runs.

What has happened is news for the thread that runs the batches. Only one thing is not left to it:
when the seat goes whose batch runs, its server has given the batch up, and with it this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import selectors
import socket
import threading
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from shunter.batching.queue.attach import peer_process
from shunter.handlers.pool.handover import (
    AT_WORK,
    HANDOVER_BYTES,
    UNBEGUN,
    WORD_BYTES,
    Announced,
    Handover,
    HandoverError,
    Kind,
    unpack_word,
    word,
)

_GREET_S = 5.0
"""So long a seat may take to say what it has."""
_GRACE_S = 0.2
_LOAD_GRACE_S = 30.0
"""So long a model may load on that nobody waits for: to end it would end those of all others."""
LOST = 1
"""Status of a process whose batch was given up."""


@dataclass(eq=False)
class Seat:
    """A seat that is served."""

    number: int
    socket: socket.socket
    has: Handover
    output: int
    errors: int
    """Descriptors of its standard output and error."""
    is_gone: bool = False
    is_dismissed: bool = False
    """It was told to go; that it does is no fault."""

    def end(self, status: int) -> None:
        """Its process ends with this status."""
        self.is_dismissed = True
        self._say(word(Kind.END, LOST if status == UNBEGUN else status))

    def be_alone(self, connection: int, received: bytes) -> None:
        """Its process goes on as a worker of its own, with its server's connection.

        ``received``: what was read from it.
        """
        self.is_dismissed = True
        said = word(Kind.ALONE, text=received.hex().encode())
        with contextlib.suppress(OSError):  # it is gone: that is heard
            socket.send_fds(self.socket, [said], [connection])

    def connect(self, path: bytes) -> None:
        """Ask it for a connection to a front end; it is news when it comes."""
        self._say(word(Kind.CONNECT, text=path))

    def _say(self, said: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(said)

    def close(self) -> None:
        """Let go of what it gave; its process is heard of no more."""
        for each in (self.output, self.errors):
            os.close(each)


@dataclass(frozen=True)
class News:
    """Of a seat: it has come; or it has gone; or it has connected."""

    seat: Seat
    is_new: bool = False
    connection: socket.socket | None = None
    """To a front end."""
    error: int = 0
    """Why there is none."""


@dataclass
class Reception:
    """Listens at ``p.K``."""

    listening: socket.socket
    lock: int
    """Descriptor of ``p.K.lock``. No other descriptor of that file may ever be closed here."""
    news: deque[News] = field(default_factory=deque)
    wake: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    """Readable when there are news."""
    _busy: list[Seat] = field(default_factory=list)
    """For whom it works: the last one's batch runs, that of the one before stands still."""
    _loading: Seat | None = None
    """Whose model loads."""
    _unwanted: tuple[Seat, float] | None = None
    """Who went while its model loaded, and until when that may go on."""
    _count: int = 0
    _page: int = field(default_factory=lambda: os.memfd_create("pool", os.MFD_CLOEXEC))
    _words: memoryview = field(init=False)
    """Of seats, who see what was done when this process has gone."""
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)

    def start(self) -> None:
        """Take seats from now on."""
        os.truncate(self._page, mmap.PAGESIZE)
        self._words = memoryview(mmap.mmap(self._page, mmap.PAGESIZE)).cast("Q")[:AT_WORK]
        self.listening.setblocking(False)
        self._selector.register(self.listening, selectors.EVENT_READ)
        os.register_at_fork(after_in_child=self._let_go_in_child)
        threading.Thread(target=self._run, name="reception", daemon=True).start()

    def _let_go_in_child(self) -> None:
        """A handler has forked. The child may outlive this process, and must not be taken for it:
        not by who comes, nor by who waits for the lock, nor by the seats that are served. To close
        descriptors in the child takes none of this process's locks."""
        lock, self.lock = self.lock, -1  # a child of the child may have it for something else
        with contextlib.suppress(OSError):
            os.close(lock)
        for each in list(self._selector.get_map().values()):
            each.fileobj.close()  # type: ignore[union-attr]

    def begin(self, seat: Seat, *, loads: bool = False) -> bool:
        """Work for this seat begins; false: it has gone. ``loads``: that is no batch."""
        with self._guard:
            if not seat.is_gone:
                self._loading = seat if loads else self._loading
                self._say_busy(len(self._busy), seat.number)
                self._busy.append(seat)
            return not seat.is_gone

    def end(self) -> None:
        """The work that was begun last has ended."""
        if self._busy.pop() is self._loading:
            self._loading = None
        self._say_busy(len(self._busy), 0)

    def _say_busy(self, index: int, number: int) -> None:
        self._words[index] = number

    def is_over(self) -> bool:
        """Let this be the end, unless a seat waits. Who comes later starts another process."""
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        if self.news or select.select([self.listening], [], [], 0)[0]:
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            return False
        Path(self.listening.getsockname()).unlink(missing_ok=True)
        return True

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(_GRACE_S if self._unwanted else None):
                if key.fileobj is self.listening:
                    self._accept()
                else:
                    self._hear(key.data)
            self._end_if_it_hangs()

    def _tell(self, news: News) -> None:
        self.news.append(news)
        os.eventfd_write(self.wake, 1)

    def _accept(self) -> None:
        try:
            connection, _ = self.listening.accept()
        except OSError:
            return
        self._count += 1
        try:
            seat = _greeted(connection, self._count)
        except (OSError, HandoverError, EOFError) as error:
            with contextlib.suppress(OSError):
                print(f"A seat was refused: {type(error).__name__}: {error}", flush=True)
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, seat)
        with contextlib.suppress(OSError):
            socket.send_fds(connection, [word(Kind.TAKEN, seat.number)], [self._page])
        self._tell(News(seat, is_new=True))

    def _hear(self, seat: Seat) -> None:
        try:
            data, descriptors = _received(seat.socket, WORD_BYTES, 1)
            kind, value, _ = unpack_word(data)
            given = [socket.socket(fileno=each) for each in descriptors]
            if kind is Kind.CONNECTED:
                self._tell(News(seat, connection=given[0] if given else None, error=value))
        except (OSError, EOFError, HandoverError):
            self._lost(seat)

    def _is_given_up(self, seat: Seat) -> bool:
        """Whether its batch runs, and goes on: one that was just answered is over in no time."""
        end = time.monotonic() + _GRACE_S
        while seat in self._busy and not seat.is_dismissed:
            if time.monotonic() > end:
                return True
            time.sleep(0.005)
        return False

    def _end_if_it_hangs(self) -> None:
        """What loads for a seat that has gone may end by itself; the others wait so long.

        No thread of its own looks: the load would be blamed for it, and be alone from then on.
        """
        if self._unwanted is None:
            return
        seat, end = self._unwanted
        if self._loading is not seat:
            self._unwanted = None
        elif time.monotonic() > end:
            _end(seat, b"a model that nobody waits for does not end to load")

    def _lost(self, seat: Seat) -> None:
        self._selector.unregister(seat.socket)
        with self._guard:
            seat.is_gone = True
        if self._loading is seat:
            self._unwanted = seat, time.monotonic() + _LOAD_GRACE_S
        elif self._is_given_up(seat):
            _end(seat, b"its batch was given up")
        seat.socket.close()
        self._tell(News(seat))


def _end(seat: Seat, why: bytes) -> NoReturn:
    """The process, with the work that was begun."""
    _say_if_heard(seat.errors, b"The pool process ends: " + why + b"\n")
    os._exit(LOST)


def _greeted(connection: socket.socket, number: int) -> Seat:
    """What it has. Raises OSError, EOFError, HandoverError."""
    if peer_process(connection)[1] != os.getuid():
        raise HandoverError("it is another user's")
    connection.settimeout(_GREET_S)
    data, descriptors = _received(connection, HANDOVER_BYTES, 2)
    try:
        if len(descriptors) != 2:
            raise HandoverError(f"{len(descriptors)} descriptors")
        announced = Announced.unpack(data)
        has = announced.read(_exactly(connection, announced.bytes))
    except BaseException:
        for each in descriptors:
            os.close(each)
        raise
    connection.setblocking(True)
    return Seat(number, connection, has, *descriptors)


def _received(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """The next bytes, with descriptors. Raises OSError, EOFError."""
    room = socket.CMSG_SPACE(most * array("i").itemsize)
    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_WAITALL
    data, others, _, _ = connection.recvmsg(size, room, flags)
    descriptors = array("i")
    for level, kind, content in others:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if not data:
        raise EOFError
    return data, list(descriptors)


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises OSError, EOFError."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _say_if_heard(descriptor: int, text: bytes) -> None:
    """Nobody may read it any more: it must not keep this process."""
    if select.select([], [descriptor], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(descriptor, text)
