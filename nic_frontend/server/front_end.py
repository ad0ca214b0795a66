"""The front end: what is rare, around the data path that does what is frequent.

One thread. Its data path runs until something rare is up: a hello, a worker that comes or goes, a
stream, a signal, or 200 ms, and a second when nothing comes. There may be more threads, each with a
data path of its own.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shunter.batching.queue.attach import listen
from shunter.batching.queue.landing import LandingPool
from shunter.nic_frontend.library import check_processor
from shunter.nic_frontend.server.access import KeyRing
from shunter.nic_frontend.server.data_path import DataPath
from shunter.nic_frontend.server.functions import Functions
from shunter.nic_frontend.server.listeners import (
    client_sockets,
    naming,
    unix_socket,
)
from shunter.nic_frontend.server.loops import Loop, Loops, Shared, WorkerSets
from shunter.nic_frontend.server.readiness import Readiness
from shunter.nic_frontend.server.reception import NewStreams, Reception

LOGGER = logging.getLogger("shunter.nic")
CYCLE_NS, QUIET_CYCLE_NS = 200_000_000, 1_000_000_000
"""The latter when nothing has come since the last one."""
LAST_CYCLE_NS = 10_000_000
FINISH_S = 2.0
"""At the end, workers go on so long with what waits."""
RUN_S = 5.0
"""At the end, a batch may run so long."""
LINGER_S = 0.5
QUIET_STEPS = 5
"""At the end, errors are sent until no request came in so many cycles, or for the time above."""


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
    """Secret of a key with all rights: only clients that have a key are served."""
    keys_file: Path | None = None
    """More keys: see :mod:`shunter.nic_frontend.server.access`."""
    strict: str = "all"
    """Whose requests may be strict, if their key allows it: ``all``, ``keyed`` or ``none``."""
    encrypt: bool = False
    """Serve encrypted sessions only; they are served anyway to who wants them and has the key."""
    threads: int = 1
    """Loops that share the work, each a function's."""
    spin_us: int = 0
    gro: bool = True
    xdp: str = ""
    """Interface at which the kernel splits datagrams, where it can; empty: none."""
    verbs: str = ""
    """RDMA device that is served too, where it can be; empty: none. Not run on hardware so far."""
    queue_bytes: int = 1 << 30
    """The tensors of one function may take so much memory."""
    landing_bytes: int = 4 << 30
    """The inputs of all functions that are here may take so much memory, which the threads share
    evenly; it is taken as functions come."""
    free_bytes: Callable[[], float] = lambda: math.inf
    """How much memory the host has free."""
    settle_s: float = 0.0
    """So long after its start, and after each new server, a client whose model is not known gets
    no answer, and asks again: its workers may be on their way."""


class FrontEnd:
    """A front end; :meth:`run` serves until :meth:`stop`."""

    def __init__(self, settings: Settings) -> None:
        """Bind everything.

        Raises OSError when an address is taken, LibraryError when there is no C library or the
        processor is the wrong one, ValueError when it is to encrypt, or to have several threads,
        and cannot.
        """
        check_processor()
        if settings.threads > 1 and (settings.xdp or settings.verbs):
            raise ValueError("threads: what xdp or verbs receives is for one thread")
        self.settings = settings
        self._closing: list[Callable[[], object]] = []
        self._attach_at: tuple[socket.socket, Path] | None = None
        self._on_cycle: Callable[[int], None] = lambda now_ns: None
        self._due_ns, self._seen = 0, dict[str, int]()
        self._stopped = self._rereads = False
        self._finishes = True
        self.is_stopping = False
        """Whether :meth:`stop` has been called."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        settings = self.settings
        where = settings.host, settings.port
        self.udp, tcp = client_sockets(*where, tcp=settings.tcp, loops=settings.threads)
        self._closing.append(self.udp.close)
        if tcp is not None:
            self._closing.append(tcp.close)
        self.port = self.udp.port
        self._stop_event = self._event()
        self._open_path()
        self.attach_at(settings.attach)
        self._closing.append(self.detach)
        if tcp is not None:
            self._listen(tcp)
        if settings.unix:
            listener = unix_socket(settings.unix)
            self._closing.append(listener.close)
            self._listen(listener)
            self._closing.append(lambda: Path(str(settings.unix)).unlink(missing_ok=True))

    def _open_path(self) -> None:
        """The data path, and the parts around it."""
        settings = self.settings
        ready = self._ready = Readiness()
        self._closing.append(ready.close)
        ready.watch(self._stop_event, self._on_stop)
        if settings.gro:
            self.udp.set_gro()
        sets = WorkerSets()
        self._closing.append(sets.close)
        path = self.path = Loops([self._loop(each, sets) for each in self.udp.loops])
        path.limit()
        if settings.xdp:
            splits, how = path.split(settings.xdp)
            LOGGER.log(logging.INFO if splits else logging.WARNING, how)
        if settings.verbs:
            serves, how = path.serve_verbs(settings.verbs)
            LOGGER.log(logging.INFO if serves else logging.WARNING, how)
        functions = self.functions = Functions(
            path,
            ready,
            queue_bytes=settings.queue_bytes,
            free_bytes=settings.free_bytes,
            receive_bytes=self.udp.main.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        )
        self._closing += [functions.close_queues, path.close, functions.close, path.end]
        keys = KeyRing(settings.keys_file, settings.key)
        self.reception = Reception(
            path, functions, keys, encrypt=settings.encrypt, strict=settings.strict
        )

    def _loop(self, udp: socket.socket, sets: WorkerSets) -> Loop:
        """That of a socket."""
        settings, is_main = self.settings, udp is self.udp.main
        strangers = self.udp.strangers if is_main else None
        landing = LandingPool(settings.landing_bytes // settings.threads, settings.free_bytes)
        self._closing.append(landing.close)
        shared = Shared(udp.fileno(), self._event(), landing)
        path = DataPath(
            *(shared.udp, shared.doorbell),
            self._ready.fileno() if is_main else self._event(),
            landing,
            spin_us=settings.spin_us,
            strangers=strangers.fileno() if strangers else -1,
            sets=sets.address,
        )
        return Loop(path, shared, is_main=is_main)

    def _event(self) -> int:
        descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing.append(lambda: os.close(descriptor))
        return descriptor

    def _listen(self, listener: socket.socket) -> None:
        streams = NewStreams(listener, self._ready, self.path, self.reception)
        self._ready.watch(listener.fileno(), streams.accept)

    def attach_at(self, path: Path) -> None:
        """Listen for workers here, unless it ends. Raises OSError when another front end does."""
        if self._stopped:
            return
        with naming(f"Unix socket {path}"):
            listener = listen(path)
        self._attach_at = listener, path
        self.reception.settled = time.monotonic() + self.settings.settle_s
        self._ready.watch(listener.fileno(), lambda: self.functions.on_worker(listener))

    def detach(self) -> None:
        """Listen for workers nowhere: their server is gone, and so are they."""
        if self._attach_at is not None:
            listener, path = self._attach_at
            self._attach_at = None
            self._ready.unwatch(listener.fileno())
            listener.close()
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of everything."""
        for close in reversed(self._closing):
            close()
        self._closing.clear()

    def stop(self, *, finish: bool = True) -> None:
        """End :meth:`run`; from any thread or signal handler.

        ``finish``: first answer what is on its way, unless another call says otherwise.
        """
        self._finishes = self._finishes and finish
        self.is_stopping = True
        os.eventfd_write(self._stop_event, 1)

    def read_keys(self) -> None:
        """Read the keys again soon; from any thread or signal handler."""
        self._rereads = True

    def run(self, on_cycle: Callable[[int], None] = lambda now_ns: None) -> None:
        """Serve until :meth:`stop`; ``on_cycle`` gets the time, in ns, at least once a second."""
        self._on_cycle = on_cycle
        self.path.begin()
        try:
            while not self._stopped:
                self._step(max(0, self._due_ns - time.monotonic_ns()))
            if self._finishes:
                self._finish()
        finally:
            self.path.end()

    def _step(self, time_ns: int) -> None:
        hellos = self.path.run(time.monotonic_ns() + time_ns)
        for hello in hellos:
            self.reception.on_datagram(*hello)
        handled = self._ready.handle()
        for session in self.path.closed_streams():
            self.path.remove_session(session, time.monotonic_ns())
        self.functions.let_go()
        now_ns = time.monotonic_ns()
        if hellos or handled or self._rereads:
            self._due_ns = min(self._due_ns, now_ns + CYCLE_NS)
        if now_ns >= self._due_ns:
            self._cycle(now_ns)
            before, self._seen = self._seen, {**self.path.stats(), "sleeps": 0}
            self._due_ns = now_ns + (QUIET_CYCLE_NS if self._seen == before else CYCLE_NS)

    def _cycle(self, now_ns: int) -> None:
        self._ready.cycle()
        self.reception.end_sessions(force=self._rereads)
        self._rereads = False
        self.path.give_back(now_ns)
        self.functions.cycle(now_ns, more_may_come=self._attach_at is not None)
        with self.path.between():
            self._on_cycle(now_ns)

    def _on_stop(self) -> None:
        os.eventfd_read(self._stop_event)
        self._stopped = True
        self.reception.is_closed = True

    # ---- the end

    def _finish(self) -> None:
        """What waits is served while there are workers for it, what runs may end; then errors."""
        self.detach()  # the next front end may listen there
        functions = self.functions
        end = time.monotonic() + FINISH_S
        while functions.go_on() and self._before(end):
            self._step(LAST_CYCLE_NS)
        functions.drain()
        end = time.monotonic() + RUN_S
        functions.give_up()
        while functions.is_running() and self._before(end):
            self._step(LAST_CYCLE_NS)
            functions.give_up()
        functions.dismiss()
        self._linger()

    def _linger(self) -> None:
        """Clients hear that nobody runs their requests, until they ask no more."""
        end, quiet = time.monotonic() + LINGER_S, 0
        while quiet < QUIET_STEPS and self._before(end):
            quiet = 0 if self.functions.give_up() else quiet + 1
            self._step(LAST_CYCLE_NS)

    def _before(self, end: float) -> bool:
        """Whether there is time left to finish."""
        return self._finishes and time.monotonic() < end
