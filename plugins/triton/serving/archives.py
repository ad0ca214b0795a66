"""Archives of a model store, each unpacked into a folder of its own for the workers of a host."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from shunter.batching.forming.spelling import hint
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError, WorkerRuntime
from shunter.plugins.slot_writer import ServerPage
from shunter.plugins.triton.served import Served, may_change, unpacked


class Archives:
    """Those that are served have a folder and a slot of the control page."""

    def __init__(self, store: Path, folder: Path, runtime: WorkerRuntime, page: ServerPage) -> None:
        """``folder``: theirs are below it; it is made with the first."""
        self._store, self._folder, self._runtime, self._page = store, folder, runtime, page

    def take(
        self, archive: str, name: str | None, batch: int | None, others: Iterable[Served]
    ) -> Served:
        """Unpack one. ``others``: are served. Raises HostError, and nothing of it is left."""
        path = self._path(archive)
        self._folder.mkdir(exist_ok=True)
        # Never one that was there: workers of another host may still run in it.
        folder = Path(tempfile.mkdtemp(dir=self._folder, prefix=f"{path.stem}-"))
        try:
            served = unpacked(self._runtime, path, folder, name, batch)
            taken = [each.title for each in others if each.key == served.key]
            if taken:
                raise HostError(f"{taken[0]} is served as version {served.number} already")
            served.slot = self._page.take()
        except UserError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise HostError(str(error)) from error
        served.auto = may_change(served)
        return served

    def _path(self, archive: str) -> Path:
        if Path(archive).name != archive:
            raise HostError(
                f"{archive}: a server of Triton takes archives by their names in its model store, "
                f"which is {self._store}; put it there"
            )
        if not (path := self._store / archive).is_file():
            near = hint(archive, (each.name for each in self._store.glob("*.mar")))
            raise HostError(f"{self._store} holds no {archive}{near}")
        return path

    def give_back(self, served: Served) -> None:
        """Its folder and its slot."""
        assert served.slot is not None
        self._page.give_back(served.slot)
        shutil.rmtree(served.folder, ignore_errors=True)
