"""Standard output of a worker, which the JVM reads line by line.

Log lines leave at once, as in TorchServe. Metric lines only feed counters and gauges, so they are
gathered and written in one go, at most twice ``INTERVAL`` seconds later, and in front of any log
line: the order of lines never changes. A thread does the late writing, since the main thread may by
then wait for a request or sit in a handler for seconds.

Where the server takes metrics out of replies (:attr:`LineWriter.for_replies`), those of a batch go
to it in the reply to the batch, so that they are counted before it is answered, and cost no write
and no reader. Log lines then leave without them, and the thread writes what no reply has taken.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from typing import TextIO

INTERVAL = 0.1

# With the JVM slow to read, writing blocks; the one who adds lines must feel that at some point.
MAX_PENDING = 10_000

METRIC_PREFIX = "[METRICS]"

# A reply must stay within max_response_size; what is longer goes the other way.
MAX_IN_REPLY = 64 * 1024


class LineWriter:
    """Writes lines to a stream, the urgent ones at once and the others together."""

    def __init__(self, stream: TextIO | None = None, interval: float = INTERVAL) -> None:
        """Write to ``stream``, by default to what ``sys.stdout`` is at each time."""
        self.stream = stream
        self._interval = interval
        self.for_replies = False
        """Pending lines wait for a reply that takes them."""
        self._pending: deque[str] = deque()
        self._taken = 0
        """Lines that have left ``_pending`` so far."""
        # Re-entrant, like those of logging: a finaliser may log while this thread writes.
        self._lock = threading.RLock()
        self._due = threading.Event()
        self._armed = False
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> str:
        # A handler may copy or pickle its context, metrics included.
        return "LINES"

    def add(self, line: str) -> None:
        """Write ``line`` within the interval."""
        self._pending.append(line)
        if not self._armed:
            self._arm()
        elif len(self._pending) > MAX_PENDING:
            self.flush()

    def write(self, line: str) -> None:
        """Write what is pending and then ``line``, now."""
        with self._lock:
            self._write_lines([line] if self.for_replies else [*self._take(), line])

    def flush(self) -> None:
        """Write what is pending, now. When nobody can read it any more, forget it."""
        with self._lock:
            self._write_lines(self._take())

    def for_reply(self) -> str:
        """What is pending, for a reply that takes it; nothing where replies take none."""
        if not self.for_replies or not self._pending:
            return ""
        with self._lock:
            lines = self._take()
            text = "\n".join(lines)
            if len(text) > MAX_IN_REPLY:
                self._write_lines(lines)
                return ""
        return text

    def _take(self, before: float = math.inf) -> list[str]:
        """Pending lines, the first so many of all that there ever were."""
        lines = []
        while self._pending and self._taken < before:
            lines.append(self._pending.popleft())
            self._taken += 1
        return lines

    def _write_lines(self, lines: list[str]) -> None:
        if lines:
            with contextlib.suppress(OSError, ValueError):
                _write(self.stream or sys.stdout, "\n".join([*lines, ""]))

    def _arm(self) -> None:
        self._armed = True
        if self._interval > 0 and self._has_thread():
            self._due.set()
        else:
            self.flush()
            self._armed = False

    def start(self) -> None:
        """Start the thread that writes late, now and not with the first line."""
        self._has_thread()

    def _has_thread(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="shunter-lines", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is about to end
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            # Disarm first: a line added from here on arms again, and is perhaps among these.
            self._armed = False
            with self._lock:
                due = self._taken + len(self._pending)
            time.sleep(self._interval)
            # Not those that came meanwhile: a reply may be about to take them.
            with self._lock:
                self._write_lines(self._take(due))

    def start_anew_in_child(self) -> None:
        """After a fork: the lines belong to the parent, and the thread stayed with it."""
        self._pending.clear()
        self._lock = threading.RLock()
        self._thread = None
        self._armed = False
        # Such children often end by os._exit, which runs no hook.
        self._interval = 0


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # One character that the locale does not have must not cost the lines around it.
        encoding = stream.encoding
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


LINES = LineWriter()
"""Of this process. A global, because what handlers hold of it must survive copy and pickle."""


atexit.register(LINES.flush)
os.register_at_fork(after_in_child=LINES.start_anew_in_child)


class LineHandler(logging.StreamHandler):
    """The root handler: log lines at once, metric lines together."""

    def __init__(self, lines: LineWriter) -> None:
        """Write through ``lines``, to what is standard output now."""
        super().__init__(sys.stdout)
        self._lines = lines
        # A handler that redirects its own prints must not catch metric lines with them.
        lines.stream = self.stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; errors are reported as logging reports them."""
        try:
            text = self.format(record)
            if text.startswith(METRIC_PREFIX):
                self._lines.add(text)
            else:
                self._lines.write(text)
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Write what is pending."""
        self._lines.flush()
