"""What policy sees of a slot in a duty cycle and wants of it; what was read and written before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shunter.allocator.placement.device_seats import MemoryNeed, pause_ns
from shunter.allocator.planning.configuration import MAX_GROUPS, Configuration, InstanceGroup
from shunter.allocator.planning.profile import Profile
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.records import Commands, GroupTelemetry, SlotChange, SlotIdentity
from shunter.batching.page.slices import ALL_CPUS, Slice, SliceSet

LOGGER = logging.getLogger("shunter.devices")
TAKE_UP_NS = 30 * 10**9
"""What the server has not taken up by then is asked for again."""
NEVER = 1 << 62
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
    def by_device(self) -> list[tuple[str, int]]:
        """Device of each group, if it has one, and how many instances it is to have."""
        return [(each.group_device, each.group_instances) for each in self.groups()]

    @property
    def is_loaded(self) -> bool:
        """Whether as many workers are loaded as there are to be."""
        return all(each.group_ready >= each.group_instances for each in self.groups())

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


@dataclass
class Seated:
    """A model that is seated on devices: what was wanted of it, and what became of that."""

    name: str = ""
    wanted: Wanted | None = None
    asked_ns: int = 0
    failures: int = 0
    not_before_ns: int = 0
    """Before that what failed is not wanted again; anything else is."""
    instances: int = 1
    """Of the last configuration that was not wanted here: where there is less room it has fewer."""
    came: Sequence[tuple[str, int]] = ()
    """What became of what was wanted last, by device as :attr:`coming`."""
    memory: MemoryNeed = field(default_factory=MemoryNeed)
    """Of one of its instances on a device."""

    @property
    def coming(self) -> list[tuple[str, int]]:
        """Devices where it was wanted last, and how many instances on each."""
        if self.wanted is None:
            return []
        both = zip(self.wanted.slices, self.wanted.groups, strict=True)
        return [(where.device, group.instances) for where, group in both]

    def count(self, seen: Observed) -> None:
        """Keep the number of instances, unless the present ones were wanted here.

        An operator's own change leaves no number of a request: there is something else than before.
        """
        others = self.wanted is None or seen.change.change_request > self.wanted.request
        is_over = not self.asked_ns and seen.change.change_state != ChangeState.UNDER_WAY
        present = seen.by_device
        if present and (others or (is_over and present not in (self.came, self.coming))):
            self.instances = max(1, sum(count for _, count in present))

    def may_come(self, seen: Observed) -> bool:
        """Whether what was wanted may still come to be."""
        if self.wanted is None:
            return False
        is_next = seen.change.change_request < self.wanted.request
        return is_next or seen.change.change_state == ChangeState.UNDER_WAY

    def is_under_way(self, seen: Observed, now_ns: int, rooms: Mapping[str, int]) -> bool:
        """Whether a change is not over yet; one that failed is not tried again at once.

        ``rooms``: memory of the devices that are open.
        """
        if seen.change.change_state == ChangeState.UNDER_WAY:
            return True  # perhaps one that an earlier controller wanted
        if self.wanted is None:
            return False
        if seen.change.change_request < self.wanted.request:
            return now_ns < self.asked_ns + TAKE_UP_NS
        undone = seen.change.change_state == ChangeState.UNDONE
        if self.asked_ns and (undone or seen.by_device != self.coming):
            is_ours = seen.change.change_request == self.wanted.request
            self._fail(seen, now_ns, for_good=is_ours and not undone)
            if undone and rooms.keys().isdisjoint(seen.devices):
                tried = [rooms[name] // count for name, count in self.coming if name in rooms]
                self.memory.lacked(min(tried, default=0))
        if self.asked_ns:
            self.came = seen.by_device
        self.asked_ns = 0
        return False

    def _fail(self, seen: Observed, now_ns: int, *, for_good: bool) -> None:
        """Try again later. ``for_good``: the server says that it did what was wanted, and did not.

        So does one that knows no devices: it would load anew each time, and serve where it did.
        """
        pause = pause_ns(self.failures)
        self.failures += 1
        self.not_before_ns = NEVER if for_good else now_ns + pause
        LOGGER.warning(
            "%s: its workers are not where they should be (%s); again %s",
            seen.name,
            seen.identity.last_change or "no reason is known",
            "when there are other instances of GPUs, or settings"
            if for_good
            else f"in {pause // 10**9} s, or where there is more memory",
        )

    def may_try_again(self) -> None:
        """Things have changed: want again what failed."""
        self.failures = self.not_before_ns = 0

    def begin_anew(self) -> None:
        """Other devices, or settings: what was tried before says nothing."""
        self.may_try_again()
        self.memory.begin_anew()

    def move(
        self, seen: Observed, names: Sequence[str], instances: int, request: int, now_ns: int
    ) -> None:
        """Want it on these devices, unless it is there; with none, so many ``instances`` on the
        host.
        """
        groups = seen.groups()
        if not groups:
            return
        per_device = [(name, names.count(name)) for name in dict.fromkeys(names)]
        per_device = per_device[:MAX_GROUPS] or [("", instances)]
        is_there = per_device == seen.by_device
        if is_there or per_device != self.coming:
            self.may_try_again()
        if is_there or now_ns < self.not_before_ns:
            return
        first = groups[0]
        own = self.wanted.request if self.wanted else 0
        self.asked_ns = now_ns
        self.wanted = Wanted(
            max(own, request, seen.change.change_request) + 1,
            tuple(
                InstanceGroup(instances, first.group_threads, max(1, first.group_cap))
                for _, instances in per_device
            ),
            pin=False,
            slices=tuple(Slice(device=name) for name, _ in per_device),
        )
        LOGGER.info(
            "%s goes to %s",
            seen.name,
            ", ".join(f"{n} x {name}" if name else "the host" for name, n in per_device),
        )


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
