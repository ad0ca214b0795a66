"""Which configuration an existing model gets: instances, threads and a cap.

All instances of a model of Triton are alike, so Packrat's choice is asked for each number of
threads alone, and the best of these answers is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shunter.allocator.planning.configuration import InstanceGroup
from shunter.allocator.planning.optimizer import Choice
from shunter.allocator.planning.profile import Profile
from shunter.plugins.control.planned_model import PlannedModel
from shunter.plugins.control.settings_keys import ConfigurationSettings


@dataclass(frozen=True)
class Target:
    """What the model shall have."""

    instances: int
    threads: int
    cap: int

    def __str__(self) -> str:
        """As a configuration is written."""
        return str(InstanceGroup(self.instances, self.threads, self.cap))


def only(profile: Profile, threads: int) -> Profile:
    """The cells of one number of threads."""
    cells = {key: cell for key, cell in profile.cells.items() if key[0] == threads}
    return replace(profile, threads=threads, cells=cells)


def measured_threads(profile: Profile) -> list[int]:
    """Numbers of threads that have cells."""
    return sorted({threads for threads, _ in profile.cells})


@dataclass
class Choices:
    """Follows the load of one model; its instances are chosen by the optimizer for all models."""

    profile: Profile
    ceiling: int
    """Most rows of a batch, as the model's configuration says."""
    cores: int
    threads: tuple[int, ...]
    """Numbers of threads that it can have."""
    settings: ConfigurationSettings
    _models: dict[int, PlannedModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """One plan for each number of threads; raises ValueError when none was measured."""
        known = set(measured_threads(self.profile))
        for threads in self.threads:
            if threads in known:
                planned = PlannedModel((self.profile.provenance.model, ""))
                planned.use(only(self.profile, threads), self.ceiling)
                planned.tune(self.settings)
                self._models[threads] = planned
        if not self._models:
            raise ValueError(f"no cells with {', '.join(map(str, self.threads))} threads")

    def look(self, depth: float, now_ns: int) -> int | None:
        """Take the rows in the system; the batch that is wanted, at most once in a time-out."""
        wanted = [each.estimator.sample(depth, now_ns) for each in self._models.values()]
        return wanted[0]

    def best(self, batch: int) -> Target:
        """The best configuration for so many rows at once. Raises NoConfiguration."""
        found: list[tuple[float, int, Choice]] = []
        for threads, planned in self._models.items():
            nodes = (max(threads, self.cores // threads * threads),)
            choice = planned.best(nodes, float("inf"), batch)
            rounds = -(-batch // choice.batch)
            found.append((rounds * choice.latency_ms, threads, choice))
        _, threads, choice = min(found, key=lambda each: each[:2])
        caps = self._models[threads].capped(choice.configuration)
        return Target(choice.instances, threads, max(group.batch for group in caps))

    def is_worth_it(self, present: Target, target: Target, batch: int) -> bool:
        """Whether the change is expected to be a gain that counts."""
        expected = self._latency(present, batch)
        return expected is None or (
            (self._latency(target, batch) or 0.0) <= expected * (1 - self.settings.gain)
        )

    def _latency(self, target: Target, batch: int) -> float | None:
        planned = self._models.get(target.threads)
        if planned is None:
            return None
        while batch >= 1:  # what they cannot hold at once runs in rounds, as in ``best``
            found = planned.present([target.threads] * target.instances, self.cores, batch)
            if found is not None:
                return found.latency_ms
            batch //= 2
        return None


def possible(threads: int, profile: Profile) -> tuple[int, ...]:
    """Numbers of threads for a model whose code takes them (now ``threads``), or takes none (0)."""
    return tuple(measured_threads(profile)) if threads else (1,)
