"""Stock TorchServe as a cache, by hand: a model is registered when it is asked for.

What a user of the stock server can do who has more models than memory: when a request comes for a
model that is not there, the one that was asked for longest ago is unregistered, and this one
registered. Requests for models that are there go on meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pool.models import Packed

Act = Callable[[Packed], None]


class OnDemand:
    """At most ``room`` models at a time, least recently used ones leave first."""

    def __init__(self, register: Act, unregister: Act, room: int) -> None:
        """None is there yet."""
        self._register, self._unregister, self._room = register, unregister, room
        self._there: OrderedDict[str, Packed] = OrderedDict()
        """Registered or about to be, the least recently used first."""
        self._asking: dict[str, int] = {}
        """Requests that go on, by model."""
        self._coming: set[str] = set()
        self._changed = threading.Condition()
        self.registrations = 0

    @contextmanager
    def holding(self, model: Packed) -> Iterator[None]:
        """The model is there, and stays as long as this lasts."""
        self._enter(model)
        try:
            yield
        finally:
            with self._changed:
                self._asking[model.name] -= 1
                self._changed.notify_all()

    def _enter(self, model: Packed) -> None:
        with self._changed:
            while True:
                if model.name in self._there:
                    if model.name not in self._coming:
                        self._there.move_to_end(model.name)
                        self._asking[model.name] = self._asking.get(model.name, 0) + 1
                        return
                elif len(self._there) < self._room:
                    leaving = None
                    break
                elif (leaving := self._idle()) is not None:
                    del self._there[leaving.name]
                    break
                self._changed.wait()
            self._there[model.name] = model
            self._coming.add(model.name)
            self._asking[model.name] = 1
            self.registrations += 1
        self._bring(model, leaving)

    def _idle(self) -> Packed | None:
        """The least recently used one that nobody asks now."""
        for name, each in self._there.items():
            if not self._asking.get(name) and name not in self._coming:
                return each
        return None

    def _bring(self, model: Packed, leaving: Packed | None) -> None:
        try:
            if leaving is not None:
                self._unregister(leaving)
            self._register(model)
        except BaseException:
            with self._changed:
                del self._there[model.name]
                self._asking[model.name] = 0
                raise
        finally:
            with self._changed:
                self._coming.discard(model.name)
                self._changed.notify_all()
