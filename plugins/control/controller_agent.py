"""One duty cycle of the controller: what every live slot's commands shall be."""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Callable

from shunter.allocator.cpus.claims import CoreClaims, claims_path
from shunter.allocator.cpus.cores import free_cores
from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.cpus.topology import Topology
from shunter.allocator.memory.host import available_bytes
from shunter.batching.forming.spelling import hint
from shunter.batching.page.control_page import ControlPage, UnstableError
from shunter.batching.page.processes import parent_of
from shunter.batching.page.records import Commands, SlotIdentity
from shunter.plugins.control.capacity import Capacity
from shunter.plugins.control.fixed_policy import fixed_commands, with_configuration, with_shares
from shunter.plugins.control.observed import Known, Observed, Written
from shunter.plugins.control.padding_control import PaddingControl, write_header
from shunter.plugins.control.placement import Placement
from shunter.plugins.control.reconfiguration import Reconfiguration
from shunter.plugins.control.settings import Settings, SettingsError, key_digest
from shunter.plugins.profiling.profiles import ProfileStore

LOGGER = logging.getLogger("shunter.controller")
_LOOK_NS = 5 * 10**9
"""A new or changed profile is found after so long."""
_REGISTERED_NS = 60 * 10**9
"""After so long models that settings name should be there."""
_POLICY, _CLAIMS, _PADDING, _CAPACITY = -1, -2, -3, -4
"""In place of a slot: an error that is no single slot's."""
_ABOUT = {
    _POLICY: "every configuration is",
    _PADDING: "who may run beside whom is",
    _CAPACITY: "the number of instances, and who runs on which part of a GPU, is",
    _CLAIMS: "the cores of other servers are not known; this server's are",
}


class ControllerAgent:
    """Keeps the commands of every live slot up to date, one duty cycle per :meth:`do_work`."""

    def __init__(self, page: ControlPage, load_settings: Callable[[], Settings], pid: int) -> None:
        """Start with the settings, or with the defaults when these cannot be used."""
        self._page = page
        self._load_settings = load_settings
        self._pid = pid
        self._cycles = 0
        self._now_ns = 0
        """Of the duty cycle."""
        self._written: dict[int, Written] = {}
        self._known: dict[int, Known] = {}
        self._seen: dict[int, Observed] = {}
        self._complaints: dict[int, type[Exception]] = {}
        self._left_out: dict[int, str] = {}
        """By slot, why the lists by worker group are not in force."""
        self.settings = Settings()
        self._strict_key = b""
        self._ever_read = False
        self._read_ns: int | None = None
        """The first duty cycle after the settings were read; None once names were looked up."""
        self._profiles = ProfileStore()
        self._claims: CoreClaims | None = None
        self._placement = Placement(self._free_cpus, self.settings.placement)
        self._reconfiguration = Reconfiguration(
            self._free_nodes, available_bytes, self.settings.configuration, self._placement
        )
        self._capacity = Capacity(available_bytes)
        self._padding = PaddingControl(page, random.Random(), len(os.sched_getaffinity(0)))
        self.reload()

    def reload(self) -> bool:
        """Read the settings again; on an error say so, keep the last good ones, return False."""
        try:
            settings = self._load_settings()
            self._strict_key = key_digest(settings.classes)
            self.settings = settings
        except SettingsError as error:
            LOGGER.error("%s; the last good settings stay in force", error)
            self._page.tell_settings(valid=False)
            return False
        self._page.tell_settings(valid=True)
        self._ever_read = True
        self._reconfiguration.settings = self.settings.configuration
        self._placement.settings = self.settings.placement
        self._capacity.use(self.settings)
        self._complaints.clear()
        self._left_out.clear()
        self._read_ns = 0
        for written in self._written.values():
            written.settled = False
        return True

    def do_work(self, now_ns: int) -> int:
        """One duty cycle. Returns the number of slots whose commands it wrote, 0 when idle."""
        self._now_ns = now_ns
        live = self._page.live_slots()
        known = self._written.keys() | self._known.keys() | self._complaints.keys()
        for gone in known - {*live, *_ABOUT}:
            self._written.pop(gone, None)
            self._known.pop(gone, None)
            self._seen.pop(gone, None)
            self._complaints.pop(gone, None)
            self._left_out.pop(gone, None)
        self._reconfigure(live, now_ns)
        if self._ever_read:  # else it is not known; an earlier controller may have known it
            self._judge()
        written = 0
        for slot in live:
            try:
                written += self._tend(slot)
                self._complaints.pop(slot, None)
            except Exception as error:  # a broken slot must not stop the others
                self._complain(slot, error)
        self._look_names_up(now_ns)
        self._cycles += 1
        if self._ever_read:
            self._page.want_front_end(self.settings.nic.number)
            self._preempt(now_ns)
        self.beat(now_ns)
        return written

    def beat(self, now_ns: int) -> None:
        """Say that this controller lives, however long it is until the next duty cycle."""
        self._page.write_controller(self._pid, self._cycles, now_ns)

    def _look_names_up(self, now_ns: int) -> None:
        """Warn of settings for models that nobody registered, when all had time to be."""
        if self._read_ns is None:
            return
        self._read_ns = self._read_ns or now_ns
        if now_ns - self._read_ns >= _REGISTERED_NS:
            self._read_ns = None
            known = {seen.identity.model_name for seen in self._seen.values()}
            for name in sorted(self.settings.models.keys() - known):
                told = f"[models.{name}] in the settings: no such model is served"
                LOGGER.warning("%s", told + hint(name, known))

    def _tend(self, slot: int) -> bool:
        """Write a slot's commands if they are not what they should be; whether it did."""
        last = self._written.get(slot)
        sequence = self._page.identity_sequence(slot)
        ours = last is not None and self._page.command_sequence(slot) == last.command_sequence
        configuration = self._capacity.wanted(slot, self._reconfiguration.wanted(slot))
        shares = self._reconfiguration.shares(slot)
        unchanged = (
            last is not None and last.configuration is configuration and last.shares == shares
        )
        if unchanged and ours and last.settled and last.identity_sequence == sequence:
            return False
        identity = self._page.read_identity(slot)
        if not identity.live or (last is None and self._has_better_numbers(slot)):
            return False
        fixed = with_shares(self._fixed_commands(slot, identity), shares)
        wanted = with_configuration(fixed, configuration)
        if last is not None and ours and last.matches(identity, wanted):
            last.identity_sequence, last.settled = sequence, True
            last.configuration, last.shares = configuration, shares
            return False
        stored = self._page.write_commands(slot, *wanted)
        self._written[slot] = Written(identity, wanted, sequence, stored, configuration, shares)
        LOGGER.info(
            "slot %d: commands for %s %s, generation %d",
            slot,
            identity.model_name,
            identity.model_version,
            identity.generation,
        )
        return True

    def _fixed_commands(self, slot: int, identity: SlotIdentity) -> Commands:
        """What the operator set, without the model's lists where a class would have no group."""
        settings = self.settings.for_model(identity.model_name)
        groups = self._page.read_groups(slot, identity.group_count)
        try:
            commands = fixed_commands(settings, identity, [g.group_classes for g in groups])
        except ValueError as error:
            if self._left_out.get(slot) != str(error):
                self._left_out[slot] = str(error)
                LOGGER.error("%s; none of the model's lists by worker group is in force", error)
            return fixed_commands(settings.without_lists(), identity)
        self._left_out.pop(slot, None)
        return commands

    def _reconfigure(self, live: list[int], now_ns: int) -> None:
        """Let the policy see every slot; an error leaves the configurations as they are."""
        seen, requests = {}, {}
        for slot in live:
            try:
                self._seen[slot] = self._observe(slot)
            except UnstableError:
                pass  # told of when its commands are due; it counts as it was
            except Exception as error:  # such as a profile that nobody thought of
                self._complain(_POLICY, error)
            if slot in self._seen:
                seen[slot] = self._seen[slot]
                requests[slot] = self._page.wanted_request(slot)
        if not self._ever_read:
            return  # the settings that cannot be read may forbid it
        try:
            self._reconfiguration.observe(self._capacity.rest(seen), requests, now_ns)
        except Exception as error:  # serving goes on with what there is
            self._complain(_POLICY, error)
        try:
            self._capacity.do_work(self._page, seen, requests, now_ns)
        except Exception as error:
            self._complain(_CAPACITY, error)

    def _judge(self) -> None:
        """Say which requests may call themselves strict."""
        self._page.write_strict_key(self._strict_key)
        for slot, seen in self._seen.items():
            self._page.allow_strict(slot, self.settings.classes.claims(seen.identity.model_name))

    def _preempt(self, now_ns: int) -> None:
        """Say how models take turns and who may run beside whom."""
        settings = self.settings.preemption
        try:
            write_header(
                self._page, settings, available_bytes() if settings.memory_floor_mb else math.inf
            )
            identities = {slot: seen.identity for slot, seen in self._seen.items()}
            profiles = {slot: seen.profile for slot, seen in self._seen.items()}
            self._padding.do_work(identities, settings, now_ns, profiles)
            self._complaints.pop(_PADDING, None)
        except Exception as error:  # serving goes on with what there is
            self._complain(_PADDING, error)

    def _observe(self, slot: int) -> Observed:
        """One slot as policy sees it; only what changes all the time is read every time."""
        sequence = self._page.identity_sequence(slot)
        known = self._known.get(slot)
        if known is None or known.sequence != sequence or self._now_ns >= known.look_again_ns:
            identity = self._page.read_identity(slot)
            profile = self._profiles.of(identity.archive)
            again = self._now_ns + _LOOK_NS
            known = self._known[slot] = Known(sequence, identity, profile, again)
        identity = known.identity
        return Observed(
            identity=identity,
            depth=self._page.depth(slot),
            groups=lambda: self._page.read_groups(slot, identity.group_count),
            change=self._page.read_change(slot),
            profile=known.profile,
            has_lists=self.settings.for_model(identity.model_name).has_lists,
            arrivals=self._page.arrivals(slot),
        )

    def _free_nodes(self) -> list[int]:
        """Physical cores of each NUMA node that models may have: no other server's workers."""
        topology = read_topology()
        return free_cores(topology, self._taken(topology))

    def _free_cpus(self) -> Topology:
        """The CPUs among them, of which sets are made."""
        topology = read_topology()
        taken = self._taken(topology)
        return topology.only(cpu.id for cpu in topology.cpus if cpu.id not in taken)

    def _taken(self, topology: Topology) -> set[int]:
        """CPUs that workers of other servers hold."""
        if self._claims is None:
            try:
                self._claims = CoreClaims(claims_path(os.environ, os.geteuid()))
            except OSError as error:
                # Then no worker is pinned either, and says so.
                self._complain(_CLAIMS, error)
                return set()
        owner, holders = self._page.header().owner_pid, self._claims.holders
        return {
            cpu.id
            for cpu in topology.cpus
            if any(parent_of(pid) != owner for pid in holders(cpu.id))
        }

    def _has_better_numbers(self, slot: int) -> bool:
        """Whether an earlier controller read settings that this one never could."""
        sequence = self._page.command_sequence(slot)
        return not self._ever_read and sequence != 0 and sequence % 2 == 0

    def _complain(self, slot: int, error: Exception) -> None:
        """Log an error once, not in every cycle."""
        if self._complaints.get(slot) is not type(error):
            self._complaints[slot] = type(error)
            what = _ABOUT.get(slot, f"slot {slot} is")
            LOGGER.error("%s left as it is: %s", what, error)
