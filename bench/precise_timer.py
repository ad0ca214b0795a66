"""Calling back at given times, more precisely than an event loop's own timers do."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Sequence


class PreciseTimer:
    """Calls back at given times, to some ten microseconds.

    The timers of event loops have steps of 1 ms, so that a request due now would wait half of one
    on average; Linux's timer descriptors have no such steps.
    """

    _MONOTONIC, _ABSOLUTE, _NONBLOCK = 1, 1, 0o4000

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Call ``call`` in ``loop`` at each time set."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(self._MONOTONIC, self._NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop, self._call = loop, call
        self._value = (ctypes.c_long * 4)()  # interval s, ns; next s, ns
        loop.add_reader(self._fd, self._fire)

    def set(self, when: float) -> None:
        """Call back once at ``when``; a time that has passed means at once."""
        nanoseconds = max(1, int(when * 1e9))
        self._value[2], self._value[3] = divmod(nanoseconds, 1_000_000_000)
        self._libc.timerfd_settime(self._fd, self._ABSOLUTE, self._value, None)

    def _fire(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew meanwhile
            return
        self._call()

    def close(self) -> None:
        """Stop."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


async def send_all(times: Sequence[float], send: Callable[[int], None]) -> None:
    """Call ``send(i)`` when ``times[i]`` has come; sorted, monotonic seconds."""
    loop = asyncio.get_running_loop()
    over, position, total = loop.create_future(), 0, len(times)

    def tick() -> None:
        nonlocal position
        try:
            now = time.monotonic()
            while position < total and times[position] <= now:
                send(position)
                position += 1
        except Exception as error:
            if not over.done():
                over.set_exception(error)
            return
        if position < total:
            timer.set(times[position])
        elif not over.done():
            over.set_result(None)

    timer = PreciseTimer(loop, tick)
    try:
        tick()
        await over
    finally:
        timer.close()
