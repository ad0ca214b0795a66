"""What policy sees of a slot in a duty cycle and wants of it; what was read and written before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shunter.allocator.planning.configuration import Configuration, InstanceGroup
from shunter.allocator.planning.profile import Profile
from shunter.batching.page.records import Commands, GroupTelemetry, SlotChange, SlotIdentity
from shunter.batching.page.slices import ALL_CPUS, Slice, SliceSet

ENOUGH = 32
"""Batches after which a worker group's fitted line is believed."""


@dataclass(frozen=True)
class GroupShare:
    """What a worker group gets of each class: strict, best effort."""

    preference: tuple[int, int] = (0, 0)
    """Groups with a lower number are filled first; those with the same one together."""
    weight_milli: tuple[int, int] = (1000, 1000)
    """Factor of its largest batch, in 1/1000."""


@dataclass(frozen=True)
class Wanted:
    """What the page says about a slot's configuration."""

    request: int
    groups: Configuration
    pin: bool
    slices: tuple[Slice, ...] = ()
    """Of the groups, as far as they are to have one of their own."""


@dataclass(frozen=True)
class Observed:
    """One slot in this duty cycle."""

    identity: SlotIdentity
    depth: int
    """Requests in the system."""
    groups: Callable[[], Sequence[GroupTelemetry]]
    change: SlotChange
    profile: Profile | None
    has_lists: bool = False
    """Whether the settings say something by worker group."""
    arrivals: int = 0
    """Requests offered so far."""

    @property
    def name(self) -> str:
        """``name/version``."""
        return f"{self.identity.model_name}/{self.identity.model_version}"

    @property
    def configuration(self) -> Configuration:
        """What runs now."""
        return tuple(
            InstanceGroup(max(1, g.group_instances), g.group_threads, max(1, g.group_cap))
            for g in self.groups()
        )

    @property
    def places(self) -> list[SliceSet]:
        """CPUs of each group; 0 for one that may run on all of them."""
        return [g.group_slices & ALL_CPUS if not _anywhere(g) else 0 for g in self.groups()]

    @property
    def threads(self) -> list[int]:
        """Threads of each present instance, 0 where the handler decides."""
        return [g.group_threads for g in self.groups() for _ in range(g.group_instances)]

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of its instances, one name for each instance that has one."""
        groups = [group for group in self.groups() if group.group_device]
        return tuple(g.group_device for g in groups for _ in range(max(1, g.group_instances)))

    @property
    def kept(self) -> int:
        """Cores that its workers want for themselves; one that runs wherever it likes wants none.

        Workers that give way to strict work want none either.
        """
        return sum(g.group_threads * g.group_instances for g in self.groups() if not g.group_yields)

    @property
    def fitted(self) -> GroupTelemetry | None:
        """The first group whose line is believed; None where none says what a batch takes.

        Those that stand still for strict work do not, nor several that fight for the same threads.
        """
        groups = self.groups()
        alone = sum(each.group_instances for each in groups) == 1
        for each in groups:
            if each.group_fitted >= ENOUGH and not each.group_yields:
                return each if each.group_threads or alone else None
        return None

    @property
    def yields(self) -> bool:
        """Whether all its workers give way to strict work."""
        groups = self.groups()
        return bool(groups) and all(g.group_yields for g in groups)

    @property
    def obstacle(self) -> str:
        """Why the controller cannot change a configuration that it may change; empty: it can."""
        if self.profile is None:
            return "no profile that can be used here"
        return "lists by worker group in shunter.toml" if self.has_lists else ""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a slot until its identity changes, or until it is time to look again."""

    sequence: int
    identity: SlotIdentity
    profile: Profile | None
    look_again_ns: int


@dataclass(slots=True)
class Written:
    """What this controller last wrote to a slot, and for whom."""

    identity: SlotIdentity
    commands: Commands
    identity_sequence: int
    command_sequence: int
    configuration: Wanted | None = None
    shares: tuple[GroupShare, ...] = ()
    settled: bool = True
    """False when the settings were read again since."""

    def matches(self, identity: SlotIdentity, commands: Commands) -> bool:
        """Whether these are the same commands for the same workers of the same model version."""
        return commands == self.commands and _workers(identity) == _workers(self.identity)


def _anywhere(group: GroupTelemetry) -> bool:
    return group.group_slices & ALL_CPUS in (0, ALL_CPUS)


def _workers(identity: SlotIdentity) -> tuple[str, str, int, int]:
    return (
        identity.model_name,
        identity.model_version,
        identity.generation,
        identity.group_count,
    )
