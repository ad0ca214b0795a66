"""A thread that works in turns, and gives way between two of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Turns:
    """Turn after turn in a thread of its own, but while another one is :meth:`between` two."""

    def __init__(self, turn: Callable[[], None], interrupt: Callable[[bool], None]) -> None:
        """``interrupt(True)`` lets ``turn`` return soon, whenever it is called, until it gets
        False."""
        self._work, self._tell = turn, interrupt
        self._turn = threading.Condition()
        self._user = 0
        """Identity of the thread whose turn it is, 0: nobody's."""
        self._wanting = 0
        """Threads that come before the next turn."""
        self._is_interrupted = self._ends = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        """Nothing goes on meanwhile; a thread may be in it more than once."""
        me = threading.get_ident()
        if self._user == me:  # only this thread could change that
            yield
            return
        with self._turn:
            self._wanting += 1
            while self._user:
                self._interrupt()
                self._turn.wait()
            self._wanting -= 1
            self._user = me
        try:
            yield
        finally:
            self._let_others()

    def begin(self) -> None:
        """Start the thread."""
        self._ends = False
        self._thread = threading.Thread(target=self._go_on, name="shunter-turns", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End it, after its turn."""
        with self._turn:
            self._ends = True
            self._interrupt()
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def check(self) -> None:
        """Raises what a turn raised, which was the last one."""
        if self._error is not None:
            raise self._error

    def _interrupt(self) -> None:
        """The turn ends soon, if it is one; with the lock."""
        if not self._is_interrupted:
            self._is_interrupted = True
            self._tell(True)

    def _let_others(self) -> None:
        with self._turn:
            self._user = 0
            self._turn.notify_all()

    def _begins(self) -> bool:
        """False: it is to end."""
        with self._turn:
            while not self._ends and (self._user or self._wanting):
                self._turn.wait()
            if self._ends:
                return False
            self._user = threading.get_ident()
            if self._is_interrupted:
                self._is_interrupted = False
                self._tell(False)
            return True

    def _go_on(self) -> None:
        try:
            while self._begins():
                try:
                    self._work()
                finally:
                    self._let_others()
        except BaseException as error:
            self._error = error
