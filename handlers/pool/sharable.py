"""Whether a model can have its process together with others: seen by what it does, not by its text.

What a model sets is kept apart (:mod:`shunter.handlers.pool.space`). What goes on when its
code does not run, or is of the process as a whole, cannot be: threads, other processes, handlers of
signals, functions of shared packages that are replaced, a device of its own, machine code.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil
import torch

from shunter.handlers.pool.space import ModelSpace

Service = TypeVar("Service")
SHARED_PACKAGES = (
    *("builtins", "os", "sys", "json", "random", "logging", "warnings", "threading", "pickle"),
    *("numpy", "torch", "torch.nn", "torch.nn.functional", "torch.Tensor", "torch.nn.Module"),
)
"""Of which no function may be replaced: modules, and classes in them."""
_KEPT_APART = {("torch", "Storage")}
"""Torch replaces it with the default dtype."""
_TORCH = Path(torch.__file__).parent


class NotSharable(Exception):
    """A model needs a process of its own; the message says why."""


class Graphs:
    """How many CUDA graphs this process has captured. They know where weights lie."""

    def __init__(self) -> None:
        self.captured = 0
        self._first: Callable[[], None] | None = None
        begin = torch.cuda.CUDAGraph.capture_begin

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.captured += 1
            if self._first is not None:
                self._first()
            return begin(graph, *args, **kwargs)

        torch.cuda.CUDAGraph.capture_begin = capture_begin  # type: ignore[method-assign]

    @contextmanager
    def after(self, first: Callable[[], None]) -> Iterator[None]:
        """Inside, ``first`` runs before a capture begins: none may wait for other work."""
        before, self._first = self._first, first
        try:
            yield
        finally:
            self._first = before


GRAPHS = Graphs()


class _Process:
    """What of a process cannot be kept apart, at a moment."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.children = {each.pid for each in psutil.Process().children(recursive=True)}
        self.signals = {each: signal.getsignal(each) for each in signal.valid_signals()}
        self.functions = {
            (name, key): value
            for name in SHARED_PACKAGES
            for key, value in _members(_named(name)).items()
            if callable(value) and (name, key) not in _KEPT_APART
        }
        self.device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self.graphs = GRAPHS.captured

    def restore(self) -> None:
        """Undo what can be undone, for the models that stay: signals, and what was replaced."""
        for each, handler in self.signals.items():
            if handler is not None and signal.getsignal(each) is not handler:
                signal.signal(each, handler)
        for (name, key), value in self.functions.items():
            if _members(owner := _named(name)).get(key) is not value:
                setattr(owner, key, value)


def _named(name: str) -> Any:
    package, _, inner = name.rpartition(".")
    found = sys.modules.get(name)
    if found is None and package in sys.modules:
        found = getattr(sys.modules[package], inner, None)
    return found if found is not None else type("absent", (), {})


def _members(owner: Any) -> dict[str, Any]:
    """Of a module; of a class also what it inherits, for a new one of that name would hide it."""
    if not isinstance(owner, type):
        return dict(vars(owner))
    return {key: value for each in reversed(owner.__mro__) for key, value in vars(each).items()}


def _is_as_it_was(now: Any, before: Any) -> bool:
    """Also when torch itself has wrapped a function of its own, as one of its parts does to
    ``torch.manual_seed`` when somebody imports it first."""
    if now is before:
        return True
    code = getattr(now, "__code__", None)
    is_torchs = code is not None and Path(code.co_filename).is_relative_to(_TORCH)
    return is_torchs and getattr(now, "__wrapped__", None) is before


def _changes(before: _Process, after: _Process) -> list[str]:
    found = []
    if names := sorted(each.name for each in after.threads - before.threads if each.is_alive()):
        found.append(f"it has threads of its own: {', '.join(names)}")
    if pids := after.children - before.children:
        found.append(f"it has processes of its own: {', '.join(map(str, sorted(pids)))}")
    changed = [each for each, what in after.signals.items() if what is not before.signals[each]]
    if changed:
        names = [signal.Signals(each).name for each in sorted(changed)]
        found.append(f"it handles signals: {', '.join(names)}")
    for (name, key), value in before.functions.items():
        if not _is_as_it_was(after.functions.get((name, key)), value):
            found.append(f"it replaces {name}.{key}")
    if before.device is not None and after.device != before.device:
        found.append("it chooses a device of its own")
    if after.graphs > before.graphs:
        found.append("it captures CUDA graphs")
    return found


@dataclass(frozen=True)
class LoadedApart(Generic[Service]):
    """What was loaded in a space."""

    service: Service
    reasons: tuple[str, ...]
    """Why it needs a process of its own; none: it can have one together with others."""


def load_apart(space: ModelSpace, load: Callable[[], Service]) -> LoadedApart[Service]:
    """Load a model in its space and see what that does. What ``load`` raises is raised."""
    before = _Process()
    with space:
        service = load()
        reasons = _reasons(space, before)
        if reasons:
            before.restore()
    return LoadedApart(service, tuple(reasons))


@contextmanager
def seen_changes(space: ModelSpace) -> Iterator[list[str]]:
    """The same for what a model does inside, in its space; the reasons are there at the end."""
    before, reasons = _Process(), list[str]()
    yield reasons
    reasons += _reasons(space, before)
    if reasons:
        before.restore()


def _reasons(space: ModelSpace, before: _Process) -> list[str]:
    found = _changes(before, _Process())
    found += [f"it has machine code of its own: {name}" for name in space.extensions()]
    return found
