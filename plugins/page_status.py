"""The status as the control page has it: on the server's own host, without a management key."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shunter.batching import front_end_page
from shunter.batching.control_page import ControlPage, PageError, UnstableError
from shunter.batching.holds import STALE_NS
from shunter.batching.layout import (
    CLASSES,
    HEADER_SIZE,
    HOLDER_COUNT,
    HOLDER_FIELDS,
    HOLDER_SIZE,
    SLOT_COUNT,
    SLOT_WORDS,
    ChangeState,
    RunnerState,
)
from shunter.batching.page_records import (
    FrontEndState,
    RunnerLine,
    SlotIdentity,
    SlotTelemetry,
)
from shunter.batching.processes import is_alive
from shunter.batching.runtime import RuntimeFolderError, only_live
from shunter.plugins.errors import UserError
from shunter.plugins.padding_control import living_runners

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

FRONT_END_STALE_NS = 3_000_000_000
"""It writes five times a second; what is older is of one that is gone."""


def fetch(runtime: Path | None) -> dict[str, Any]:
    """Status of the server with that runtime folder, by default the only running one.

    The shape is that of ``GET /shunter/status`` as far as the page knows.
    """
    try:
        folder = only_live(runtime)
        with ControlPage.attach(folder.control, writable=False) as page:
            return {"runtime": str(folder.path), **_status(page)}
    except (RuntimeFolderError, PageError) as error:
        raise UserError(str(error)) from error


def _status(page: ControlPage) -> dict[str, Any]:
    header, now = page.header(), time.monotonic_ns()
    beat = header.controller_heartbeat_ns
    age_ms = (now - beat) / 1e6 if beat else None
    runners = living_runners(page)
    return {
        "version": importlib.metadata.version("shunter"),
        "torchserve": importlib.metadata.version("torchserve"),
        "pid": header.owner_pid,
        "uptime_s": time.time() - header.created_unix_ns / 1e9,
        "draining": False,
        "controller": {
            "pid": header.controller_pid,
            "state": "running" if age_ms is not None and age_ms < 5000 else "off",
            "restarts": None,
            "heartbeat_age_ms": age_ms,
        },
        "front_end": _front_end(page, now, header.front_end_wanted != 0),
        "holders": _holders(page, now),
        "models": [
            m for m in (_model(page, slot, runners, now) for slot in page.live_slots()) if m
        ],
        "stock_models": [],
    }


def _serves(state: FrontEndState, now: int) -> bool:
    beat = state.front_end_beat_ns
    return beat != 0 and now - beat < FRONT_END_STALE_NS


def _front_end(page: ControlPage, now: int, wanted: bool) -> dict[str, Any]:
    state, counters = front_end_page.read(page)
    serves = _serves(state, now)
    trips = state.front_end_rtt_count
    return {
        "state": "running" if serves else "restarting" if wanted else "off",
        "pid": state.front_end_pid if serves else 0,
        "port": state.front_end_port if serves else 0,
        "restarts": None,
        "sessions": state.front_end_sessions if serves else 0,
        "mean_rtt_ms": state.front_end_rtt_ns / 1e6 / trips if trips else None,
        "counters": counters,
    }


def _network(page: ControlPage, slot: int, now: int) -> dict[str, int] | None:
    """None too when the one that wrote it is gone: nobody has cleared its numbers."""
    told = front_end_page.read_network(page, slot)
    if not told.network_entries or not _serves(front_end_page.read(page).state, now):
        return None
    return {name.removeprefix("network_"): value for name, value in asdict(told).items()}


def _holders(page: ControlPage, now: int) -> list[dict[str, Any]]:
    """Who holds best-effort work up now, and for which models."""
    found = []
    for index in range(HOLDER_COUNT):
        start = (HEADER_SIZE + index * HOLDER_SIZE) // 8
        words = {
            name: page.words[start + at.offset // 8 : start + at.offset // 8 + at.field.count]
            for name, at in HOLDER_FIELDS.items()
        }
        mask, pid = words["hold_mask"][0], words["holder_pid"][0]
        if not mask or abs(now - words["holder_heartbeat_ns"][0]) > STALE_NS or not is_alive(pid):
            continue
        found.append(
            {
                "pid": pid,
                "slices": f"{mask % 2**64:#x}",
                "models": _names(page, _slots_of(words["hold_models"])),
                "held_ms": (now - words["hold_since_ns"][0]) / 1e6,
            }
        )
    return found


def _preemption(
    page: ControlPage, slot: int, runners: Sequence[RunnerLine], now: int
) -> dict[str, Any] | None:
    """How a model gives way to strict work, None when it does not."""
    if not page.yields(slot):
        return None
    padding = page.read_padding(slot)
    beside = _slots_of(padding.beside)
    apart = [other for other in page.live_slots() if other not in beside]
    return {
        "runners": [_runner(line, now) for line in runners if line.runner_slot == slot],
        "not_beside": _names(page, apart) if padding.padding_known else None,
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


def _slots_of(words: Sequence[int]) -> set[int]:
    """Slots whose bits are set in a mask of several words."""
    assert len(words) == SLOT_WORDS
    return {slot for slot in range(SLOT_COUNT) if words[slot // 64] >> slot % 64 & 1}


def _names(page: ControlPage, slots: Iterable[int]) -> list[str]:
    """``name/version`` of slots, but for those that change just now."""
    names = []
    for slot in sorted(slots):
        try:
            identity = page.read_identity(slot)
        except UnstableError:
            continue
        names.append(f"{identity.model_name}/{identity.model_version}")
    return names


def _model(
    page: ControlPage, slot: int, runners: Sequence[RunnerLine], now: int
) -> dict[str, Any] | None:
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
        "network": _network(page, slot, now),
        "preemption": _preemption(page, slot, runners, now),
        **_load(identity, told, now),
        "groups": [
            {
                "generation": identity.generation,
                "state": "serving",
                "classes": [],
                "threads": g.group_threads or None,
                "batch": g.group_cap,
                "cores": None,
                "latency": {
                    "fixed_ms": g.group_fixed_ns / 1e6,
                    "per_request_ms": g.group_per_request_ns / 1e6,
                    "error_ms": g.group_error_ns / 1e6,
                }
                if g.group_fitted
                else None,
                "workers": [],
                "summary": f"{g.group_ready} ready, {g.group_busy} busy",
            }
            for g in groups
        ],
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
        "slo_attainment": dict.fromkeys(CLASSES),
        "counters": {**counters, "retried": told.retried, "poisoned": told.poisoned},
        "batches": {str(1 << k): n for k, n in enumerate(told.batches_by_size) if n},
        "mean_service_ms": service_ns / 1e6 / batches if batches else 0.0,
    }
