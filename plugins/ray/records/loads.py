"""What a server's status says of its load, as the dispatcher wants it. Pure.

The status is another process's: what is missing or wrong makes that model unknown, not the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunter.allocator.cluster.load import Fit, Machine, ModelState, SliceLoad

GUESS_S = 0.02
"""Of a batch that never ran: no model is infinitely fast."""
SWAP_GUESS_S = 0.2
"""Until cold weights are hot, where none have come yet."""
LONGEST_S = 3600.0
WHOLE = ""
"""The slice of a machine whose server names none."""


@dataclass(frozen=True)
class Work:
    """One version of a model, and what it has to do."""

    name: str
    version: str
    is_default: bool
    is_strict: bool
    """Its requests that say no class."""
    state: ModelState
    workers: int
    strict: int
    best_effort: int
    """Requests that wait or run."""
    gives_way: bool
    """Its best effort stands still for strict work."""
    arrivals: tuple[int, int]
    """Strict and best-effort requests so far."""
    largest: int = 1
    """Batch."""
    slices: tuple[str, ...] = (WHOLE,)

    @property
    def each_s(self) -> float:
        """Seconds that the machine works for a request."""
        return self.state.fit.seconds(self.state.batch) / self.state.batch / self.workers


def parse(status: Any) -> list[Work]:
    """Every model version that has workers; nothing for a status that is none."""
    if not isinstance(status, Mapping) or not isinstance(status.get("models"), Sequence):
        return []
    pools = status.get("pools", ())
    found = []
    for model in status["models"]:
        try:
            each = _triton(model) if "server" in status else _torchserve(model, pools)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            continue
        if each.workers > 0:
            found.append(each)
    return found


def is_changing(status: Any) -> bool:
    """Whether instances of its GPUs are changed now."""
    devices = status.get("devices") if isinstance(status, Mapping) else None
    return isinstance(devices, Mapping) and bool(devices.get("changing"))


def machine(name: str, works: Sequence[Work], *, order: int, is_draining: bool) -> Machine:
    """The machine as the dispatcher knows it. The default version also has the bare name."""
    models = {}
    for each in works:
        models[f"{each.name}/{each.version}"] = each.state
        if each.is_default:
            models[each.name] = each.state
    slices = tuple(_slice(where, works) for where in _slices(works))
    return Machine(name, models, slices or (SliceLoad(),), order, is_draining)


def _slices(works: Sequence[Work]) -> list[str]:
    return sorted({where for each in works for where in each.slices})


def _slice(where: str, works: Sequence[Work]) -> SliceLoad:
    strict = best_effort = gives_way = 0.0
    for each in works:
        if where not in each.slices:
            continue
        share = each.each_s / len(each.slices)
        strict += each.strict * share
        best_effort += each.best_effort * share
        if each.best_effort and not each.gives_way:
            gives_way = max(gives_way, each.state.fit.seconds(each.state.batch))
    return SliceLoad(where, 1.0, strict, best_effort, gives_way)


def _torchserve(model: Any, pools: Any) -> Work:
    serving = [each for each in model["groups"] if each["state"] == "serving"]
    workers = sum(each["state"] == "READY" for group in serving for each in group["workers"])
    fits = [_fit(each["latency"]) for each in serving]
    usual = [each for each in fits if each.seconds(1) > 0]
    fallback = Fit(_seconds(model["mean_service_ms"] or 0, 1e3) or GUESS_S, 0.0)
    batches = {int(size): int(count) for size, count in model["batches"].items()}
    version = f"{model['name']}/{model['version']}"
    waiting = _count(model["queue"]["strict"]), _count(model["queue"]["best_effort"])
    is_strict = model["class"] == "strict"
    running = _count(model["in_flight"]["requests"])
    arrivals = model["counters"]["arrivals"]
    strict = waiting[0] + (running if is_strict else 0)
    return Work(
        name=_text(model["name"]),
        version=_text(model["version"]),
        is_default=bool(model["default"]),
        is_strict=is_strict,
        state=ModelState(
            fit=min(usual, key=lambda each: each.seconds(1)) if usual else fallback,
            swap_s=_swap_s(version, pools),
            batch=_mean(batches),
        ),
        workers=workers,
        strict=strict,
        best_effort=sum(waiting) + running - strict,
        gives_way=model["preemption"] is not None,
        arrivals=(_count(arrivals["strict"]), _count(arrivals["best_effort"])),
        largest=max(1, _count(model["batch_size"])),
        slices=tuple(sorted({_text(each["slice"]) for each in serving})) or (WHOLE,),
    )


def _triton(model: Any) -> Work:
    waiting = [_count(each) for each in model["waiting"]]
    fit = Fit(*(_seconds(model[key], 1e9) for key in ("fixed_ns", "per_request_ns", "error_ns")))
    batches = _count(model["batches"])
    answered = _count(model["answered"])
    return Work(
        name=_text(model["name"]),
        version=_text(model["version"]),
        is_default=True,
        is_strict=True,
        state=ModelState(
            fit=fit if fit.seconds(1) > 0 else Fit(GUESS_S, 0.0),
            batch=max(1.0, answered / batches) if batches else 1.0,
        ),
        workers=_count(model["ready"]),
        strict=waiting[0] + _count(model["running"]),
        best_effort=waiting[1],
        gives_way=False,
        arrivals=(_count(model["requests"]), 0),  # it counts no classes
        largest=_largest(_text(model["configuration"])),
    )


def _largest(configuration: str) -> int:
    """The largest batch of ``1x2x8,...``."""
    return max(int(group.split("x")[2]) for group in configuration.split(","))


def _fit(latency: Any) -> Fit:
    if latency is None:
        return Fit(0.0, 0.0)
    return Fit(*(_seconds(latency[key] or 0, 1e3) for key in _LATENCY))


_LATENCY = ("fixed_ms", "per_request_ms", "error_ms")


def _mean(batches: Mapping[int, int]) -> float:
    count = sum(batches.values())
    return max(1.0, sum(size * each for size, each in batches.items()) / count) if count else 1.0


def _swap_s(version: str, pools: Any) -> float:
    """Until its weights are hot in some process of the pool; 0 where it is in none."""
    of_it = [each for each in pools if version in each.get("models", ())]
    if not of_it or any(version in each.get("hot", ()) for each in of_it):
        return 0.0
    misses = sum(_count(each.get("misses", 0)) for each in of_it)
    spent = sum(_seconds(each.get("swap_ms", 0), 1e3) for each in of_it)
    return spent / misses if misses else SWAP_GUESS_S


def _seconds(value: Any, unit: float) -> float:
    found = float(value) / unit
    if not 0 <= found <= LONGEST_S:
        raise ValueError(value)
    return found


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(value)
    return max(0, int(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
