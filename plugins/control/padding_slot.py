"""What padding sees of a slot in a duty cycle: groups, runners, and what their passes want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shunter.allocator.placement.beside import Pass
from shunter.allocator.planning.profile import Profile
from shunter.batching.page.layout import RunnerState
from shunter.batching.page.records import GroupTelemetry, RunnerLine, SlotIdentity
from shunter.batching.page.slices import ALL_CPUS, EVERY, SliceSet


@dataclass
class PaddingSlot:
    """One slot."""

    identity: SlotIdentity
    groups: list[GroupTelemetry]
    on_network: bool = False
    """Whether the network front end feeds workers of it."""
    runners: list[RunnerLine] = field(default_factory=list)
    profile: Profile | None = None

    def slices(self, yields: bool) -> SliceSet:
        """Where its groups that give way run, or the others; 0: there are none."""
        masks = [
            group.group_slices or EVERY
            for group in self.groups
            if bool(group.group_yields) is yields
        ]
        if self.on_network and not yields:
            masks.append(ALL_CPUS)  # where these workers run is not on the page
        return _union(masks)

    @property
    def has_work(self) -> bool:
        """Whether a group that gives way has a batch now, running or parked."""
        return any(group.group_yields and group.group_busy for group in self.groups) or any(
            line.runner_state != RunnerState.RUNNING for line in self.runners
        )

    @property
    def batches(self) -> int:
        """Batches that its runners ran."""
        return sum(line.batches for line in self.runners)

    @property
    def name(self) -> str:
        """``name/version``."""
        return f"{self.identity.model_name}/{self.identity.model_version}"

    @property
    def workers(self) -> tuple[str, str, int]:
        """Another value stands for other workers, with which everything is to be found out anew."""
        identity = self.identity
        return identity.model_name, identity.model_version, identity.generation

    @property
    def strict_pass(self) -> Pass | None:
        """From the fitted latency of its groups.

        None where a group does not say how many threads it has, or nothing was fitted.
        """
        groups = [group for group in self.groups if not group.group_yields]
        fitted = [group for group in groups if group.group_fitted]
        if not fitted or not all(group.group_threads for group in groups):
            return None
        group = min(fitted, key=lambda each: each.group_fixed_ns + each.group_per_request_ns)
        solo_ns = max(1, group.group_fixed_ns + group.group_per_request_ns)
        return Pass(solo_ns, group.group_threads, self._bandwidth(group.group_threads))

    @property
    def best_effort_pass(self) -> Pass | None:
        """The heaviest of its runners' passes, None when one of them has not been measured."""
        if not self.runners or not all(line.solo_ns for line in self.runners):
            return None
        line = max(self.runners, key=lambda each: each.segment_ns or each.solo_ns)
        cores = line.solo_cpu_ns / line.solo_ns or None
        return Pass(line.solo_ns, cores, self._bandwidth(cores), line.segment_ns)

    def _bandwidth(self, cores: float | None) -> float | None:
        """What it wants of the memory while it keeps so many cores busy, by its profile."""
        if self.profile is None or cores is None:
            return None
        return self.profile.bandwidth(max(1, round(cores)))


def _union(masks: Sequence[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
