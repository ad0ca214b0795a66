"""A process as one model sees it: its own modules, paths, seeds and defaults.

A worker of one model imports its handler from the folder of its archive, as ``handler`` or
``model``; so does every other one. In a worker of several models each has a space, and its code
runs inside of it only, when it is loaded and for every batch. What it has imported from its folder,
and what it has set, is put away when the space is left and is back when it is entered again;
packages of this Python are loaded once for all of them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from shunter.handlers.pool.process_state import ProcessState

_INSIDE = threading.RLock()
"""Of a process: a model runs at a time, for what its code sees is that of the whole process."""


class SpaceError(RuntimeError):
    """A space was entered in another one."""


class World:
    """A process before it has a model: what each of them begins with."""

    def __init__(self) -> None:
        """As it is now."""
        self.state = ProcessState.now()
        self.modules = frozenset(sys.modules)
        self.inside: ModelSpace | None = None


class ModelSpace:
    """Where the code of one model runs: ``with space: ...``."""

    def __init__(self, world: World, folder: Path) -> None:
        """``folder``: of its archive."""
        self._world, self._folder = world, folder.resolve()
        self._state: ProcessState | None = None
        """Its own, as it was when it was left."""
        self._modules: dict[str, ModuleType] = {}
        """Those from its folder, while it is left."""
        self._outside = world.state
        self._hidden: dict[str, ModuleType] = {}
        self._before: frozenset[str] = frozenset()
        """Modules that there were when it was entered."""

    def __enter__(self) -> ModelSpace:
        _INSIDE.acquire()
        if self._world.inside is not None:
            _INSIDE.release()
            raise SpaceError("the code of a model runs in that of another one")
        self._world.inside = self
        self._outside = ProcessState.now()
        self._hidden = {name: sys.modules.pop(name) for name in list(self._shadowed())}
        self._before = frozenset(sys.modules)
        sys.modules.update(self._modules)
        if self._state is not None:
            self._state.restore()
        else:
            self._world.state.restore()
            sys.path.insert(0, str(self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._state = ProcessState.now()
            self._modules = dict(self.own_modules())
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(self._hidden)
            self._outside.restore()
        finally:
            self._world.inside = None
            _INSIDE.release()

    def _shadowed(self) -> Iterator[str]:
        """Modules that others have imported and of which its folder has one of that name.

        What the process had before any model stays: a worker of one model finds that, too.
        """
        names = {each.partition(".")[0] for each in os.listdir(self._folder)}
        tops = {name for name in names if name in sys.modules} - self._world.modules
        if tops:
            yield from (name for name in sys.modules if name.partition(".")[0] in tops)

    def own_modules(self) -> Iterator[tuple[str, ModuleType]]:
        """What was imported from its folder; of a space that is left, what was put away."""
        if self._world.inside is not self:
            yield from self._modules.items()
            return
        for name in sys.modules.keys() - self._before:  # few, however many there are
            module = sys.modules[name]
            if name in self._modules or self._is_own(module):
                yield name, module

    def _is_own(self, module: ModuleType) -> bool:
        """Whether a module's file, or a folder of a package without one, lies in its folder."""
        file = getattr(module, "__file__", None)
        places = [file] if file else list(getattr(module, "__path__", []))
        return any(Path(each).resolve().is_relative_to(self._folder) for each in places)

    def extensions(self) -> list[str]:
        """Names of its modules that are machine code, which a process has once for all."""
        return [
            name
            for name, module in self.own_modules()
            if isinstance(getattr(module, "__loader__", None), ExtensionFileLoader)
        ]
