"""Strict batches that run in the midst of a best-effort one, where that can stand still.

The batch looks at its gate at every boundary. There, what has come meanwhile is heard, and strict
batches that wait run at once, one after the other; then the batch goes on as if nothing had been.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from shunter.allocator.memory.scheduling import Waiting


class Passing:
    """What the gates of a process ask; for the one thread that runs batches."""

    def __init__(
        self,
        listen: Callable[[], None],
        waiting: Callable[[], Sequence[Waiting]],
        run: Callable[[Sequence[Waiting]], None],
    ) -> None:
        """``listen``: hear, without waiting, what has come; ``waiting``: strict models with a batch
        that waits; ``run``: let the next one of these run."""
        self._listen, self._waiting, self._run = listen, waiting, run
        self._thread = threading.get_ident()
        self._outside: contextvars.Context | None = None
        """As it was when the batch began in which others may run now; None: there is none."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, a batch runs that may stand still. To load or to be tried out is none."""
        self._outside = contextvars.copy_context()
        try:
            yield
        finally:
            self._outside = None

    def may_stand(self) -> bool:
        """Whether the batch that runs may stand still here."""
        return self._outside is not None and threading.get_ident() == self._thread

    def are_there(self) -> bool:
        """Whether any waits."""
        self._listen()
        return bool(self._waiting())

    def run_one(self) -> bool:
        """Let the next one run, if there is one; whether there was."""
        waiting, outside = self._waiting(), self._outside
        if not waiting or outside is None:
            return False
        self._outside = None  # nobody stands still in it
        try:
            outside.run(self._run, waiting)
        finally:
            self._outside = outside
        return True
