"""Triton with the backend, as a host: its models, and the workers that this process starts."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shunter.allocator.cpus.cpu_list import parse_cpu_list
from shunter.allocator.memory.host import available_bytes
from shunter.allocator.planning.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
)
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostedModel, HostError, WorkerRuntime
from shunter.plugins.triton.backend import Backend, BackendGone
from shunter.plugins.triton.generation import Generation
from shunter.plugins.triton.reception import Reception
from shunter.plugins.triton.repository import Repository
from shunter.plugins.triton.served import (
    USUAL_BATCH,
    Served,
    config_of,
    configuration_of,
    number_of,
    policy_of,
    variables_of,
)

NAME = "Triton"
_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")


class TritonHost:
    """The :class:`shunter.plugins.host.Host` of Triton."""

    name = NAME

    def __init__(
        self,
        store: Path,
        folder: Path,
        runtime: WorkerRuntime,
        pid: Callable[[], int],
    ) -> None:
        """``store`` has archives; ``folder`` is this host's; ``pid``: of the server, 0: none."""
        self._store, self._folder, self._runtime, self._pid = store, folder, runtime, pid
        self.repository = Repository(folder / "repository")
        self.attach_at, self.backend_at = folder / "workers.sock", folder / "backend.sock"
        self.reception = Reception(self.attach_at, self.backend_at, available_bytes)
        self.reception.start()
        self._served: list[Served] = []
        self._lock = threading.RLock()

    # ---- what there is

    def models(self) -> list[HostedModel]:
        """See the protocol."""
        with self._lock:
            states = self._states()
            found = [self._hosted(each, states) for each in self._served]
        return sorted(found, key=lambda model: (model.name, model.version))

    def _states(self) -> dict[tuple[str, int], dict[str, Any]]:
        self._check_running()
        try:
            with Backend(self.backend_at) as backend:
                found = backend.functions()
        except BackendGone:
            return {}  # it comes with the first model
        return {(each["model"], each["version"]): each for each in found}

    def _check_running(self) -> None:
        if not self._pid():
            raise HostError("no Triton answers: it has ended")

    def _hosted(self, served: Served, states: dict[tuple[str, int], Any]) -> HostedModel:
        state = states.get((served.name, served.number), {"pids": {}})
        workers = served.workers
        configuration = format_configuration(workers.configuration) if workers else ""
        ready = len(workers.pids & state["pids"].keys()) if workers else 0
        problem = workers.problem if workers else ""
        return HostedModel(
            served.name, served.version, configuration, ready, problem=problem or served.problem
        )

    def _find(self, model: str) -> Served:
        name, _, version = model.partition("/")
        for each in self._served:
            if each.name == name and version in ("", each.version):
                return each
        raise HostError(f"Triton has no model {model}")

    def status(self) -> dict[str, Any]:
        """See the protocol."""
        with self._lock:
            states = self._states()
            models = []
            for each in self._served:
                hosted = self._hosted(each, states)
                state = states.get((each.name, each.number), {})
                counted = {k: v for k, v in state.items() if k not in ("model", "version")}
                models.append(
                    {
                        "name": each.name,
                        "version": each.version,
                        "configuration": hosted.configuration,
                        "ready": hosted.ready,
                        "problem": hosted.problem,
                        **counted,
                    }
                )
        return {"server": NAME, "pid": self._pid(), "models": models}

    # ---- what changes

    def load(
        self, archive: str, name: str | None = None, *, workers: int = 1, batch: int | None = None
    ) -> HostedModel:
        """See the protocol."""
        with self._lock:
            self._check_running()
            served = self._unpack(archive, name, batch)
            try:
                configuration = (InstanceGroup(workers, 1, served.batch),)
                if batch is None and workers == 1:
                    configuration = configuration_of(served, configuration)
                self.repository.write(served.name, served.number, config_of(served))
                served.workers = self._generation(served, configuration)
                self.repository.load(served.name)
            except (HostError, OSError) as error:
                self._forget(served)
                if isinstance(error, OSError):
                    raise HostError(f"{archive}: {error}") from error
                raise
            self._served.append(served)
            return self._hosted(served, self._states())

    def _unpack(self, archive: str, name: str | None, batch: int | None) -> Served:
        path = self._store / archive
        if not path.is_file():
            raise HostError(f"{self._store} holds no {archive}")
        folder = self._folder / "models" / f"{path.stem}-{len(self._served)}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            model = self._runtime.unpack(path, folder)
        except UserError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise HostError(str(error)) from error
        name = name or model.name
        model = replace(model, name=name)
        registered = model.config.get("batchSize", USUAL_BATCH)
        number = number_of(model.version)
        served = Served(name, number, model.version, folder, model, batch or int(registered))
        taken = [each.title for each in self._served if (each.name, each.number) == (name, number)]
        if taken or not _NAME.match(name):
            shutil.rmtree(folder, ignore_errors=True)
            raise HostError(
                f"{taken[0]} is served as version {number} already"
                if taken
                else f"{name!r}: a name has letters, digits, '_', '.' and '-'"
            )
        return served

    def _generation(
        self, served: Served, configuration: Configuration, cores: str = "auto"
    ) -> Generation:
        self.reception.policies[served.name, served.number] = policy_of(served)
        variables = {
            **variables_of(served),
            "SHUNTER_FRONT_END": str(self.attach_at),
        }
        found = Generation(served.model, configuration, variables, self._runtime)
        found.start(None if cores == "auto" else sorted(parse_cpu_list(cores)))
        found.refusals = self.reception.refusals
        try:
            found.wait_attached(self.backend_at)
        except BaseException:
            found.kill()
            raise
        return found

    def _forget(self, served: Served) -> None:
        """Whatever there is of it."""
        if served.workers is not None:
            served.workers.dismiss(self.backend_at, served.name, served.number)
        self.repository.remove(served.name, served.number)
        shutil.rmtree(served.folder, ignore_errors=True)

    def unload(self, model: str) -> None:
        """See the protocol."""
        with self._lock:
            self._check_running()
            served = self._find(model)
            if self.repository.remove(served.name, served.number):
                self.repository.load(served.name)  # its other versions
            else:
                self.repository.unload(served.name)
            self._served.remove(served)
            self._forget(served)

    def start_generation(
        self, model: str, configuration: Configuration, *, cores: str = "auto"
    ) -> HostedModel:
        """See the protocol. ``auto``: the system chooses."""
        with self._lock:
            served = self._find(model)
            if max(group.batch for group in configuration) > served.batch:
                raise HostError(
                    f"{model} is loaded for batches of up to {served.batch}: load it again"
                )
            before, served.workers = (
                served.workers,
                self._generation(served, configuration, cores),
            )
            if before is not None:
                before.dismiss(self.backend_at, served.name, served.number)
            return self._hosted(served, self._states())

    def retire(self, model: str) -> HostedModel:
        """See the protocol."""
        with self._lock:
            served = self._find(model)
            if served.workers is not None:
                served.workers.dismiss(self.backend_at, served.name, served.number)
                served.workers = None
            return self._hosted(served, self._states())

    # ---- the process around it

    def look_after(self) -> None:
        """Start again what was lost."""
        if self._lock.acquire(blocking=False):
            try:
                for each in self._served:
                    if each.workers is not None:
                        each.workers.look_after()
            finally:
                self._lock.release()

    def names(self) -> list[str]:
        """Of the models that are loaded."""
        return sorted({each.name for each in self._served})

    def close(self) -> None:
        """End all workers."""
        self.reception.close()
        with self._lock:
            for each in self._served:
                if each.workers is not None:
                    each.workers.close()
            self._served.clear()


def status_of(backend_at: Path) -> dict[str, Any]:
    """What a backend serves that another process started. Raises HostError."""
    try:
        with Backend(backend_at) as backend:
            found = backend.functions()
    except BackendGone as error:
        raise HostError(f"no Triton with shunter's backend listens there: {error}") from error
    models = [{"name": each.pop("model"), **each, "ready": len(each["pids"])} for each in found]
    return {"server": NAME, "models": models}
