"""A model's worker groups as the control page has them, for people and programs."""

from __future__ import annotations

from typing import Any

from shunter.allocator.cpus.cpu_list import format_cpu_list
from shunter.batching.page.layout import CLASSES
from shunter.batching.page.records import GroupTelemetry
from shunter.batching.page.slices import ALL_CPUS, bits


def told(group: GroupTelemetry, generation: int) -> dict[str, Any]:
    """One group, in the shape that the server itself gives; it knows more of its workers."""
    return {
        "generation": generation,
        "state": "serving",
        "classes": [],
        "instances": group.group_instances,
        "threads": group.group_threads or None,
        "batch": group.group_cap,
        "cores": None,
        "device": group.group_device,
        "slice": slice_of(group),
        "slo": {
            each: {"attainment": share(one_more)}
            for each, one_more in zip(CLASSES, group.group_attainment, strict=True)
        },
        "yields": group.group_yields == 1,
        "latency": {
            "fixed_ms": group.group_fixed_ns / 1e6,
            "per_request_ms": group.group_per_request_ns / 1e6,
            "error_ms": group.group_error_ns / 1e6,
        }
        if group.group_fitted
        else None,
        "workers": [],
        "summary": f"{group.group_ready} ready, {group.group_busy} busy",
    }


def share(one_more: int) -> float | None:
    """What the page has as 1 + millionths, and 0 for none.

    >>> share(0), share(1), share(1_000_001)
    (None, 0.0, 1.0)
    """
    return (one_more - 1) / 1e6 if one_more else None


def slice_of(group: GroupTelemetry) -> str:
    """Where its workers run: devices as CUDA_VISIBLE_DEVICES has them, or CPUs."""
    cpus = group.group_slices & ALL_CPUS
    if group.group_device or cpus in (0, ALL_CPUS):
        return group.group_device or "all cores"
    return f"cpus:{format_cpu_list(bits(cpus))}"
