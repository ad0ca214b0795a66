"""The word that gates on a device wait for, and who stores it.

Gates do not read the hold words of the control page themselves. What a gate waits for cannot be
changed once it is on the device, and a hold word has one writer: where that is dead, hangs, or
makes no progress, where only work is held beside which this may run, or where a batch has stood
still for too long, no other process could open the gate. So a process that owns a device has a
word of its own. A thread, the watcher, stores there what all holders together want by the rules
that hold everywhere, and opens it when it ends in whatever way. What runs strict work in the same
process stores it directly, and nobody is waited for.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shunter.handlers.device.driver import Driver

logger = logging.getLogger("shunter.device_flags")
LONGEST_PARK_NS = 1_000_000_000
"""A batch that stood still for longer goes on."""
PAUSE_S = 0.00005
"""Between two looks of a watcher: short against a segment, and little of a processor."""
_COUNTER_AT = 128
"""Bytes from the word to the counter, which has another writer."""


class FlagWord:
    """The word, and a counter that the device writes, in memory that both see.

    0 opens the gates. Give it back with :meth:`close` before the driver's memory is.
    """

    def __init__(self, driver: Driver | None) -> None:
        """Without a driver only the host sees it: for rungs that have no gates.

        Raises DeviceError if the device cannot read the host's memory.
        """
        self._driver = driver
        self._map = mmap.mmap(-1, mmap.PAGESIZE)  # shared, and a page of its own
        self._word = ctypes.c_uint32.from_buffer(self._map)
        self._counter = ctypes.c_uint32.from_buffer(self._map, _COUNTER_AT)
        self._lock = threading.Lock()
        self._watched = self._waived = False
        self.strict_count = 0
        """Pieces of strict work of this process that wait or run."""
        self.address = self.counter_address = 0
        """Where the device finds the word, and the counter."""
        if driver is not None:
            self._register(driver)

    def _register(self, driver: Driver) -> None:
        self._host = ctypes.addressof(self._word)
        cuda = driver.module
        kind = int(cuda.CU_MEMHOSTREGISTER_PORTABLE) | int(cuda.CU_MEMHOSTREGISTER_DEVICEMAP)
        driver.call("cuMemHostRegister", self._host, mmap.PAGESIZE, kind)
        self.address = int(driver.call("cuMemHostGetDevicePointer", self._host, 0))
        self.counter_address = self.address + _COUNTER_AT

    @property
    def raised(self) -> bool:
        """Whether gates are closed."""
        return self._word.value != 0

    @property
    def counter(self) -> int:
        """What a stream wrote last, see :func:`shunter.handlers.device.graphs.note`."""
        return self._counter.value

    def follow(self, held: bool, waived: bool) -> None:
        """What holders want; ``waived``: the gates are open whatever anybody wants."""
        with self._lock:
            self._watched, self._waived = held, waived
            self._store()

    @contextmanager
    def strict(self) -> Iterator[None]:
        """Gates are closed while strict work of this process waits or runs, however much of it."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            self.strict_count += more
            self._store()

    def _store(self) -> None:
        self._word.value = not self._waived and (self._watched or self.strict_count > 0)

    def close(self) -> None:
        """Give the memory back; no stream may wait any more."""
        if self._driver is not None:
            self._driver.call("cuMemHostUnregister", self._host)
        del self._word, self._counter
        self._map.close()


class AgeingBound:
    """The ageing bound: a batch that stood still for too long goes on to its end.

    For one batch at a time; the caller asks again and again while it runs.
    """

    def __init__(self, longest_ns: int = LONGEST_PARK_NS) -> None:
        """``longest_ns``: sum of the times that one batch may stand still."""
        self._longest = longest_ns
        self.begin()

    def begin(self) -> None:
        """The next batch begins."""
        self.parks = 0
        self.parked_ns = 0
        self._since: int | None = None

    @property
    def spent(self) -> bool:
        """Whether the batch goes on whoever holds."""
        return self.parked_ns >= self._longest

    def stand(self, held: bool, now_ns: int) -> bool:
        """Whether to stand still, now that it is held or not."""
        if self._since is not None:
            self.parked_ns += max(0, now_ns - self._since)
            self._since = now_ns
        stand = held and not self.spent
        if stand and self._since is None:
            self.parks += 1
        self._since = now_ns if stand else None
        return stand


class Watcher:
    """The thread that stores in the word what holders want while best-effort work runs.

    Use as a context manager. When it fails the gates are open for good, and best-effort work is
    no longer held by others; the next batch raises what happened.
    """

    def __init__(
        self,
        flag: FlagWord,
        held: Callable[[], bool],
        *,
        longest_park_ns: int = LONGEST_PARK_NS,
        pause_s: Callable[[], float] = lambda: PAUSE_S,
    ) -> None:
        """``held``: whether to stand still, by the hold words. ``pause_s``: how long until the
        next look; with 0, for measurements, the thread takes one processor meanwhile.
        """
        self._flag, self._held, self._pause_s = flag, held, pause_s
        self._ageing = AgeingBound(longest_park_ns)
        self._turn = threading.Lock()
        self._work = threading.Semaphore(0)
        self._finished = threading.Event()
        self._over = threading.Event()
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="shunter-watcher", daemon=True)

    @contextmanager
    def batch(self) -> Iterator[AgeingBound]:
        """A batch runs: the word follows the holders until it ends. Raises what ended the watch.

        What is yielded has the batch's counts when it is over.
        """
        with self._turn:
            self._ageing.begin()
            self._finished.clear()
            if self._ended:
                raise RuntimeError("nobody watches the hold words any more") from self._failure
            self._look()  # what is held already holds its first segment
            self._over.clear()
            self._work.release()
            try:
                yield self._ageing
            finally:
                self._over.set()
                self._finished.wait()

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._over.set()
        self._work.release()
        self._thread.join()

    def _main(self) -> None:
        try:
            while True:
                self._work.acquire()
                if self._ended:
                    return
                self._follow()
                self._finished.set()
        except BaseException as error:
            self._failure, self._ended = error, True
            logger.exception("Best effort stands still for nobody else any more")
        finally:
            self._flag.follow(False, True)  # for good
            self._finished.set()

    def _follow(self) -> None:
        """Until the batch ends."""
        try:
            while not self._over.is_set():
                self._look()
                pause_s = self._pause_s()
                if pause_s:
                    self._over.wait(pause_s)
                else:
                    time.sleep(0)  # other threads of Python go on
        finally:
            self._flag.follow(False, False)

    def _look(self) -> None:
        held = self._held()
        holds = held or self._flag.strict_count > 0
        self._ageing.stand(holds, time.monotonic_ns())
        self._flag.follow(held, self._ageing.spent)
