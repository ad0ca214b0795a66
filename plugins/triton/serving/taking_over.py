"""Models whose workers another host started: this one's replace them, again until they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from shunter.allocator.planning.configuration import (
    Configuration,
    ConfigurationError,
    parse_configuration,
)
from shunter.plugins.errors import UserError
from shunter.plugins.triton.served import Served

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Before workers that did not come are started again; doubled each time."""


@dataclass
class _Attempt:
    due: float
    pause_s: float = FIRST_PAUSE_S
    running: Future[None] | None = None


class TakingOver:
    """Starts such workers. What cannot be replaced yet serves on, if it does."""

    def __init__(self, change: Callable[[Served, Configuration, Sequence[str]], None]) -> None:
        """``change``: how workers of a configuration come. Raises UserError: they did not."""
        self._change = change
        self._attempts: dict[Served, _Attempt] = {}
        self._pool = ThreadPoolExecutor(1, "taking-over")

    def replace(self, served: Served) -> None:
        """Start workers as the other host had them, unless it is done, or had none."""
        with served.lock:
            record = served.recorded
            if record is None or not record.configuration:
                return
            try:
                self._change(served, parse_configuration(record.configuration), record.cores)
            except (UserError, ConfigurationError) as error:
                served.problem = str(error)

    def look_after(self, all_served: Iterable[Served]) -> None:
        """Try again what has not come, later each time."""
        now = time.monotonic()
        waiting = [each for each in all_served if each.recorded and each.recorded.configuration]
        self._attempts = {
            each: self._attempts.get(each, _Attempt(now + FIRST_PAUSE_S)) for each in waiting
        }
        for served, attempt in self._attempts.items():
            if attempt.running is not None and attempt.running.done():
                attempt.running = None
                attempt.pause_s = min(2 * attempt.pause_s, LONGEST_PAUSE_S)
                attempt.due = now + attempt.pause_s
            elif attempt.running is None and now >= attempt.due:
                attempt.running = self._pool.submit(self.replace, served)

    def close(self) -> None:
        """No more; who waits for workers has been told that there will be none."""
        self._pool.shutdown(cancel_futures=True)
