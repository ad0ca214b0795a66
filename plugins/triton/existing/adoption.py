"""An existing model of a running Triton, from what a user says to a controller or a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shunter.allocator.cpus.topology import Topology
from shunter.allocator.planning.profile import Profile, ProfileError, batch_sizes
from shunter.plugins.control.settings_keys import ConfigurationSettings
from shunter.plugins.errors import UserError
from shunter.plugins.profiling import planning, profiler
from shunter.plugins.profiling.profiles import load_profile
from shunter.plugins.triton.existing import build, preparation, profiling
from shunter.plugins.triton.existing.choice import Choices, Target, only, possible
from shunter.plugins.triton.existing.controller import Controller, Terms
from shunter.plugins.triton.existing.page import StrategyPage
from shunter.plugins.triton.existing.server import (
    ServedModel,
    group_of,
    page_of,
    present_of,
    threads_of,
)


@dataclass(frozen=True)
class Address:
    """Where the model is served."""

    name: str
    inference: str
    """Base URL of HTTP."""
    grpc: str
    """host:port."""

    def open(self) -> ServedModel:
        """A connection, which the caller closes."""
        return ServedModel(self.name, self.inference, self.grpc)


def prepare(folder: Path, library: Path | None, page: Path | None) -> preparation.Preparation:
    """What the configuration of the model in ``folder`` needs. Raises UserError."""
    return preparation.prepare(folder, library or build.ensure(), page)


def measure(
    address: Address,
    task: profiler.Task,
    path: Path,
    topology: Topology,
    report: Callable[[profiler.Progress], None],
) -> Profile:
    """A profile of the model, measured where it is served. Raises UserError."""
    model = address.open()
    try:
        return profiling.run(model, task, path, topology, report)
    finally:
        model.close()


def largest_batch(address: Address) -> int:
    """Of the model, as its configuration says. Raises UserError."""
    model = address.open()
    try:
        return int(model.config().get("max_batch_size", 0))
    finally:
        model.close()


def plan(profile: Profile, nodes: tuple[int, ...], batch: int, **limits: Any) -> planning.Plan:
    """The best plan in which all instances have the same threads. Raises UserError."""
    plans, problem = [], None
    for threads in sorted({threads for threads, _ in profile.cells}):
        try:
            plans.append(planning.plan(only(profile, threads), nodes, batch, **limits))
        except UserError as error:
            problem = error
    if not plans:
        raise problem or UserError(f"the profile of {profile.provenance.model} has no cells yet")
    if limits.get("slo_ms") is not None:
        return max(plans, key=lambda each: each.chosen.rate)
    return min(plans, key=lambda each: each.chosen.latency_ms)


def plan_each(profile: Profile, nodes: tuple[int, ...], **limits: Any) -> list[planning.Plan]:
    """Such plans for every power of two that fits. Raises UserError if none does."""
    found: list[planning.Plan] = []
    largest = max(1, sum(nodes)) * min(profile.batch, limits.get("cap") or profile.batch)
    for size in batch_sizes(largest):
        try:
            found.append(plan(profile, nodes, size, **limits))
        except UserError:
            if not found:
                raise
            break  # what is larger does not fit either
    return found


class Adopted:
    """A model under control, until it is closed."""

    def __init__(
        self,
        address: Address,
        terms: Terms,
        profile: Path | None,
        cores: int,
        settings: ConfigurationSettings | None = None,
    ) -> None:
        """Without a ``profile`` its instances stay as they are. Raises UserError."""
        settings = settings or ConfigurationSettings()
        self.model = address.open()
        try:
            config = self.model.config()
            known = self._profile(profile, config, cores) if profile else None
            self.page = StrategyPage(Path(page_of(config)))
        except BaseException:
            self.model.close()
            raise
        threads = threads_of(config)
        ceiling = max(1, int(config.get("max_batch_size", 1)))
        choices = None
        if known is not None:
            ways = possible(threads, known)
            choices = Choices(known, ceiling, cores, ways, settings)
        present = Target(*present_of(config), 0)
        self.controller = Controller(
            self.model, self.page, terms, present, choices, pause_s=settings.timeout_s
        )

    def _profile(self, path: Path, config: dict[str, Any], cores: int) -> Profile:
        group_of(config)
        try:
            known = load_profile(path)
            here = profiling.provenance(self.model, config, known.provenance.sample_hash, cores)
            known.check_usable(replace(here, cores=known.provenance.cores))
            if not known.complete:
                raise ProfileError(f"{path} is not complete: run `shunter profile` again")
            if known.doubt:
                again = "measure it again on an idle host: `shunter profile --restart`"
                raise ProfileError(f"{path} was {known.doubt}: {again}")
        except (ProfileError, OSError) as error:
            raise UserError(str(error)) from error
        return known

    def close(self) -> None:
        """Triton batches as it likes again; its instances stay."""
        self.controller.close()
        self.page.close()
        self.model.close()
