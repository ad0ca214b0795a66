"""The status as the control page has it: on the server's own host, without a management key."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shunter.batching.page import front_end_page
from shunter.batching.page.control_page import ControlPage, PageError, UnstableError
from shunter.batching.page.holds import holding_models
from shunter.batching.page.layout import CLASSES, ChangeState, RunnerState
from shunter.batching.page.processes import is_alive
from shunter.batching.page.records import (
    FrontEndState,
    NetworkTelemetry,
    PageHeader,
    RunnerLine,
    SlotIdentity,
    SlotNetwork,
    SlotTelemetry,
)
from shunter.batching.page.runners import read_runners
from shunter.batching.page.runtime import RuntimeFolderError, live, only_live
from shunter.plugins.errors import UserError
from shunter.plugins.view import page_groups, pool_memory

COUNTERS = (
    "arrivals",
    "answered",
    "answered_late",
    "expired",
    "rejected",
    "failed",
    "abandoned",
    "good",
    "slo_met",
)

NETWORK_COUNTERS = {name: name for name in COUNTERS if name != "good"} | {
    "answered_late": "slo_late"
}
"""Of requests by the network: what the page calls them."""

CONTROLLER_STALE_MS = 5000
FRONT_END_STALE_NS = 3_000_000_000
"""It writes at least once a second; what is older is of one that is gone."""


def fetch(runtime: Path | None) -> dict[str, Any]:
    """Status of the server with that runtime folder, by default the only running one.

    The shape is that of ``GET /shunter/status`` as far as the page knows.
    """
    try:
        folder = only_live(runtime)
        with ControlPage.attach(folder.control, writable=False) as page:
            pools = pool_memory.read(folder.path)
            return {"runtime": str(folder.path), **_status(page), "pools": pools}
    except (RuntimeFolderError, PageError) as error:
        raise UserError(str(error)) from error


def stores() -> list[Path]:
    """Folders of this host from which running servers have taken models."""
    found: dict[Path, None] = {}
    for folder in live(os.environ):
        with (
            contextlib.suppress(PageError, UnstableError, OSError),
            ControlPage.attach(folder.control, writable=False) as page,
        ):
            for slot in page.live_slots():
                if archive := page.read_identity(slot).archive:
                    found[Path(archive).parent] = None
    return list(found)


def _status(page: ControlPage) -> dict[str, Any]:
    header, now = page.header(), time.monotonic_ns()
    beat = header.controller_heartbeat_ns
    age_ms = (now - beat) / 1e6 if beat else None
    live = page.live_slots()
    return {
        "version": importlib.metadata.version("shunter"),
        **_server(header.server),
        "pid": header.owner_pid,
        "uptime_s": time.time() - header.created_unix_ns / 1e9,
        "draining": False,
        "controller": {
            "pid": header.controller_pid,
            "state": _controller(header.controller_pid, age_ms),
            "restarts": None,
            "heartbeat_age_ms": age_ms,
            "settings_valid": not header.settings_invalid,
        },
        "devices": devices(header),
        "front_end": _front_end(page, now, header.front_end_wanted != 0),
        "models": [model for slot in live if (model := _model(page, slot, now))],
        "stock_models": [],
    }


def devices(header: PageHeader) -> dict[str, Any] | None:
    """How the changes of GPUs' instances stand; None where the controller changes none."""
    if not header.mig_layouts and not header.mig_problem:
        return None
    return {
        "layouts": header.mig_layouts,
        "changing": header.mig_changing,
        "changes": header.mig_changes,
        "undone": header.mig_undone,
        "problem": header.mig_problem,
    }


def _server(name: str) -> dict[str, str]:
    """Which one it is: one that does not say so is the usual one, of the version installed here."""
    if name:
        return {"server": name}
    return {"torchserve": importlib.metadata.version("torchserve")}


def _controller(pid: int, age_ms: float | None) -> str:
    if age_ms is not None and age_ms < CONTROLLER_STALE_MS:
        return "running"
    return "hung" if is_alive(pid) else "off"


def _serves(state: FrontEndState, now: int) -> bool:
    beat = state.front_end_beat_ns
    return beat != 0 and now - beat < FRONT_END_STALE_NS


def _front_end(page: ControlPage, now: int, wanted: bool) -> dict[str, Any]:
    state, counters = front_end_page.read(page)
    serves = _serves(state, now)
    trips = state.front_end_rtt_count
    return {
        "state": "running" if serves else _absent(state, wanted),
        "pid": state.front_end_pid if serves else 0,
        "port": state.front_end_port if serves else 0,
        "restarts": None,
        "sessions": state.front_end_sessions if serves else 0,
        "landing": _landing(state) if serves else None,
        "mean_rtt_ms": state.front_end_rtt_ns / 1e6 / trips if trips else None,
        "counters": counters,
    }


def _landing(state: FrontEndState) -> dict[str, Any]:
    """The pool in which payloads land; what comes when it has no room is sent again."""
    blocks, free = state.landing_blocks, state.landing_free
    return {"blocks": blocks, "free": free, "scarce": free <= blocks // 4}


def _absent(state: FrontEndState, wanted: bool) -> str:
    """What a front end that says nothing does."""
    if not wanted:
        return "off"
    return "hung" if is_alive(state.front_end_pid) else "restarting"


def _network(page: ControlPage, slot: int, now: int) -> dict[str, Any] | None:
    """None too when the one that wrote it is gone: nobody has cleared its numbers."""
    told = front_end_page.read_network(page, slot)
    if told == SlotNetwork() or not _serves(front_end_page.read(page).state, now):
        return None
    numbers = {name.removeprefix("network_"): value for name, value in asdict(told).items()}
    return numbers | _network_telemetry(front_end_page.read_telemetry(page, slot))


def _network_telemetry(told: NetworkTelemetry) -> dict[str, Any]:
    counters = {name: getattr(told, f"network_{word}") for name, word in NETWORK_COUNTERS.items()}
    means = [
        ns / 1e6 / count if count else 0.0
        for ns, count in zip(told.network_latency_ns, told.network_answered, strict=True)
    ]
    shares = [None if ppm < 0 else ppm / 1e6 for ppm in told.network_attainment_ppm]
    return {
        "slo_attainment": dict(zip(CLASSES, shares, strict=True)),
        "mean_latency_ms": dict(zip(CLASSES, means, strict=True)),
        "counters": {name: dict(zip(CLASSES, n, strict=True)) for name, n in counters.items()},
        "batches": {str(1 << k): n for k, n in enumerate(told.network_batches_by_size) if n},
    }


def _preemption(page: ControlPage, slot: int, now: int) -> dict[str, Any] | None:
    """How a model gives way to strict work, None when it does not."""
    if not page.yields(slot):
        return None
    beside = page.read_padding(slot)
    apart = [other for other in page.live_slots() if beside is not None and not beside >> other & 1]
    runners = [line for line in read_runners(page) if line.runner_slot == slot]
    return {
        "runners": [_runner(line, now) for line in runners],
        "not_beside": None if beside is None else _names(page, apart),
    }


def _runner(line: RunnerLine, now: int) -> dict[str, Any]:
    return {
        "pid": line.runner_pid,
        "state": RunnerState(line.runner_state).name.lower(),
        "since_ms": (now - line.runner_since_ns) / 1e6,
        "batches": line.batches,
        "preemptions": line.preemptions,
        "parked_ms": line.parked_ns / 1e6,
        "longest_yield_ms": line.yield_worst_ns / 1e6,
        "drops": line.drops,
    }


def _names(page: ControlPage, slots: Sequence[int]) -> list[str]:
    """``name/version`` of slots, but for those that change just now."""
    names = []
    for slot in slots:
        try:
            identity = page.read_identity(slot)
        except UnstableError:
            continue
        names.append(f"{identity.model_name}/{identity.model_version}")
    return names


def _model(page: ControlPage, slot: int, now: int) -> dict[str, Any] | None:
    try:
        identity = page.read_identity(slot)
    except UnstableError:
        return None
    under_way = page.read_change(slot).change_state == ChangeState.UNDER_WAY
    told, groups = page.read_telemetry(slot), page.read_groups(slot, identity.group_count)
    return {
        "name": identity.model_name,
        "version": identity.model_version,
        "default": True,
        "generation": identity.generation,
        "state": "changing" if under_way else "serving",
        "batch_size": identity.registered_batch_size,
        "max_batch_delay_ms": identity.registered_max_wait_us / 1e3,
        "slo_ms": identity.slo_us / 1e3 or None,
        "class": None,
        "configuration": ",".join(
            f"{g.group_instances}x{g.group_threads}x{g.group_cap}" for g in groups
        ),
        "auto": identity.auto == 1,
        "last_change": identity.last_change,
        "problem": identity.problem,
        "network": _network(page, slot, now),
        "holds": bool(holding_models(page, now) >> slot & 1),
        "preemption": _preemption(page, slot, now),
        **_load(identity, told, now),
        "groups": [page_groups.told(each, identity.generation) for each in groups],
    }


def _load(identity: SlotIdentity, told: SlotTelemetry, now: int) -> dict[str, Any]:
    oldest = [now - arrival for arrival in told.oldest_arrival_ns if arrival]
    counters = {name: dict(zip(CLASSES, getattr(told, name), strict=True)) for name in COUNTERS}
    batches, service_ns = sum(told.batches_by_size), sum(told.service_ns_by_size)
    return {
        "queue": {
            "capacity": identity.queue_capacity,
            **dict(zip(CLASSES, told.queued, strict=True)),
            "oldest_wait_ms": max(oldest, default=0) / 1e6,
        },
        "in_flight": {"requests": told.in_flight_requests, "batches": told.in_flight_batches},
        "threshold": told.threshold_milli / 1e3,
        "slo_attainment": {
            each: page_groups.share(one_more)
            for each, one_more in zip(CLASSES, told.attainment, strict=True)
        },
        "counters": {**counters, "retried": told.retried, "poisoned": told.poisoned},
        "batches": {str(1 << k): n for k, n in enumerate(told.batches_by_size) if n},
        "mean_service_ms": service_ns / 1e6 / batches if batches else 0.0,
    }
