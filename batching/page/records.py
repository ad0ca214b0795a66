"""The control page's words as typed records, and what each word may be. Pure.

Field names are those of :mod:`shunter.batching.page.layout`, which gives their meaning and unit.
Every word was written by another process, so each field states its range here;
:mod:`shunter.batching.page.codec` reads and writes records within these ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shunter.batching.page.layout import (
    GROUP_COUNT,
    SIZE_BUCKETS,
    SLOT_COUNT,
    SLOT_WORDS,
    TIME_BUCKETS,
    Claims,
    Order,
    RunnerState,
)
from shunter.batching.page.slices import ALL_CPUS, EVERY

MAX_COUNT = 2**63 - 1
MAX_BATCH = 1 << 20
MAX_REQUESTS = 2**31 - 1
MAX_WAIT_US = 3_600_000_000
"""One hour: the longest deliberate wait."""
MAX_DEADLINE_US = 86_400_000_000
MAX_WAIT_NS = MAX_WAIT_US * 1000
MAX_MILLI = 10**12


def _word(low: int, high: int, default: Any = 0) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


def _words(count: int, low: int, high: int, default: int = 0) -> Any:
    return _word(low, high, (default,) * count)


def _mask(most: int) -> Any:
    return field(default=0, metadata={"low": 0, "high": most, "mask": True})


def _text() -> Any:
    return field(default="", metadata={"text": True})


@dataclass(frozen=True, slots=True)
class PageHeader:
    """Who made the page and who writes it."""

    owner_pid: int = _word(0, 2**31 - 1)
    created_unix_ns: int = _word(0, MAX_COUNT)
    server_heartbeat_ns: int = _word(0, MAX_COUNT)
    controller_pid: int = _word(0, 2**31 - 1)
    controller_heartbeat_ns: int = _word(0, MAX_COUNT)
    controller_cycles: int = _word(0, MAX_COUNT)
    front_end_wanted: int = _word(0, MAX_COUNT)
    strict_order: int = _word(0, max(Order))
    best_effort_order: int = _word(0, max(Order))
    exclusive: int = _word(0, 1)
    max_hold_us: int = _word(0, MAX_WAIT_US)
    longest_park_us: int = _word(0, MAX_WAIT_US)
    memory_wanted: int = _word(0, 1)
    strict_key: tuple[int, ...] = _words(4, -MAX_COUNT - 1, MAX_COUNT)
    settings_invalid: int = _word(0, 1)
    server: str = _text()
    mig_changing: int = _word(0, MAX_COUNT)
    mig_done: int = _word(0, MAX_COUNT)
    mig_changes: int = _word(0, MAX_COUNT)
    mig_undone: int = _word(0, MAX_COUNT)
    mig_layouts: str = _text()
    mig_problem: str = _text()


@dataclass(frozen=True, slots=True)
class FrontEndState:
    """What the network front end says of itself, beside its counters."""

    front_end_pid: int = _word(0, 2**31 - 1)
    front_end_beat_ns: int = _word(0, MAX_COUNT)
    front_end_port: int = _word(0, 65535)
    front_end_sessions: int = _word(0, MAX_COUNT)
    front_end_rtt_ns: int = _word(0, MAX_COUNT)
    front_end_rtt_count: int = _word(0, MAX_COUNT)
    landing_blocks: int = _word(0, MAX_COUNT)
    landing_free: int = _word(0, MAX_COUNT)
    landing_wanted: int = _word(0, MAX_COUNT)


@dataclass(frozen=True, slots=True)
class SlotIdentity:
    """Which model version a slot describes, and the bounds its registration set."""

    slot_state: int = _word(0, 1)
    generation: int = _word(0, MAX_COUNT)
    registered_batch_size: int = _word(1, MAX_BATCH, 1)
    registered_max_wait_us: int = _word(0, MAX_WAIT_US)
    queue_capacity: int = _word(0, MAX_REQUESTS)
    group_count: int = _word(0, GROUP_COUNT)
    slo_us: int = _word(0, MAX_DEADLINE_US)
    model_name: str = _text()
    model_version: str = _text()
    auto: int = _word(0, 1)
    archive: str = _text()
    last_change: str = _text()
    default_version: str = _text()
    problem: str = _text()

    @property
    def live(self) -> bool:
        """Whether the slot is in use; the rest means nothing when it is not."""
        return self.slot_state == 1


@dataclass(frozen=True, slots=True)
class SlotTelemetry:
    """Counters of a model version. Plain words: each is whole, the set need not be consistent."""

    updated_ns: int = _word(0, MAX_COUNT)
    arrivals: tuple[int, int] = _words(2, 0, MAX_COUNT)
    queued: tuple[int, int] = _words(2, 0, MAX_REQUESTS)
    oldest_arrival_ns: tuple[int, int] = _words(2, 0, MAX_COUNT)
    answered: tuple[int, int] = _words(2, 0, MAX_COUNT)
    answered_late: tuple[int, int] = _words(2, 0, MAX_COUNT)
    expired: tuple[int, int] = _words(2, 0, MAX_COUNT)
    rejected: tuple[int, int] = _words(2, 0, MAX_COUNT)
    failed: tuple[int, int] = _words(2, 0, MAX_COUNT)
    abandoned: tuple[int, int] = _words(2, 0, MAX_COUNT)
    retried: int = _word(0, MAX_COUNT)
    poisoned: int = _word(0, MAX_COUNT)
    in_flight_requests: int = _word(0, MAX_REQUESTS)
    in_flight_batches: int = _word(0, MAX_REQUESTS)
    ready_workers: int = _word(0, MAX_BATCH)
    busy_workers: int = _word(0, MAX_BATCH)
    threshold_milli: int = _word(0, MAX_MILLI)
    batches_by_size: tuple[int, ...] = _words(SIZE_BUCKETS, 0, MAX_COUNT)
    service_ns_by_size: tuple[int, ...] = _words(SIZE_BUCKETS, 0, MAX_COUNT)
    batch_requests: int = _word(0, MAX_COUNT)
    good: tuple[int, int] = _words(2, 0, MAX_COUNT)
    slo_met: tuple[int, int] = _words(2, 0, MAX_COUNT)
    slo_late: tuple[int, int] = _words(2, 0, MAX_COUNT)
    slo_rejected: tuple[int, int] = _words(2, 0, MAX_COUNT)
    slo_failed: tuple[int, int] = _words(2, 0, MAX_COUNT)
    slo_abandoned: tuple[int, int] = _words(2, 0, MAX_COUNT)
    queue_ns: tuple[int, int] = _words(2, 0, MAX_COUNT)
    service_ns: tuple[int, int] = _words(2, 0, MAX_COUNT)
    latency_ns: tuple[int, int] = _words(2, 0, MAX_COUNT)
    queue_times: tuple[int, ...] = _words(2 * TIME_BUCKETS, 0, MAX_COUNT)
    service_times: tuple[int, ...] = _words(2 * TIME_BUCKETS, 0, MAX_COUNT)
    latency_times: tuple[int, ...] = _words(2 * TIME_BUCKETS, 0, MAX_COUNT)
    strict_batches: tuple[int, ...] = _words(SIZE_BUCKETS, 0, MAX_COUNT)
    strict_batch_ns: tuple[int, ...] = _words(SIZE_BUCKETS, 0, MAX_COUNT)
    attainment: tuple[int, int] = _words(2, 0, 1_000_001)


@dataclass(frozen=True, slots=True)
class GroupTelemetry:
    """Counters of one worker group."""

    group_ready: int = _word(0, MAX_BATCH)
    group_busy: int = _word(0, MAX_BATCH)
    group_batches: int = _word(0, MAX_COUNT)
    group_requests: int = _word(0, MAX_COUNT)
    group_cap: int = _word(0, MAX_BATCH)
    group_threads: int = _word(0, MAX_BATCH)
    group_fixed_ns: int = _word(0, MAX_COUNT)
    group_per_request_ns: int = _word(0, MAX_COUNT)
    group_error_ns: int = _word(0, MAX_COUNT)
    group_fitted: int = _word(0, MAX_COUNT)
    group_instances: int = _word(0, MAX_BATCH)
    group_slices: int = _mask(EVERY)
    group_yields: int = _word(0, 1)
    group_classes: int = _word(0, 3)
    group_attainment: tuple[int, int] = _words(2, 0, 1_000_001)
    group_device: str = _text()


@dataclass(frozen=True, slots=True)
class SlotChange:
    """What became of the configuration that the controller wanted last."""

    change_request: int = _word(0, MAX_COUNT)
    change_state: int = _word(0, 3)


@dataclass(frozen=True, slots=True)
class SlotCommands:
    """Numbers that the dispatcher of a model version obeys."""

    alpha_millionths: int = _word(0, 999_999, 500_000)
    threshold_cap_milli: int = _word(1000, MAX_MILLI, 128_000)
    threshold_fixed_milli: int = _word(0, MAX_MILLI)
    max_wait_us: int = _word(0, MAX_WAIT_US)
    mix_classes: int = _word(0, 1)
    ageing_us: int = _word(0, MAX_WAIT_US, 1_000_000)
    ahead_batches: int = _word(0, 1, 1)
    latency_fixed_ns: int = _word(0, MAX_WAIT_NS)
    latency_per_request_ns: int = _word(0, MAX_WAIT_NS)
    admission: int = _word(0, 1)
    margin_us: int = _word(0, MAX_WAIT_US, 2000)
    wanted_request: int = _word(0, MAX_COUNT)
    wanted_groups: int = _word(0, GROUP_COUNT)
    wanted_pin: int = _word(0, 1)


@dataclass(frozen=True, slots=True)
class GroupCommands:
    """Numbers for one worker group; the defaults leave it alone."""

    command_cap: int = _word(0, MAX_BATCH)
    weight_milli: tuple[int, int] = _words(2, 0, 1_000_000, 1000)
    preference: tuple[int, int] = _words(2, 0, 1000)
    wanted_instances: int = _word(0, MAX_BATCH)
    wanted_threads: int = _word(0, MAX_BATCH)
    wanted_batch: int = _word(0, MAX_BATCH)
    wanted_cpus: int = _mask(ALL_CPUS)
    wanted_device: str = _text()


@dataclass(frozen=True, slots=True)
class SlotNetwork:
    """A model version as the network front end serves it."""

    network_workers: int = _word(0, MAX_BATCH)
    network_entries: int = _word(0, MAX_REQUESTS)
    network_free: int = _word(0, MAX_REQUESTS)
    network_queued: int = _word(0, MAX_REQUESTS)
    network_sessions: int = _word(0, MAX_REQUESTS)
    network_credit: int = _word(0, MAX_COUNT)
    network_needs_mb: int = _word(0, MAX_COUNT)


@dataclass(frozen=True, slots=True)
class NetworkTelemetry:
    """Counters of a model version's requests by the network; see :class:`SlotTelemetry`."""

    network_arrivals: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_answered: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_expired: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_rejected: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_failed: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_abandoned: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_slo_met: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_slo_late: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_slo_rejected: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_slo_failed: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_slo_abandoned: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_latency_ns: tuple[int, int] = _words(2, 0, MAX_COUNT)
    network_latency_times: tuple[int, ...] = _words(2 * TIME_BUCKETS, 0, MAX_COUNT)
    network_batches_by_size: tuple[int, ...] = _words(SIZE_BUCKETS, 0, MAX_COUNT)
    network_batch_requests: int = _word(0, MAX_COUNT)
    network_attainment_ppm: tuple[int, int] = _words(2, -1, 1_000_000, -1)


@dataclass(frozen=True, slots=True)
class SlotPadding:
    """Beside whose strict work a model's best effort may run."""

    padding_known: int = _word(0, 1)
    beside: tuple[int, ...] = _words(SLOT_WORDS, -MAX_COUNT - 1, MAX_COUNT)
    strict_claims: int = _word(0, max(Claims))


@dataclass(frozen=True, slots=True)
class RunnerLine:
    """What a worker says of its inference."""

    runner_pid: int = _word(0, 2**31 - 1)
    runner_heartbeat_ns: int = _word(0, MAX_COUNT)
    runner_slot: int = _word(-1, SLOT_COUNT - 1, -1)
    runner_class: int = _word(0, 1)
    runner_slices: int = _mask(EVERY)
    runner_state: int = _word(0, max(RunnerState))
    runner_since_ns: int = _word(0, MAX_COUNT)
    preemptions: int = _word(0, MAX_COUNT)
    parked_ns: int = _word(0, MAX_COUNT)
    yield_ns: int = _word(0, MAX_COUNT)
    yield_worst_ns: int = _word(0, MAX_COUNT)
    restore_ns: int = _word(0, MAX_COUNT)
    drops: int = _word(0, MAX_COUNT)
    batches: int = _word(0, MAX_COUNT)
    segments: int = _word(0, MAX_COUNT)
    segment_ns: int = _word(0, MAX_COUNT)
    solo_ns: int = _word(0, MAX_COUNT)
    solo_cpu_ns: int = _word(0, MAX_COUNT)
    solo_batch: int = _word(0, MAX_COUNT)


class Commands(NamedTuple):
    """All that a controller says about one slot."""

    slot: SlotCommands
    groups: tuple[GroupCommands, ...]
