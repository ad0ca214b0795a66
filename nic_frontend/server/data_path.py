"""The front end's data path, which is in C: see ``c/server/server.h``."""

from __future__ import annotations

import ctypes
import errno
import secrets
import time
from collections.abc import Callable
from ctypes import byref, c_uint8, c_uint32, c_uint64, c_void_p

from shunter.batching.page.records import NetworkTelemetry
from shunter.batching.page.slices import SliceSet
from shunter.batching.queue.landing import SPARE, LandingPool, blocks_for
from shunter.batching.queue.native import PEER_BYTES, QueueView, check, view_of
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.nic_frontend.library import require
from shunter.nic_frontend.server.model_policy import Defaults, Policy, Runs
from shunter.nic_frontend.server.sessions import Opening, struct_of
from shunter.nic_frontend.server.structures import (
    COUNTED,
    DROPS,
    GAUGES,
    HelloStruct,
    HoldLine,
    RunsStruct,
    SettingsStruct,
    StatsStruct,
    TelemetryStruct,
    declare,
    defaults_struct,
    policy_struct,
    slice_words,
    telemetry_of,
)

MOST_SESSIONS = 8192
"""At once, of each loop; one takes about 20 KB."""
HELLOS = 16
SPLIT = 512
"""Blocks of the landing pool for what the kernel or hardware splits; each has them for good."""
_STREAMS = 64


class DataPath:
    """Sessions, functions and workers of one loop of a front end."""

    def __init__(
        self,
        udp: int,
        doorbell: int,
        wake: int,
        landing: LandingPool,
        *,
        spin_us: int,
        strangers: int = -1,
        sets: int | None = None,
    ) -> None:
        """Descriptors of the socket, the doorbell and of what else run() returns for.

        ``strangers``: of the socket by which hellos come, if it is another one. ``landing`` must
        stay mapped. ``sets``: address of those that its workers may be in. Raises LibraryError.
        """
        found = require()
        self._library = found
        declare(found)
        self._handle = c_void_p()
        settings = SettingsStruct(
            *(udp, strangers, doorbell, wake, spin_us * 1000),
            *(landing.mapping.address, landing.most),
            sets=sets,
        )
        settings.cookie_secret = (c_uint8 * 16)(*secrets.token_bytes(16))
        check(found.shunter_server_new(byref(settings), byref(self._handle)), "the data path")
        self._core = found.shunter_server_core(self._handle)
        self._hellos = (HelloStruct * HELLOS)()
        self._queues: dict[int, tuple[QueueView, int]] = {}
        self._landing = landing
        self._grow(SPARE)
        self._line: ctypes.Array[c_uint64] | None = None

    def limit(self, sessions: int, streams: int) -> None:
        """Have no more sessions at once, and no more streams."""
        self._library.shunter_core_limit(self._core, sessions, streams)

    def close(self) -> None:
        """Free everything; streams are closed."""
        handle, self._handle = self._handle, c_void_p()  # a second time there is nothing to free
        if handle:
            self._library.shunter_server_free(handle)

    def why_no_encryption(self) -> str:
        """Empty when it can encrypt."""
        found = self._library
        there = found.shunter_aead_is_there() and found.shunter_x25519_is_there()
        return "" if there else "libcrypto of OpenSSL 3 or 1.1 was not found"

    def run(self, until_ns: int) -> list[tuple[bytes, int, int, bytes]]:
        """Serve until then, or until something is up; the hellos with good cookies.

        Of each its peer, its origin, the time since its cookie was sent, and the message.
        """
        count = self._library.shunter_server_run(self._handle, until_ns, self._hellos, HELLOS)
        check(count, "the data path")
        return [
            (bytes(hello.peer), hello.origin, hello.trip_ns, bytes(hello.message))
            for hello in self._hellos[:count]
        ]

    def interrupt(self, wanted: bool) -> None:
        """Let :meth:`run` return, until it is not wanted any more; from any thread."""
        self._library.shunter_server_interrupt(self._handle, wanted)

    def _grow(self, blocks: int) -> None:
        """Have so many blocks more for payloads. Raises OSError when there is no memory."""
        self._library.shunter_server_grow_landing(self._handle, self._landing.grow(blocks))

    def give_back(self, now_ns: int) -> None:
        """Let the host have blocks that functions needed which are gone."""
        shrink = self._library.shunter_server_shrink_landing
        self._landing.give_back(now_ns, lambda blocks: int(shrink(self._handle, blocks)))

    def split(self, interface: str) -> tuple[bool, str]:
        """Let the kernel split what comes in there; whether it can, and how, or why not.

        Raises OSError when there is no memory.
        """
        return self._add(self._library.shunter_server_split, interface)

    def serve_verbs(self, device: str) -> tuple[bool, str]:
        """Also serve the queue pair of an RDMA device; the same."""
        return self._add(self._library.shunter_server_verbs, device)

    def _add(self, function: Callable[..., int], name: str) -> tuple[bool, str]:
        said = ctypes.create_string_buffer(256)
        self._grow(SPLIT)
        result = function(self._handle, name.encode(), SPLIT, said, len(said))
        if result != -errno.ENOTSUP:
            check(result, name)
        return result == 0, said.value.decode()

    def datagrams(self) -> tuple[int, bool]:
        """The largest that can come in, and whether the processor can look at what it carries."""
        far = self._library.shunter_server_payloads_are_far(self._handle)
        return int(self._library.shunter_server_mtu(self._handle)), not far

    def add_function(self, func_id: int, queue: TensorQueue, policy: Policy, burst: int) -> None:
        """Serve a function; the queue must stay mapped until it is removed."""
        view = view_of(queue, func_id)
        blocks = blocks_for(queue.entries, sum(spec.bytes for spec in queue.inputs))
        self._grow(blocks)
        result = self._library.shunter_server_add_function(
            self._handle, byref(view), byref(policy_struct(policy)), burst
        )
        if result:
            self._landing.need_less(blocks)
        check(result, f"function {func_id}")
        self._queues[func_id] = view, blocks

    def set_policy(self, func_id: int, policy: Policy) -> None:
        """Other numbers from now on."""
        self._library.shunter_server_set_policy(self._handle, func_id, byref(policy_struct(policy)))

    def set_runs(self, func_id: int, runs: Runs) -> None:
        """The function is packed; only ``rows`` may become others while it has sessions."""
        found = byref(RunsStruct(*runs))
        check(self._library.shunter_server_set_runs(self._handle, func_id, found), "runs")

    def set_defaults(self, func_id: int, defaults: Defaults) -> None:
        """What its requests take from their model from now on."""
        found = byref(defaults_struct(defaults))
        check(self._library.shunter_core_set_defaults(self._core, func_id, found), "defaults")

    def set_hold(self, func_id: int, slot: int, slices: SliceSet) -> None:
        """Where its strict requests run from now on: see :class:`holding.Hold`."""
        where = func_id, slot, slice_words(slices), time.monotonic_ns()
        check(self._library.shunter_core_set_hold(self._core, *where), f"function {func_id}")

    def hold_at(self, line: memoryview | None) -> None:
        """Say on this holder's line of the control page what strict requests hold.

        None: nowhere; the line before is lowered and let go of.
        """
        held = None if line is None else HoldLine.from_buffer(line)
        address = held and byref(held)
        self._library.shunter_core_hold_at(self._core, address, time.monotonic_ns())
        self._line = held  # it must stay mapped

    def remove_function(self, func_id: int) -> None:
        """Raises OSError (EBUSY) while it has sessions or batches."""
        check(self._library.shunter_server_remove_function(self._handle, func_id), "a function")
        _, blocks = self._queues.pop(func_id)
        self._landing.need_less(blocks)

    def add_worker(
        self, func_id: int, worker: int, cap: int, doorbell: int, pool: int, yields: bool
    ) -> None:
        """It gets batches of at most ``cap`` from now on; ``pool``, ``yields``: as it attached."""
        which = func_id, worker, cap, doorbell, pool, yields
        check(self._library.shunter_server_add_worker(self._handle, *which), f"worker {worker}")

    def drain_worker(self, func_id: int, worker: int) -> None:
        """It gets no more batches."""
        check(self._library.shunter_server_drain_worker(self._handle, func_id, worker), "a worker")

    def is_idle(self, func_id: int, worker: int) -> bool:
        """Whether it has answered everything."""
        return bool(self._library.shunter_server_idle(self._handle, func_id, worker))

    def busy_ns(self, func_id: int, worker: int, now_ns: int) -> int:
        """For how long the oldest batch that it holds has run; 0: it holds none."""
        return int(self._library.shunter_server_busy_ns(self._handle, func_id, worker, now_ns))

    def give_up(self, func_id: int, status: int) -> int:
        """Answer what waits for a worker: it has not run. Returns the number of requests."""
        return int(self._library.shunter_server_give_up(self._handle, func_id, status))

    def remove_worker(self, func_id: int, worker: int) -> None:
        """It is gone, whether it has finished or not."""
        check(self._library.shunter_server_remove_worker(self._handle, func_id, worker), "a worker")

    def add_session(self, session: Opening, now_ns: int) -> int:
        """Open a session; returns its first grant.

        Raises OSError: EEXIST, E2BIG for its segments, ENOSPC when there are too many sessions.
        """
        opening = byref(struct_of(session))
        check(self._library.shunter_core_add_session(self._core, opening, now_ns), "a session")
        return int(self._library.shunter_core_grant(self._core, session.id))

    def remove_session(self, session_id: int, now_ns: int) -> None:
        """Forget it; nothing when it is not there."""
        self._library.shunter_core_remove_session(self._core, session_id, now_ns)

    def remove_key(self, key: int, now_ns: int) -> int:
        """Forget the sessions that were opened with it; how many."""
        return int(self._library.shunter_core_remove_key(self._core, key, now_ns))

    def has_session(self, session_id: int) -> bool:
        """Whether it is open."""
        return bool(self._library.shunter_core_is_open(self._core, session_id))

    def keeps_session(self, session_id: int) -> bool:
        """Whether it is open, or something still runs for it."""
        return bool(self._library.shunter_core_has(self._core, session_id))

    def reply(self, peer: bytes, datagram: bytes) -> None:
        """Send the answer to a hello; what does not leave is asked for again."""
        self._library.shunter_server_reply(self._handle, peer, datagram, len(datagram))

    def add_stream(self, descriptor: int, session_id: int) -> None:
        """Serve a stream, whose descriptor is taken."""
        result = self._library.shunter_server_add_stream(self._handle, descriptor, session_id)
        check(result, "a stream")

    def stream_peer(self, descriptor: int) -> bytes:
        """What stands for the address of a stream."""
        peer = (c_uint8 * PEER_BYTES)()
        self._library.shunter_stream_peer(descriptor, peer)
        return bytes(peer)

    def closed_streams(self) -> list[int]:
        """Sessions of streams that have ended since."""
        sessions = (c_uint32 * _STREAMS)()
        count = self._library.shunter_server_closed_streams(self._handle, sessions, _STREAMS)
        return list(sessions[:count])

    def stats(self) -> dict[str, int]:
        """All counters, what was dropped as ``drop_REASON``, and gauges."""
        stats = StatsStruct()
        self._library.shunter_server_stats(self._handle, byref(stats))
        found = {name: int(getattr(stats, name)) for name in (*COUNTED, *GAUGES)}
        return found | {f"drop_{r}": int(n) for r, n in zip(DROPS, stats.drops, strict=True)}

    def load(self, func_id: int) -> tuple[int, int]:
        """Open sessions, and requests that they may have on their way together."""
        sessions, credit = c_uint32(), c_uint64()
        self._library.shunter_core_load(self._core, func_id, byref(sessions), byref(credit))
        return sessions.value, credit.value

    def waiting(self, func_id: int) -> int:
        """Requests that wait for a worker."""
        return int(self._library.shunter_server_waiting(self._handle, func_id))

    def telemetry(self, func_id: int) -> NetworkTelemetry:
        """What became of its requests; nothing is said of the last minute."""
        counted = TelemetryStruct()
        found = self._library.shunter_server_telemetry(self._handle, func_id, byref(counted))
        check(found, "telemetry")
        return telemetry_of(counted)

    def sessions(self) -> int:
        """Sessions that there are."""
        return int(self._library.shunter_core_sessions(self._core))

    def free_entries(self, func_id: int) -> int:
        """Entries that nobody uses."""
        return int(self._library.shunter_core_free_entries(self._core, func_id))
