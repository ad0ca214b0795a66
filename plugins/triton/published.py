"""What stands on the control page of a model version, and what the controller says there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from shunter.allocator.cpus.cpu_list import format_cpu_list, parse_cpu_list
from shunter.allocator.planning.configuration import Configuration, InstanceGroup
from shunter.batching.page.layout import Claims
from shunter.batching.page.records import (
    Commands,
    GroupTelemetry,
    NetworkTelemetry,
    SlotIdentity,
    SlotTelemetry,
)
from shunter.batching.page.slices import ALL_CPUS, SliceSet, bits, of_cpus
from shunter.batching.queue.slo_window import SloWindow
from shunter.nic_frontend.server.model_policy import Policy
from shunter.plugins.triton.layout import CLAIMS_UNREAD

AUTO = "auto"
"""Cores that each worker chooses and keeps."""
_COUNTED = tuple(
    (each.name, len(each.default) if isinstance(each.default, tuple) else 1)
    for each in fields(NetworkTelemetry)
    if each.name != "network_attainment_ppm"
)
_LONGEST = 255
_MOST = 2**31 - 1


def counted_of(state: Mapping[str, Any]) -> NetworkTelemetry:
    """The counters of the dispatcher, which are the same whoever brings it requests."""
    words, found, at = state["telemetry"], {}, 0
    for name, count in _COUNTED:
        part = tuple(words[at : at + count])
        found[name] = part if count > 1 else part[0]
        at += count
    return NetworkTelemetry(**found)


def telemetry_of(state: Mapping[str, Any], window: SloWindow, now_ns: int) -> SlotTelemetry:
    """Counters of a slot out of what the backend says of a function."""
    counted = counted_of(state)
    shares = window.attainment_ppm(counted, now_ns)
    named = {name.removeprefix("network_"): getattr(counted, name) for name, _ in _COUNTED}
    late = counted.network_slo_late
    good = (max(0, a - b) for a, b in zip(counted.network_answered, late, strict=True))
    strict, best_effort = good
    busy = [each for each in state["pids"].values() if each]
    return SlotTelemetry(
        **named,
        updated_ns=now_ns,
        queued=state["waiting"],
        oldest_arrival_ns=state["oldest_ns"],
        answered_late=late,
        good=(strict, best_effort),
        in_flight_requests=state["running"],
        in_flight_batches=state["running_batches"],
        ready_workers=len(state["pids"]),
        busy_workers=len(busy),
        threshold_milli=round(min(state["threshold"], 1e9) * 1e3),
        service_ns_by_size=state["service_ns"],
        strict_batches=state["strict_batches"],
        strict_batch_ns=state["strict_batch_ns"],
        attainment=(shares[0] + 1, shares[1] + 1),
    )


def groups_of(
    configuration: Configuration,
    members: Mapping[int, int],
    state: Mapping[str, Any],
    places: Sequence[GroupTelemetry],
) -> list[GroupTelemetry]:
    """How the worker groups stand. ``members``: the group of each process; ``places``: where each
    runs, and whether it gives way. All share the fitted latency: a function has one queue."""
    found = []
    for number, (group, place) in enumerate(zip(configuration, places, strict=True)):
        busy = [ns for pid, ns in state["pids"].items() if members.get(pid) == number]
        alone = len(configuration) == 1
        found.append(
            replace(
                place,
                group_ready=len(busy),
                group_busy=sum(1 for ns in busy if ns),
                group_batches=state["batches"] if alone else 0,
                group_requests=state["answered"] if alone else 0,
                group_cap=group.batch,
                group_threads=group.threads,
                group_instances=group.instances,
                group_fixed_ns=state["fixed_ns"] if state["fitted"] else 0,
                group_per_request_ns=state["per_request_ns"] if state["fitted"] else 0,
                group_error_ns=state["error_ns"] if state["fitted"] else 0,
                group_fitted=state["fitted"],
            )
        )
    return found


NO_STATE: Mapping[str, Any] = {
    "pids": {},
    "fitted": 0,
    **dict.fromkeys(("batches", "answered", "fixed_ns", "per_request_ns", "error_ns"), 0),
}
"""Of a function that the backend does not have now."""


def clipped(identity: SlotIdentity) -> SlotIdentity:
    """The same with texts that fit: of each its first line, which says what and why."""
    texts = {name: getattr(identity, name) for name in ("last_change", "problem")}
    return replace(identity, **{n: _first_line(t) for n, t in texts.items()})


def _first_line(text: str) -> str:
    return text.partition("\n")[0].encode()[:_LONGEST].decode(errors="ignore")


def wanted_of(commands: Commands) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration that is wanted, and on which cores each group: a list, :data:`AUTO`, or
    none of its own."""
    count = commands.slot.wanted_groups
    groups = [each for each in commands.groups[:count] if each.wanted_instances]
    configuration = tuple(
        InstanceGroup(each.wanted_instances, each.wanted_threads, max(1, each.wanted_batch))
        for each in groups
    )
    usual = AUTO if commands.slot.wanted_pin else ""
    cores = (format_cpu_list(bits(each.wanted_cpus)) or usual for each in groups)
    return configuration, tuple(cores)


def devices_of(commands: Commands) -> tuple[str, ...]:
    """Where the wanted configuration shall run, of groups that are not wanted on CPUs."""
    groups = commands.groups[: commands.slot.wanted_groups]
    return tuple(g.wanted_device for g in groups if g.wanted_instances and g.wanted_device)


def slices_of(cores: str) -> SliceSet:
    """Where workers on these cores run."""
    return of_cpus(parse_cpu_list(cores)) if cores not in ("", AUTO) else ALL_CPUS


@dataclass(frozen=True)
class Told(Policy):
    """Numbers to decide by, and who may say that he is strict."""

    generation: int = 0
    """Of its workers; what was learnt of others is forgotten."""
    claims: int = Claims.ALL
    strict_key: tuple[int, ...] = (0, 0, 0, 0)
    """SHA-256 of the secret that :attr:`Claims.WITH_KEY` asks for."""


def told_of(
    policy: Policy, generation: int, claims: int, strict_key: Sequence[int], *, guarded: bool
) -> Told:
    """``claims``: of the page; while that says nothing nobody may claim anything, if the settings
    may forbid it, ``guarded``."""
    if claims == Claims.UNKNOWN:
        claims = CLAIMS_UNREAD if guarded else Claims.ALL
    return Told(
        **asdict(policy), generation=generation, claims=claims, strict_key=tuple(strict_key)
    )
