"""Triton with the backend, as a host: its models, and the workers that this process starts."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shunter.allocator.memory.host import available_bytes
from shunter.allocator.planning.configuration import Configuration
from shunter.batching.forming.spelling import hint
from shunter.plugins.errors import UserError
from shunter.plugins.events import Recorder
from shunter.plugins.host import HostedModel, HostError, WorkerRuntime
from shunter.plugins.record import RecordedModel
from shunter.plugins.slot_writer import ServerPage
from shunter.plugins.triton.backend import Backend, BackendGone, NoBackend
from shunter.plugins.triton.generation import Strangers
from shunter.plugins.triton.published import AUTO
from shunter.plugins.triton.reception import Reception
from shunter.plugins.triton.repository import Repository
from shunter.plugins.triton.served import Served, hosted_of, record_of, status_of
from shunter.plugins.triton.serving.archives import Archives
from shunter.plugins.triton.serving.changes import Changes
from shunter.plugins.triton.serving.known import Known
from shunter.plugins.triton.serving.loading import Loading, Wanted
from shunter.plugins.triton.serving.taking_over import TakingOver

LOGGER = logging.getLogger("shunter.triton")
NAME = "Triton"


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
        self.pid = pid
        self.page = page
        self.repository = Repository(folder / "repository")
        self.attach_at, self.backend_at = folder / "workers.sock", folder / "backend.sock"
        self.reception = Reception(self.attach_at, self.backend_at, available_bytes)
        self.reception.start()
        self.served: tuple[Served, ...] = ()
        """It is replaced, not changed."""
        self._others: tuple[RecordedModel, ...] = ()
        """What workers of another host serve that this one has no archive of."""
        self._lock = threading.RLock()
        """Of who loads and unloads; who changes the workers of a model has that model's."""
        self._known = Known(self.repository, lambda: self.served, self._states)
        self._archives = Archives(store, folder / "models", runtime, page)
        self.changes = Changes(runtime, self.reception, self.backend_at, page.path.parent)
        self._taking_over = TakingOver(self._change)
        self.recorder: Recorder | None = None
        self.saved: Callable[[], None] = lambda: None
        """What is served has changed."""

    def models(self) -> list[HostedModel]:
        """See the protocol."""
        states = self._states()
        found = [hosted_of(each, states.get(each.key)) for each in self.served]
        return sorted(found, key=lambda model: (model.name, model.version))

    def _states(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Raises HostError: it does not answer."""
        self._check_running()
        try:
            with Backend(self.backend_at) as backend:
                found = backend.functions()
        except NoBackend:
            return {}  # it comes with the first model
        except BackendGone as error:
            raise HostError(f"Triton does not answer: {error}") from error
        return {(each["model"], each["version"]): each for each in found}

    def _check_running(self) -> None:
        if not self.pid():
            raise HostError("no Triton answers: it has ended")

    def _hosted(self, served: Served) -> HostedModel:
        """After a change, which stands also when this cannot be told."""
        states: Mapping[tuple[str, int], Any] = {}
        with contextlib.suppress(HostError):
            states = self._states()
        return hosted_of(served, states.get(served.key))

    def _find(self, model: str) -> Served:
        name, _, version = model.partition("/")
        named = [each for each in self.served if each.name == name]
        found = [e for e in named if not version or version in (e.version, str(e.number))]
        if not found:
            known = ", ".join(each.title for each in self.served) or "none"
            near = hint(name, [each.name for each in self.served])
            raise HostError(f"Triton has no model {model}; there are: {known}{near}")
        return max(found, key=lambda each: each.number)  # the server's own default

    def status(self) -> dict[str, Any]:
        """See the protocol."""
        states = self._states()
        models = [status_of(each, states.get(each.key)) for each in self.served]
        return {"server": NAME, "pid": self.pid(), "models": models}

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """See the protocol."""
        return self.recorder.after(after) if self.recorder else []

    def records(self) -> list[RecordedModel]:
        """For the next host."""
        return [*self._others, *map(record_of, self.served)]

    def load(
        self, archive: str, name: str | None = None, *, workers: int = 1, batch: int | None = None
    ) -> HostedModel:
        """See the protocol."""
        with self._lock:
            self._check_running()
            served = self._archives.take(archive, name, batch, self.served)
            self._start(served, workers, by_archive=batch is None and workers == 1)
            self._offer(served)
            return self._hosted(served)

    def load_all(
        self, models: Sequence[Wanted], told: Callable[[str, HostError | None], None]
    ) -> None:
        """Load several at a time. ``told``: of each archive when it serves, or why it does not."""
        with self._lock:
            self._check_running()
            loading = Loading(self._archives.take, self.served, self._start, self._offer)
            for archive, error in loading.run(models):
                told(archive, error)

    def _start(self, served: Served, workers: int = 1, *, by_archive: bool = True) -> None:
        """Raises HostError: nothing is left of it."""
        with self._or_nothing(served):
            configuration = self.changes.first_of(served, workers, by_archive=by_archive)
            self._known.check(served)
            self._change(served, configuration)

    def _offer(self, served: Served) -> None:
        """Let the server know it. Raises HostError: nothing is left of it."""
        with self._or_nothing(served):
            self._known.load(served)
            if served.workers is not None:  # the backend may have come with this model only
                served.workers.wait_attached(self.backend_at)
        self.served = (*self.served, served)
        self._others = tuple(each for each in self._others if each.name != served.name)
        self.saved()

    @contextlib.contextmanager
    def _or_nothing(self, served: Served) -> Iterator[None]:
        try:
            yield
        except (UserError, OSError) as error:
            self._forget(served)
            said = str(error) if isinstance(error, UserError) else f"{served.archive.name}: {error}"
            raise HostError(said) from error

    def _change(
        self, served: Served, configuration: Configuration, cores: Sequence[str] = ()
    ) -> None:
        others_serve = any(each.workers for each in self.served)
        self.changes.change(served, configuration, cores, gentle=others_serve)
        self.saved()

    def _forget(self, served: Served) -> None:
        """Whatever there is of it."""
        self.changes.retire(served)
        self.reception.policies.pop(served.key, None)
        self.reception.capacities.pop(served.key, None)
        self.repository.remove(served.name, served.number)
        self._archives.give_back(served)

    def unload(self, model: str) -> None:
        """See the protocol."""
        with self._lock:
            self._check_running()
            served = self._find(model)
            with served.lock:
                self._known.unload(served)
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
        self.saved()
        return self._hosted(served)

    def _check_batch(self, served: Served, configuration: Configuration) -> None:
        if max(group.batch for group in configuration) > served.batch:
            raise HostError(
                f"{served.title} is loaded for batches of up to {served.batch}: load it again"
            )

    def reconfigure(
        self, served: Served, configuration: Configuration, cores: Sequence[str]
    ) -> None:
        """What the controller wants. Raises HostError: nothing has changed."""
        if not configuration:
            raise HostError("it has no worker group")
        self._check_batch(served, configuration)
        with served.lock:  # or who retires it meanwhile would see it come back
            if not served.auto:
                raise HostError("auto is false")
            self._change(served, configuration, cores)

    def retire(self, model: str) -> HostedModel:
        """See the protocol. The controller gives it no workers then."""
        served = self._find(model)
        with served.lock:
            self.changes.retire(served)
            served.auto = False
        self.saved()
        return self._hosted(served)

    def take_over(self, models: Sequence[RecordedModel]) -> None:
        """Replace the workers of a server that another host started; those that cannot be serve
        on, and are tried again. Raises HostError: what they serve is not known."""
        with self._lock:
            states = self._states()
            taken = [served for each in models if (served := self._found(each, states))]
            self.served = (*self.served, *taken)
            self.saved()  # all, before the first is replaced
            for served in taken:
                self._taking_over.replace(served)

    def _found(self, model: RecordedModel, states: Mapping[tuple[str, int], Any]) -> Served | None:
        """What another host has left of it."""
        try:
            served = self._archives.take(model.archive, model.name, model.batch, self.served)
        except HostError as error:
            LOGGER.error("workers of another host serve %s on: %s", model.name, error)
            self._others = (*self._others, model)
            return None
        self.changes.is_pooled(served)
        state = states.get(served.key)
        if state is not None and state["pids"]:
            served.strangers = Strangers(state["pids"])
        if state is None or not state["loaded"]:  # the server learns of it when it has workers
            self.repository.remove(served.name, served.number)
            served.is_late = True
        served.recorded = model
        served.auto = served.auto if model.auto is None else model.auto
        return served

    # ---- the process around it

    def look_after(self) -> None:
        """Start again what was lost, or did not come."""
        self.changes.look_after(self.served)
        self._taking_over.look_after(self.served)

    def names(self) -> list[str]:
        """Models for a server that starts; those without workers come when they have some."""
        return self._known.names()

    def load_late(self, served: Served) -> None:
        """The server has started without it, and now it has workers. Raises HostError, OSError."""
        with self._lock:
            if served in self.served and (served.is_late or self._known.lacks(served)):
                served.is_late = True  # also when it is refused
                self._known.load(served)
                served.is_late = False

    def abandon(self) -> None:
        """Changes that wait for workers are undone, and there are no others."""
        self.changes.abandon()

    def close(self) -> None:
        """End all workers."""
        self.reception.close()
        self.changes.close(self.served)
        self._taking_over.close()
        self.served = ()
