"""What the controller remembers of a slot: what it read, and what it wrote."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.allocator.planning.profile import Profile
from shunter.batching.page.records import Commands, SlotIdentity
from shunter.plugins.control.observed import GroupShare, Wanted


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a slot until its identity changes, or until it is time to look again."""

    sequence: int
    identity: SlotIdentity
    profile: Profile | None
    look_again: int


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


def _workers(identity: SlotIdentity) -> tuple[str, str, int, int]:
    return (
        identity.model_name,
        identity.model_version,
        identity.generation,
        identity.group_count,
    )
