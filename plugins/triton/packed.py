"""A model repository for a Triton that somebody else starts, and the workers for it.

::

    FOLDER/models/NAME/config.pbtxt          for --model-repository
    FOLDER/models/NAME/VERSION/model.mar     the archive: workers load it, Triton does not look
    FOLDER/models/NAME/VERSION/model.profile.json  its profile, if there is one
    FOLDER/backends/shunter/...              for --backend-directory
    FOLDER/backend.sock                      where Triton's backend listens for the workers' host

It is whole when it is there, and can be copied to wherever Triton and the workers share a host.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from shunter.allocator.memory.host import available_bytes
from shunter.allocator.planning.configuration import InstanceGroup
from shunter.plugins.errors import UserError
from shunter.plugins.host import WorkerRuntime
from shunter.plugins.triton import archive_keys, build
from shunter.plugins.triton.generation import Generation
from shunter.plugins.triton.reception import Reception, expect
from shunter.plugins.triton.served import (
    config_of,
    configuration_of,
    unpacked,
    usual_policy,
    variables_of,
)

ARCHIVE = "model.mar"
SOCKET = "backend.sock"
WAIT_S = 300
"""What Triton is told to wait for the first worker of a model."""
LONGEST = 99
"""Bytes of a socket's path, as the backend has room."""


def write(
    store: Path,
    models: Sequence[str],
    folder: Path,
    runtime: WorkerRuntime,
    beside: Callable[[Path], Path],
) -> None:
    """Write a repository of archives of ``store``, ``NAME=FILE`` each. Raises UserError.

    ``beside``: where the profile of an archive lies. It goes along; the workers are the same.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already: name another folder, or remove it first")
    library = build.ensure()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pack-") as scratch:
            whole = Path(scratch) / "whole"
            (whole / "backends/shunter").mkdir(parents=True)
            shutil.copy(library, whole / "backends/shunter")
            for model in models:
                name, _, file = model.partition("=")
                _write_model(store / (file or name), name, whole / "models", runtime, beside)
            os.replace(whole, folder)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from error


def _write_model(
    archive: Path,
    name: str,
    models: Path,
    runtime: WorkerRuntime,
    beside: Callable[[Path], Path],
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        served = unpacked(runtime, archive, Path(scratch), name, None)
        text = config_of(served)
    config, version = models / name / "config.pbtxt", models / name / str(served.number)
    if version.exists():
        raise UserError(f"{archive}: version {served.number} of {name} is there already")
    if config.exists() and config.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{archive}: its tensors or batchSize are not those of the other version of {name}: "
            "give it another name"
        )
    version.mkdir(parents=True)
    config.write_text(text, encoding="utf-8")
    shutil.copy(archive, version / ARCHIVE)
    if beside(archive).is_file():
        shutil.copy(beside(archive), beside(version / ARCHIVE))


def command(folder: Path, socket: Path) -> str:
    """How Triton is started on a repository."""
    options = {
        "model-repository": folder / "models",
        "backend-directory": folder / "backends",
        "backend-config": f"shunter,socket={socket}",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return " ".join(["tritonserver", *words, f"--backend-config=shunter,wait-s={WAIT_S}"])


class PackedWorkers:
    """The workers of all models of a repository, for whichever Triton serves it."""

    def __init__(self, folder: Path, socket: Path | None, runtime: WorkerRuntime) -> None:
        """``socket``: where Triton's backend is told to listen. Raises UserError."""
        folder = folder.resolve()
        self.socket = (socket or folder / SOCKET).absolute()
        if len(os.fsencode(self.socket)) > LONGEST:
            raise UserError(
                f"{self.socket} is too long for a socket, which has {LONGEST} bytes: give another "
                "one by --socket"
            )
        self._archives = sorted((folder / "models").glob(f"*/*/{ARCHIVE}"))
        if not self._archives:
            raise UserError(
                f"{folder} has no models/NAME/VERSION/{ARCHIVE}: write it with `shunter pack "
                "--triton`"
            )
        self.command = command(folder, self.socket)
        self._runtime = runtime
        self._folder = Path(tempfile.mkdtemp(prefix="shunter-workers-"))
        self._reception: Reception | None = None
        self._generations: list[tuple[Generation, int]] = []
        """And the version that each of them serves."""

    @property
    def refusals(self) -> dict[str, str]:
        """Why workers of models could not attach."""
        found = tuple(self._reception.refusals.values()) if self._reception else ()
        return dict(found)

    def start(self) -> int:
        """Come back when all workers have loaded; how many. Raises UserError, and none is left."""
        attach_at = self._folder / "workers.sock"
        try:
            self._reception = Reception(attach_at, self.socket, available_bytes)
            self._reception.start()
            for number, archive in enumerate(self._archives):
                self._generations.append(self._generation(archive, number, attach_at))
            with ThreadPoolExecutor(len(self._generations)) as pool:
                list(pool.map(lambda each: each[0].start(), self._generations))
        except (UserError, OSError) as error:
            self.close()
            raise UserError(str(error)) from error
        return sum(len(each.pids) for each, _ in self._generations)

    def _generation(self, archive: Path, number: int, attach_at: Path) -> tuple[Generation, int]:
        assert self._reception is not None
        name, version = archive.parent.parent.name, int(archive.parent.name)
        found = unpacked(self._runtime, archive, self._folder / str(number), name, None)
        served = replace(found, number=version)
        self._reception.policies[name, version] = usual_policy(served)
        self._reception.capacities[name, version] = archive_keys.capacity_of(served.model)
        usual = (InstanceGroup(1, 1, served.batch),)
        variables = {**variables_of(served), "SHUNTER_FRONT_END": str(attach_at)}
        configuration = configuration_of(served, usual)
        cores = [served.cores] * len(configuration)
        workers = Generation(served.model, configuration, cores, variables, self._runtime)
        workers.load_s = archive_keys.load_s(served.model)
        return workers, version

    def look_after(self) -> list[str]:
        """Start again what was lost; what is wrong now."""
        problems = []
        for each, _ in self._generations:
            each.look_after()
            if each.problem:
                problems.append(f"{each.model.name}: {each.problem}")
        coming = [each for each in self._generations if each[0].is_coming]
        expect(self.socket, [(each.model.name, number) for each, number in coming])
        return problems + [f"{name}: {why}" for name, why in self.refusals.items()]

    def close(self) -> None:
        """End all workers when they have answered what they hold."""
        if self._reception is not None:
            self._reception.close()
        for each, number in self._generations:
            each.dismiss(self.socket, each.model.name, number)
        self._generations.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
