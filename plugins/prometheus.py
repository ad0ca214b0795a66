"""The numbers of a control page as Prometheus has them, whichever server is behind it.

Names and meanings are those of ``docs/reference/metrics.md``. What a server does not count is left
out where it would read as a number that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from shunter.batching.page.control_page import ControlPage, UnstableError
from shunter.batching.page.holds import holding_models
from shunter.batching.page.layout import CLASSES, TIME_BUCKET_SHIFT, TIME_BUCKETS
from shunter.batching.page.records import RunnerLine, SlotIdentity, SlotTelemetry
from shunter.batching.page.runners import read_runners

TEXT = "text/plain; version=0.0.4; charset=utf-8"
_BY_CLASS = {
    "shunter_arrivals_total": ("counter", "Requests offered", "arrivals"),
    "shunter_answered_late_total": ("counter", "Answers after the deadline", "answered_late"),
    "shunter_queued_requests": ("gauge", "Requests waiting", "queued"),
    "shunter_good_total": ("counter", "Answers in time and not 5xx: goodput", "good"),
    "shunter_slo_met_total": ("counter", "Requests that met their deadline", "slo_met"),
}
_OUTCOMES = ("answered", "expired", "rejected", "failed", "abandoned")
_MISSES = {
    "late": "slo_late",
    "expired": "expired",
    "rejected": "slo_rejected",
    "failed": "slo_failed",
    "abandoned": "slo_abandoned",
}
_OF_MODEL = {
    "shunter_in_flight_requests": ("Sent, not answered", "in_flight_requests", 1.0),
    "shunter_ready_workers": ("Loaded workers", "ready_workers", 1.0),
    "shunter_busy_workers": ("Workers with a batch", "busy_workers", 1.0),
    "shunter_threshold": ("Adaptive threshold", "threshold_milli", 1e-3),
}
_FITTED = {
    "shunter_predicted_fixed_seconds": ("Fitted latency of a batch: fixed part", "fixed"),
    "shunter_predicted_request_seconds": ("Fitted latency of a batch: per request", "per_request"),
    "shunter_prediction_error_seconds": ("Mean absolute error of the predicted latency", "error"),
}
_PARKED = {
    "shunter_preemptions_total": ("Times that best-effort work was parked", "preemptions", 1.0),
    "shunter_parked_seconds_total": ("Time that it was parked", "parked_ns", 1e-9),
    "shunter_yield_seconds_total": ("Time that it took to be parked", "yield_ns", 1e-9),
    "shunter_preemption_drops_total": ("Batches begun anew to give memory back", "drops", 1.0),
}


class _Model:
    """A slot as it is now."""

    def __init__(self, page: ControlPage, slot: int) -> None:
        self.slot = slot
        self.identity: SlotIdentity = page.read_identity(slot)
        self.told: SlotTelemetry = page.read_telemetry(slot)
        self.groups = page.read_groups(slot, self.identity.group_count)
        name, version = self.identity.model_name, self.identity.model_version
        self.labels = f'model="{_escaped(name)}",version="{_escaped(version)}"'


def exposition(page: ControlPage, now_ns: int) -> str:
    """All that the page says of models."""
    models = []
    for slot in page.live_slots():
        try:
            models.append(_Model(page, slot))
        except UnstableError:
            continue  # it changes just now
    valid = 1 - page.header().settings_invalid
    lines = [*_requests(models, now_ns), *_times(models), *_state(models)]
    lines += [*_preemption(models, read_runners(page), holding_models(page, now_ns))]
    help_text = "0: shunter.toml cannot be used, the last good settings hold"
    lines += _family("shunter_settings_valid", "gauge", help_text, [("", valid)])
    return "\n".join(lines) + "\n"


def _requests(models: Sequence[_Model], now_ns: int) -> Iterator[str]:
    for name, (kind, text, word) in _BY_CLASS.items():
        yield from _family(name, kind, text, _by_class(models, word))
    outcomes = [
        (f'{labels},outcome="{outcome}"', value)
        for outcome in _OUTCOMES
        for labels, value in _by_class(models, outcome)
    ]
    yield from _family(
        "shunter_requests_total", "counter", "Requests that ended, by outcome", outcomes
    )
    misses = [
        (f'{labels},reason="{reason}"', value)
        for reason, word in _MISSES.items()
        for labels, value in _by_class(models, word)
    ]
    yield from _family(
        "shunter_slo_missed_total", "counter", "Requests that missed their deadline", misses
    )
    oldest = [
        (labels, (now_ns - since) * 1e-9 if since else 0)
        for labels, since in _by_class(models, "oldest_arrival_ns")
    ]
    yield from _family(
        "shunter_oldest_wait_seconds", "gauge", "Wait of the oldest request", oldest
    )
    shares = [
        (labels, (told - 1) / 1e6 if told else math.nan)
        for labels, told in _by_class(models, "attainment")
    ]
    text = "Share of requests with a deadline that met it, last minute; NaN: none"
    yield from _family("shunter_slo_attainment", "gauge", text, shares)


def _by_class(models: Iterable[_Model], word: str) -> list[tuple[str, float]]:
    return [
        (f'{model.labels},class="{each}"', value)
        for model in models
        for each, value in zip(CLASSES, getattr(model.told, word), strict=True)
    ]


def _times(models: Sequence[_Model]) -> Iterator[str]:
    yield "# HELP shunter_latency_seconds From arrival to answer"
    yield "# TYPE shunter_latency_seconds histogram"
    bounds = [(1 << TIME_BUCKET_SHIFT + bucket) * 1e-9 for bucket in range(TIME_BUCKETS)]
    for model in models:
        for number, each in enumerate(CLASSES):
            first = number * TIME_BUCKETS
            counts = model.told.latency_times[first : first + TIME_BUCKETS]
            labels = f'{model.labels},class="{each}"'
            total = model.told.latency_ns[number] * 1e-9
            yield from _histogram("shunter_latency_seconds", labels, counts, bounds, total)
    yield "# HELP shunter_batch_size Requests in a batch"
    yield "# TYPE shunter_batch_size histogram"
    for model in models:
        counts = model.told.batches_by_size
        sizes = [float(1 << bucket) for bucket in range(len(counts))]
        total = float(model.told.batch_requests)
        yield from _histogram("shunter_batch_size", model.labels, counts, sizes, total)
    spent = [
        (f'{model.labels},size="{1 << bucket}"', ns * 1e-9)
        for model in models
        for bucket, ns in enumerate(model.told.service_ns_by_size)
        if ns
    ]
    text = "Time spent on batches by size"
    yield from _family("shunter_batch_service_seconds_total", "counter", text, spent)


def _histogram(
    name: str, labels: str, counts: Sequence[int], bounds: Sequence[float], total: float
) -> Iterator[str]:
    """The last bucket holds also all that is more."""
    below = list(accumulate(counts))
    for bound, count in zip(bounds[:-1], below[:-1], strict=True):
        yield f'{name}_bucket{{{labels},le="{bound:.9g}"}} {count}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {below[-1]}'
    yield f"{name}_sum{{{labels}}} {total:.9g}"
    yield f"{name}_count{{{labels}}} {below[-1]}"


def _state(models: Sequence[_Model]) -> Iterator[str]:
    for name, (text, word, unit) in _OF_MODEL.items():
        found = [(model.labels, getattr(model.told, word) * unit) for model in models]
        yield from _family(name, "gauge", text, found)
    generations = [(model.labels, model.identity.generation) for model in models]
    yield from _family("shunter_generation", "gauge", "Current generation", generations)
    for name, (text, word) in _FITTED.items():
        fitted = [
            (f'{model.labels},group="{i}"', getattr(group, f"group_{word}_ns") * 1e-9)
            for model in models
            for i, group in enumerate(model.groups)
            if group.group_fitted
        ]
        yield from _family(name, "gauge", text, fitted)


def _preemption(
    models: Sequence[_Model], runners: Sequence[RunnerLine], holding: int
) -> Iterator[str]:
    holds = [(model.labels, holding >> model.slot & 1) for model in models]
    text = "1 while strict requests hold slices"
    yield from _family("shunter_holds", "gauge", text, holds)
    for name, (text, word, unit) in _PARKED.items():
        found = [
            (
                model.labels,
                unit * sum(getattr(r, word) for r in runners if r.runner_slot == model.slot),
            )
            for model in models
        ]
        yield from _family(name, "counter", text, found)


def _family(
    name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]
) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value:.9g}" if labels else f"{name} {value:.9g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
