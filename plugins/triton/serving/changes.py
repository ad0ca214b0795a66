"""Which workers serve a model: generations come, serve, are watched, and go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import INFO, WARNING
from pathlib import Path

from shunter.allocator.cpus.cpu_list import CpuListError, parse_cpu_list
from shunter.allocator.planning.configuration import (
    Configuration,
    InstanceGroup,
    format_configuration,
)
from shunter.batching.page.layout import Claims
from shunter.plugins.events import tell
from shunter.plugins.host import HostError, WorkerRuntime
from shunter.plugins.triton import archive_keys
from shunter.plugins.triton.generation import Generation
from shunter.plugins.triton.pools import Pools
from shunter.plugins.triton.published import AUTO, told_of
from shunter.plugins.triton.reception import Reception, expect
from shunter.plugins.triton.served import Served, configuration_of, usual_policy, variables_of

_NO_KEY = (0, 0, 0, 0)


class Changes:
    """Changes of workers; those of one model one after another."""

    def __init__(
        self, runtime: WorkerRuntime, reception: Reception, backend_at: Path, page_folder: Path
    ) -> None:
        """``page_folder``: where workers find the control page."""
        self._runtime, self._reception = runtime, reception
        self._backend_at, self._page_folder = backend_at, page_folder
        self._coming: set[Generation] = set()
        self._is_over = False
        self.guarded = False
        """Whether the settings may forbid claims of strict."""
        self.pools = Pools()

    def is_pooled(self, served: Served) -> bool:
        """Whether its workers share processes, which is noted. Raises HostError."""
        served.pooled = self.pools.has(served.model.section)
        served.auto &= not served.pooled
        return served.pooled

    def first_of(self, served: Served, workers: int, *, by_archive: bool) -> Configuration:
        """What a model begins with. Raises HostError."""
        if self.is_pooled(served) and workers == 1:
            workers = self.pools.workers
        usual = (InstanceGroup(workers, 1, served.batch),)
        return configuration_of(served, usual) if by_archive else usual

    def change(
        self,
        served: Served,
        configuration: Configuration,
        cores: Sequence[str],
        *,
        gentle: bool,
    ) -> None:
        """Another generation serves, and the one before, or that of another host, ends.

        ``cores``: of each group; what is missing or empty is the model's own. ``gentle``: others
        serve meanwhile. Raises HostError: nothing has changed.
        """
        with served.lock:
            own = [served.cores] * (len(configuration) - len(cores))
            cores = [each or served.cores for each in cores] + own
            before = served.workers or served.strangers
            number = served.generation + 1
            served.last_change = f"starting generation {number}" if before else ""
            try:
                served.workers = self._started(served, configuration, cores, gentle)
            except HostError as error:
                served.last_change = f"generation {number} was undone: {error}" if before else ""
                tell(WARNING, served.title, f"generation {number} was undone: {error}")
                raise
            served.generation, served.strangers, served.recorded = number, None, None
            served.problem = ""
            served.last_change = f"generation {number} serves" if before else ""
            text = format_configuration(configuration)
            tell(INFO, served.title, f"generation {number} serves; configuration {text}")
            if before is not None:
                before.dismiss(self._backend_at, *served.key)

    def _started(
        self, served: Served, configuration: Configuration, cores: Sequence[str], gentle: bool
    ) -> Generation:
        for each in cores:
            _check(each)
        usual = told_of(usual_policy(served), 0, Claims.UNKNOWN, _NO_KEY, guarded=self.guarded)
        self._reception.policies[served.key] = served.policy or usual
        self._reception.capacities[served.key] = archive_keys.capacity_of(served.model)
        load_s = archive_keys.load_s(served.model)
        variables = {
            **variables_of(served),
            "SHUNTER_FRONT_END": str(self._reception.path),
            "SHUNTER_RUNTIME": str(self._page_folder),
            "SHUNTER_STARTUP_TIMEOUT_S": str(int(load_s)),
        }
        found = Generation(served.model, configuration, cores, variables, self._runtime)
        found.refusals = self._reception.refusals
        if served.pooled:
            # Models with one worker each are spread, too.
            first = served.slot.index if served.slot is not None else 0
            found.pool = lambda number: self.pools.variables(first + number)
        found.load_s = load_s
        more = {"SHUNTER_GENTLE": "1"} if gentle else {}
        if served.workers is not None and (replaced := served.workers.pids):
            more["SHUNTER_SHARE_WITH"] = ",".join(map(str, replaced))
        self._coming.add(found)
        try:
            if self._is_over:
                raise HostError("the host ends")
            found.start(more)
            found.wait_attached(self._backend_at)
        except BaseException:
            found.kill()
            raise
        finally:
            self._coming.discard(found)
        return found

    def retire(self, served: Served) -> None:
        """Its workers answer what they hold, and end."""
        with served.lock:
            before = served.workers or served.strangers
            served.workers = served.strangers = served.recorded = None
            tell(INFO, served.title, "its workers end: unloaded, or retired")
            if before is not None:
                before.dismiss(self._backend_at, *served.key)

    def look_after(self, all_served: Iterable[Served]) -> None:
        """Start again what was lost; the backend is told of workers that are on their way."""
        expect(self._backend_at, [each.key for each in all_served if self._is_coming(each)])

    def _is_coming(self, served: Served) -> bool:
        """Whether a worker is, after a look at those that were lost."""
        is_coming = any(each.model is served.model for each in tuple(self._coming))
        if served.lock.acquire(blocking=False):
            try:
                if served.workers is not None:
                    served.workers.look_after()
                    is_coming = served.workers.is_coming
            finally:
                served.lock.release()
        return is_coming

    def abandon(self) -> None:
        """Whoever waits for workers that are being started waits no more; none are from now on."""
        self._is_over = True
        for generation in tuple(self._coming):
            generation.close()

    def close(self, all_served: Sequence[Served]) -> None:
        """End all workers, also those that are being started."""
        self.abandon()
        for each in all_served:  # of all of them, before one is waited for
            if (workers := each.workers) is not None:
                workers.abandon()
        for each in all_served:
            with each.lock:
                if each.workers is not None:
                    each.workers.close()


def _check(cores: str) -> None:
    try:
        if cores not in ("", AUTO):
            parse_cpu_list(cores)
    except CpuListError as error:
        raise HostError(str(error)) from error
