"""The front end's loops: data paths side by side, each of them one thread's.

A function belongs to one loop, with its workers and sessions; loops share nothing but the port. The
first one is run by the thread that does what is rare. Another has a thread of its own, which
gives way between two turns to whoever has something to do there.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from shunter.batching.queue.landing import LandingPool
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.nic_frontend.library import require
from shunter.nic_frontend.server.data_path import MOST_SESSIONS, DataPath
from shunter.nic_frontend.server.listeners import loop_of
from shunter.nic_frontend.server.model_policy import Policy
from shunter.nic_frontend.server.sessions import Opening
from shunter.nic_frontend.server.structures import declare
from shunter.nic_frontend.turns import Turns

TURN_NS = 200_000_000
MOST_DESCRIPTORS = 4096
"""A data path takes streams whose descriptors are less."""
OTHER_DESCRIPTORS = 512
"""So many are kept for what is no session: workers, queues, clients that say hello."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


class WorkerSets:
    """Sets of workers behind which there is one process, of all loops together: as many batches at
    once as ``batching/c/sets/sets.h`` says, whichever functions they are of."""

    def __init__(self) -> None:
        """Raises LibraryError."""
        self._library = require()
        declare(self._library)
        self.address = self._library.shunter_sets_new()

    def close(self) -> None:
        """When no data path uses them any more."""
        self._library.shunter_sets_free(self.address)


class Shared(NamedTuple):
    """What a loop has that its workers use, too."""

    udp: int
    """Descriptor of its socket, by which they answer."""
    doorbell: int
    """That they ring."""
    landing: LandingPool


class Loop:
    """A data path, and the thread that runs it."""

    def __init__(self, path: DataPath, shared: Shared, *, is_main: bool) -> None:
        """``is_main``: run by the thread that also does all else, so that nobody is in the way;
        otherwise its wake descriptor must be an eventfd of its own."""
        self.path, self.shared = path, shared
        self.functions = 0
        """That it has."""
        self.turns = None if is_main else Turns(self._turn, path.interrupt)

    def _turn(self) -> None:
        self.path.run(time.monotonic_ns() + TURN_NS)  # no hello is steered to it
        for session in self.path.closed_streams():
            self.path.remove_session(session, time.monotonic_ns())

    @contextlib.contextmanager
    def between(self) -> Iterator[DataPath]:
        """Nobody else uses the data path meanwhile."""
        with self.turns.between() if self.turns else contextlib.nullcontext():
            yield self.path


def _of_function(
    method: Callable[Concatenate[DataPath, int, _P], _R],
) -> Callable[Concatenate[Loops, int, _P], _R]:
    """The method of the data path that has the function."""

    @functools.wraps(method)
    def call(self: Loops, func_id: int, *args: _P.args, **more: _P.kwargs) -> _R:
        with self.of_function(func_id).between() as path:
            return method(path, func_id, *args, **more)

    return call


def _of_session(
    method: Callable[Concatenate[DataPath, int, _P], _R],
) -> Callable[Concatenate[Loops, int, _P], _R]:
    """The method of the data path that has the session, if any has."""

    @functools.wraps(method)
    def call(self: Loops, session_id: int, *args: _P.args, **more: _P.kwargs) -> _R:
        with self.of_session(session_id).between() as path:
            return method(path, session_id, *args, **more)

    return call


class Loops:
    """All loops of a front end, as if they were one data path."""

    def __init__(self, loops: Sequence[Loop]) -> None:
        """The first one is that of the caller's thread; it gets the hellos, and answers them."""
        self._loops = list(loops)
        self._main = loops[0].path
        self._turns = [loop.turns for loop in loops if loop.turns]
        self._of: dict[int, Loop] = {}
        """By functions."""
        main = self._main
        self.why_no_encryption, self.datagrams = main.why_no_encryption, main.datagrams
        self.split, self.serve_verbs = main.split, main.serve_verbs
        self.reply, self.stream_peer = main.reply, main.stream_peer
        self.closed_streams = main.closed_streams

    def __len__(self) -> int:
        return len(self._loops)

    def of_function(self, func_id: int) -> Loop:
        """The one that has it."""
        return self._of[func_id]

    def of_session(self, session_id: int) -> Loop:
        """The one to which its datagrams are steered."""
        return self._loops[loop_of(session_id, len(self))]

    def new_session_id(self, func_id: int) -> int:
        """A random number that steers to the loop of the function."""
        while True:
            number = secrets.randbelow((1 << 32) - 1) + 1
            if self.of_session(number) is self._of[func_id]:
                return number

    # ---- threads

    def begin(self) -> None:
        """Start those of the other loops."""
        for turns in self._turns:
            turns.begin()

    def end(self) -> None:
        """End them."""
        for turns in self._turns:
            turns.end()

    def close(self) -> None:
        """Free everything; streams are closed."""
        self.end()
        for loop in self._loops:
            loop.path.close()

    def run(self, until_ns: int) -> list[tuple[bytes, int, int, bytes]]:
        """The first one's turn. Raises OSError, also when another one has failed."""
        for turns in self._turns:
            turns.check()
        return self._main.run(until_ns)

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        """All stand still: for many short calls one after the other."""
        with contextlib.ExitStack() as stack:
            for loop in self._loops:
                stack.enter_context(loop.between())
            yield

    # ---- functions, workers, sessions

    def add_function(self, func_id: int, queue: TensorQueue, policy: Policy, burst: int) -> None:
        """Serve a function by the loop that has the fewest.

        The first one also does what is rare, so it comes last.
        """
        loop = min(reversed(self._loops), key=lambda each: each.functions)
        with loop.between() as path:
            path.add_function(func_id, queue, policy, burst)
        loop.functions += 1
        self._of[func_id] = loop

    def remove_function(self, func_id: int) -> None:
        """Raises OSError (EBUSY) while it has sessions or batches."""
        loop = self._of[func_id]
        with loop.between() as path:
            path.remove_function(func_id)
        loop.functions -= 1
        del self._of[func_id]

    set_policy = _of_function(DataPath.set_policy)
    set_runs = _of_function(DataPath.set_runs)
    set_defaults = _of_function(DataPath.set_defaults)
    set_hold = _of_function(DataPath.set_hold)
    add_worker = _of_function(DataPath.add_worker)
    drain_worker = _of_function(DataPath.drain_worker)
    remove_worker = _of_function(DataPath.remove_worker)
    is_idle = _of_function(DataPath.is_idle)
    busy_ns = _of_function(DataPath.busy_ns)
    give_up = _of_function(DataPath.give_up)
    load = _of_function(DataPath.load)
    waiting = _of_function(DataPath.waiting)
    telemetry = _of_function(DataPath.telemetry)
    free_entries = _of_function(DataPath.free_entries)
    remove_session = _of_session(DataPath.remove_session)
    has_session = _of_session(DataPath.has_session)
    keeps_session = _of_session(DataPath.keeps_session)

    def add_session(self, session: Opening, now_ns: int) -> int:
        """Open a session; its first grant. Raises OSError as a data path does."""
        with self.of_session(session.id).between() as path:
            return path.add_session(session, now_ns)

    def add_stream(self, descriptor: int, session_id: int) -> None:
        """Serve a stream, whose descriptor is taken. Raises OSError."""
        with self.of_session(session_id).between() as path:
            path.add_stream(descriptor, session_id)

    # ---- all of them

    def _each(self) -> Iterator[DataPath]:
        for loop in self._loops:
            with loop.between() as path:
                yield path

    def limit(self, sessions: int = MOST_SESSIONS, streams: int = 0) -> None:
        """Have no more sessions of one loop at once, and no more streams of all; 0: what
        descriptors allow."""
        if not streams:
            descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            streams = min(descriptors, MOST_DESCRIPTORS) - OTHER_DESCRIPTORS
        for path in self._each():
            path.limit(sessions, max(1, streams // len(self)))

    def hold_at(self, lines: Sequence[memoryview]) -> None:
        """Each holds on a line of its own; no lines: nowhere."""
        for path, line in zip(self._each(), lines or [None] * len(self), strict=True):
            path.hold_at(line)

    def give_back(self, now_ns: int) -> None:
        """Let the host have blocks that functions needed which are gone."""
        for path in self._each():
            path.give_back(now_ns)

    def remove_key(self, key: int, now_ns: int) -> int:
        """Forget the sessions that were opened with it; how many."""
        return sum(path.remove_key(key, now_ns) for path in self._each())

    def sessions(self) -> int:
        """Sessions that there are."""
        return sum(path.sessions() for path in self._each())

    def landing_wanted(self) -> int:
        """Blocks that payloads would need."""
        return sum(loop.shared.landing.wanted for loop in self._loops)

    def stats(self) -> dict[str, int]:
        """All counters, and gauges: sums."""
        found = [path.stats() for path in self._each()]
        return {name: sum(each[name] for each in found) for name in found[0]}
