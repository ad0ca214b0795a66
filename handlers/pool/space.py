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
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from shunter.handlers.pool.process_state import ProcessState
from shunter.handlers.pool.thread_state import set_aside

_INSIDE = threading.RLock()
"""Of a process: a model runs at a time, for what its code sees is that of the whole process."""


class SpaceError(RuntimeError):
    """A space was entered in another one."""


class World:
    """A process with several models, and what it was before it had any: so each of them begins."""

    def __init__(self) -> None:
        """As it is now."""
        self.state = ProcessState.now()
        self.modules = frozenset(sys.modules)
        self.current: ModelSpace | None = None
        """Whose modules and settings are in place."""
        self.is_running = False
        """Whether its code runs."""
        self._streams = sys.stdout, sys.stderr
        self._outside = self.state
        """What there was before a space was entered."""

    def switch(self, space: ModelSpace | None) -> None:
        """Let this space be in place, or none."""
        if space is self.current:
            return
        if self.current is None:
            self._outside = ProcessState.now()
        else:
            self.current.put_away()
        self.current = space
        if space is None:
            self._outside.restore()
        else:
            space.put_in_place()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """The code of a model that runs stands still: meanwhile that of others can run."""
        if not self.is_running:
            raise SpaceError("no code of a model runs that could stand still")
        space, streams = self.current, (sys.stdout, sys.stderr)
        with set_aside():
            self.is_running = False
            sys.stdout, sys.stderr = self._streams
            try:
                yield
            finally:
                sys.stdout, sys.stderr = streams
                self.switch(space)
                self.is_running = True


class ModelSpace:
    """Where the code of one model runs: ``with space: ...``, or ``with space.staying(): ...``."""

    def __init__(self, world: World, folder: Path, state: ProcessState | None = None) -> None:
        """``folder``: of its archive; ``state``: that a process of its own would begin with, with
        the paths that lead to the archive."""
        self._world, self._folder = world, folder.resolve()
        self._state = state
        """Its own, as it was when it was put away."""
        self._modules: dict[str, ModuleType] = {}
        """Those from its folder, as long."""
        self._hidden: dict[str, ModuleType] = {}
        self._before: frozenset[str] = frozenset()
        """Modules that there were without its own."""

    def __enter__(self) -> ModelSpace:
        _INSIDE.acquire()
        if self._world.is_running:
            _INSIDE.release()
            raise SpaceError("the code of a model runs in that of another one")
        try:
            self._world.switch(self)
        except BaseException:
            _INSIDE.release()
            raise
        self._world.is_running = True
        return self

    def __exit__(self, *_: object) -> None:
        self._world.is_running = False
        try:
            self._world.switch(None)
        finally:
            _INSIDE.release()

    @contextmanager
    def staying(self) -> Iterator[ModelSpace]:
        """The same, but it is left in place: the next batch may be of the same model.

        Until then the process is as this model has left it, as in a worker of its own.
        """
        self.__enter__()
        try:
            yield self
        finally:
            self._world.is_running = False
            _INSIDE.release()

    def put_in_place(self) -> None:
        """For :class:`World`."""
        self._hidden = {name: sys.modules.pop(name) for name in list(self._shadowed())}
        self._before = frozenset(sys.modules)
        sys.modules.update(self._modules)
        if self._state is not None:
            self._state.restore()
        else:
            self._world.state.restore()
            sys.path.insert(0, str(self._folder))

    def put_away(self) -> None:
        """For :class:`World`."""
        self._state = ProcessState.now()
        self._modules = dict(self.own_modules())
        for name in self._modules:
            del sys.modules[name]
        sys.modules.update(self._hidden)

    def _shadowed(self) -> Iterator[str]:
        """Modules that others have imported and of which its folder has one of that name.

        What the process had before any model stays: a worker of one model finds that, too.
        """
        try:
            names = {each.partition(".")[0] for each in os.listdir(self._folder)}
        except FileNotFoundError:  # its server has forgotten it; what was loaded stays
            names = {each.partition(".")[0] for each in self._modules}
        tops = {name for name in names if name in sys.modules} - self._world.modules
        if tops:
            yield from (name for name in sys.modules if name.partition(".")[0] in tops)

    def own_modules(self) -> Iterator[tuple[str, ModuleType]]:
        """What was imported from its folder; of a space that is not in place, what was put away."""
        if self._world.current is not self:
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
