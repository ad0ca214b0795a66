"""Triton with the backend, as a host: its models, and the workers that this process starts."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shunter.allocator.memory.host import available_bytes
from shunter.allocator.planning.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
    parse_configuration,
)
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostedModel, HostError, WorkerRuntime
from shunter.plugins.record import RecordedModel
from shunter.plugins.slot_writer import ServerPage
from shunter.plugins.triton.backend import Backend, BackendGone
from shunter.plugins.triton.changes import Changes
from shunter.plugins.triton.generation import Strangers
from shunter.plugins.triton.published import AUTO
from shunter.plugins.triton.reception import Reception
from shunter.plugins.triton.repository import Repository
from shunter.plugins.triton.served import (
    USUAL_BATCH,
    Served,
    config_of,
    configuration_of,
    may_change,
    number_of,
)

LOGGER = logging.getLogger("shunter.triton")
NAME = "Triton"
_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
_HOSTED = ("name", "version", "configuration", "ready", "problem")
_SERVED = ("auto", "generation", "last_change")


class TritonHost:
    """The :class:`shunter.plugins.host.Host` of Triton."""

    name = NAME

    def __init__(
        self,
        store: Path,
        folder: Path,
        runtime: WorkerRuntime,
        pid: Callable[[], int],
        page: ServerPage,
    ) -> None:
        """``store`` has archives; ``folder`` is this host's; ``pid``: of the server, 0: none."""
        self._store, self._folder, self._runtime, self._pid = store, folder, runtime, pid
        self.page = page
        self.repository = Repository(folder / "repository")
        self.attach_at, self.backend_at = folder / "workers.sock", folder / "backend.sock"
        self.reception = Reception(self.attach_at, self.backend_at, available_bytes)
        self.reception.start()
        self.served: tuple[Served, ...] = ()
        """It is replaced, not changed."""
        self._lock = threading.RLock()
        """Of who loads and unloads; who changes the workers of a model has that model's."""
        self._changes = Changes(runtime, self.reception, self.backend_at, page.path.parent)
        self.saved: Callable[[], None] = lambda: None
        """What is served has changed."""

    # ---- what there is

    def models(self) -> list[HostedModel]:
        """See the protocol."""
        states = self._states()
        found = [self._hosted(each, states) for each in self.served]
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

    def _hosted(self, served: Served, states: Mapping[tuple[str, int], Any]) -> HostedModel:
        state = states.get(served.key, {"pids": {}})
        workers = served.workers
        configuration = format_configuration(served.configuration)
        ready = len(workers.pids & state["pids"].keys()) if workers else 0
        problem = workers.problem if workers else ""
        return HostedModel(
            served.name, served.version, configuration, ready, problem=problem or served.problem
        )

    def _find(self, model: str) -> Served:
        name, _, version = model.partition("/")
        for each in self.served:
            if each.name == name and version in ("", each.version):
                return each
        raise HostError(f"Triton has no model {model}")

    def status(self) -> dict[str, Any]:
        """See the protocol."""
        states, models = self._states(), []
        for each in self.served:
            hosted, state = self._hosted(each, states), states.get(each.key, {})
            counted = {k: v for k, v in state.items() if k not in ("model", "version")}
            models.append(
                {
                    **{word: getattr(hosted, word) for word in _HOSTED},
                    **{word: getattr(each, word) for word in _SERVED},
                    **counted,
                }
            )
        return {"server": NAME, "pid": self._pid(), "models": models}

    def records(self) -> list[RecordedModel]:
        """For the next host."""
        return [
            RecordedModel(
                *(each.archive.name, each.name, each.batch),
                format_configuration(each.configuration),
                list(each.workers.cores) if each.workers else [],
            )
            for each in self.served
        ]

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
                self._change(served, configuration)
                self.repository.load(served.name)
            except (HostError, OSError) as error:
                self._forget(served)
                if isinstance(error, OSError):
                    raise HostError(f"{archive}: {error}") from error
                raise
            self._add(served)
            return self._hosted(served, self._states())

    def _add(self, served: Served) -> None:
        self.served = (*self.served, served)
        self.saved()

    def _unpack(self, archive: str, name: str | None, batch: int | None) -> Served:
        path = self._store / archive
        if not path.is_file():
            raise HostError(f"{self._store} holds no {archive}")
        models = self._folder / "models"
        models.mkdir(exist_ok=True)
        # Never one that was there: workers of another host may still run in it.
        folder = Path(tempfile.mkdtemp(dir=models, prefix=f"{path.stem}-"))
        try:
            model = self._runtime.unpack(path, folder)
            name = name or model.name
            number = number_of(model.version)
            self._check_name(name, number)
            registered = batch or int(model.config.get("batchSize", USUAL_BATCH))
            served = Served(
                *(name, number, model.version, path, folder),
                *(replace(model, name=name), registered, self.page.take()),
            )
        except UserError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise HostError(str(error)) from error
        served.auto = may_change(served)
        return served

    def _check_name(self, name: str, number: int) -> None:
        taken = [each.title for each in self.served if each.key == (name, number)]
        if taken:
            raise HostError(f"{taken[0]} is served as version {number} already")
        if not _NAME.match(name):
            raise HostError(f"{name!r}: a name has letters, digits, '_', '.' and '-'")

    def _change(
        self, served: Served, configuration: Configuration, cores: Sequence[str] = ()
    ) -> None:
        others_serve = any(each.workers for each in self.served)
        self._changes.change(served, configuration, cores, gentle=others_serve)
        self.saved()

    def _forget(self, served: Served) -> None:
        """Whatever there is of it."""
        self._changes.retire(served)
        self.reception.policies.pop(served.key, None)
        assert served.slot is not None
        self.page.give_back(served.slot)
        self.repository.remove(served.name, served.number)
        shutil.rmtree(served.folder, ignore_errors=True)

    def unload(self, model: str) -> None:
        """See the protocol."""
        with self._lock:
            self._check_running()
            served = self._find(model)
            with served.lock:
                if self.repository.remove(served.name, served.number):
                    self.repository.load(served.name)  # its other versions
                else:
                    self.repository.unload(served.name)
                self.served = tuple(each for each in self.served if each is not served)
                self._forget(served)
            self.saved()

    def start_generation(
        self, model: str, configuration: Configuration, *, cores: str = AUTO
    ) -> HostedModel:
        """See the protocol. From now on the controller does not change the configuration."""
        served = self._find(model)
        self._check_batch(served, configuration)
        with served.lock:
            self._change(served, configuration, [cores] * len(configuration))
            served.auto = False
        return self._hosted(served, self._states())

    def _check_batch(self, served: Served, configuration: Configuration) -> None:
        if max(group.batch for group in configuration) > served.batch:
            raise HostError(
                f"{served.title} is loaded for batches of up to {served.batch}: load it again"
            )

    def reconfigure(
        self, served: Served, configuration: Configuration, cores: Sequence[str]
    ) -> None:
        """What the controller wants. Raises HostError: nothing has changed."""
        if not served.auto or not configuration:
            raise HostError("auto is false" if configuration else "it has no worker group")
        self._check_batch(served, configuration)
        self._change(served, configuration, cores)

    def retire(self, model: str) -> HostedModel:
        """See the protocol."""
        served = self._find(model)
        self._changes.retire(served)
        self.saved()
        return self._hosted(served, self._states())

    def take_over(self, models: Sequence[RecordedModel]) -> None:
        """Replace the workers of a server that another host started; those that cannot be serve
        on. Raises HostError: what they serve is not known."""
        with self._lock:
            states = self._states()
            for each in models:
                try:
                    served = self._unpack(each.archive, each.name, each.batch)
                except HostError as error:
                    LOGGER.error("workers of another host serve %s on: %s", each.name, error)
                    continue
                state = states.get(served.key)
                if state is None or not state["loaded"] or not each.configuration:
                    self._forget(served)
                    continue
                served.strangers = Strangers(state["pids"])
                self.served = (*self.served, served)
                try:
                    self._change(served, parse_configuration(each.configuration), each.cores)
                except HostError as error:
                    served.problem = str(error)

    # ---- the process around it

    def look_after(self) -> None:
        """Start again what was lost."""
        for each in self.served:
            self._changes.look_after(each)

    def names(self) -> list[str]:
        """Of the models that are loaded."""
        return sorted({each.name for each in self.served})

    def close(self) -> None:
        """End all workers."""
        self.reception.close()
        self._changes.close(self.served)
        self.served = ()
