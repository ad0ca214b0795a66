"""Threads that models begin with a batch: seen when that ends, by what is there then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OwnThreads:
    """Of all models of a process."""

    def __init__(self) -> None:
        """None yet."""
        self._others: set[threading.Thread] = set()
        """Those that are not of the batch which is watched."""
        self.found: dict[str, str] = {}
        """Names of threads, by the name of the model whose batch has begun them."""

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """A batch of this model runs inside."""
        before = set(threading.enumerate())
        try:
            yield
        finally:
            now = set(threading.enumerate())
            own = [each for each in now - before - self._others if each.is_alive()]
            if own:
                self.found[name] = ", ".join(sorted(each.name for each in own))
            self._others = (self._others | set(own)) & now

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What begins inside is not of the batch in whose midst this is."""
        before = set(threading.enumerate())
        try:
            yield
        finally:
            self._others |= set(threading.enumerate()) - before
