"""When requests are sent: every kind of load becomes a sorted array of times, before a run.

Times are seconds from the start of the run. All randomness comes from a seed: the same arguments
give the same times. Trace files are read from where the user keeps them.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

Times = np.ndarray
"""Sorted float64 seconds."""

PRESETS = {"wikipedia": (316.0, 303.0), "twitter": (4561.0, 2969.0)}
"""Peak and mean requests/s of the traces of PROTEAN's evaluation; the ratio is what counts."""


class BadArrivals(ValueError):
    """Arrivals cannot be made: a wrong value, or a file that is not what it should be."""


@dataclass(frozen=True)
class Schedule:
    """The times of a stream and how long it lasts."""

    times: Times
    seconds: float


def poisson(rate: float, seconds: float, seed: int) -> Times:
    """Poisson arrivals, ``rate`` per second on average."""
    return steps([(rate, seconds)], seed)


def periodic(rate: float, seconds: float, offset_s: float = 0.0) -> Times:
    """Equal distances: ``rate`` per second, the first at ``offset_s``.

    >>> periodic(2, 2).tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    _check(rate, seconds)
    count = max(0, math.ceil(round((seconds - offset_s) * rate, 9)))
    return offset_s + np.arange(count) / rate if rate else np.empty(0)


def steps(levels: Sequence[tuple[float, float]], seed: int) -> Times:
    """Poisson arrivals at a rate that changes: pairs of (requests/s, seconds)."""
    choose, parts, start = np.random.default_rng(seed), [np.empty(0)], 0.0
    for rate, seconds in levels:
        _check(rate, seconds)
        # Given their number, the times of a Poisson process are independent and uniform.
        count = choose.poisson(rate * seconds)
        parts.append(start + seconds * np.sort(choose.random(count)))
        start += seconds
    return np.concatenate(parts)


def from_rates(rates: Sequence[float], seed: int, width_s: float = 1.0) -> Times:
    """Poisson arrivals inside each interval of ``width_s``, at that interval's rate per second."""
    return steps([(float(rate), width_s) for rate in rates], seed)


def diurnal(
    mean: float,
    peak_to_mean: float,
    seconds: int,
    seed: int,
    bursts_per_minute: float = 0.0,
    periods: float = 1.0,
) -> Times:
    """Rates per second of a day's curve with bursts, of exactly that mean and peak.

    ``periods`` days are pressed into ``seconds``. A burst rises at once and dies away with a time
    constant of some seconds. Whatever the shape, it is stretched about its mean until the peak
    fits; where that would take the lowest rates below zero, they are raised and the shape is made
    more pointed instead.
    """
    if mean < 0 or peak_to_mean < 1 or bursts_per_minute < 0 or periods <= 0:
        raise BadArrivals(
            "a diurnal load needs mean >= 0, peak_to_mean >= 1, bursts_per_minute >= 0, periods > 0"
        )
    if seconds < 2 or seconds != int(seconds):
        raise BadArrivals(f"a diurnal load lasts a whole number of seconds, 2 or more: {seconds}")
    choose, at = np.random.default_rng(seed), np.arange(seconds := int(seconds))
    shape = 1 - np.cos(2 * np.pi * periods * (at + 0.5) / seconds)
    for start in np.flatnonzero(choose.random(seconds) < bursts_per_minute / 60):
        height, decay = 1 + choose.pareto(2.5), choose.uniform(2, 8)
        shape[start:] += height * np.exp(-(at[start:] - start) / decay)
    return mean * _with_peak(shape, peak_to_mean)


def _with_peak(shape: Times, ratio: float) -> Times:
    """Give ``shape`` a mean of 1 and a peak of ``ratio`` without negative values."""
    if ratio > len(shape):
        raise BadArrivals(f"a peak of {ratio:g} times the mean needs more than {len(shape)} s")
    if np.ptp(shape) == 0:
        shape = np.sin(np.arange(len(shape)))
    shape = (shape - shape.min()) / np.ptp(shape)
    low, high = 1.0, 1.0
    # A power leaves 0 and 1 where they are and moves the mean towards 0.
    while np.mean(shape**high) > 1 / ratio and high < 2**40:
        high *= 2
    for _ in range(100 if high > 1 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(shape**middle) > 1 / ratio else (low, middle)
    pointed = shape**high
    if np.mean(pointed) > 1 / ratio + 1e-9:
        raise BadArrivals(f"this shape has no peak of {ratio:g} times the mean; use more seconds")
    about = pointed - pointed.mean()
    return np.maximum(0.0, 1 + about * (ratio - 1) / about.max())


def preset(name: str, seconds: int, seed: int, mean: float | None = None) -> Times:
    """Rates per second like a known trace: ``wikipedia`` (nearly flat) or ``twitter`` (erratic)."""
    if name not in PRESETS:
        raise BadArrivals(f"unknown preset {name!r}; known: {', '.join(sorted(PRESETS))}")
    peak, usual = PRESETS[name]
    bursts = 6.0 if name == "twitter" else 0.0
    return diurnal(usual if mean is None else mean, peak / usual, seconds, seed, bursts)


def scaled(times: Times, time: float = 1.0, rate: float = 1.0, seed: int = 0) -> Times:
    """Stretch by ``time`` (2: twice as long), then multiply the number of requests by ``rate``.

    Fewer: requests are left out at random. More: copies lie between a request and the next one,
    which keeps bursts where they are.
    """
    if time <= 0 or rate <= 0:
        raise BadArrivals("time and rate scale must be above 0")
    times = np.asarray(times, dtype=float) * time
    if rate == 1 or len(times) == 0:
        return times
    choose = np.random.default_rng(seed)
    copies = int(rate) + (choose.random(len(times)) < rate % 1)
    gaps = np.append(np.diff(times), 0.0)
    owner = np.repeat(np.arange(len(times)), copies)
    copied = np.diff(owner, prepend=-1) == 0
    moved = np.where(copied, choose.random(len(owner)) * gaps[owner], 0.0)
    return np.sort(times[owner] + moved)


@dataclass(frozen=True)
class DisbTask:
    """One task of a DISB workload."""

    id: str
    model: str
    request_class: str
    """``strict`` for ``_rt`` (real-time), else ``best_effort``."""
    times: Times | None
    """None: closed loop, one client."""
    seconds: float


def disb(path: Path, seed: int = 0) -> list[DisbTask]:
    """The tasks of a DISB workload file.

    Times beyond the file's duration are dropped, as DISB does.
    Unlike DISB's runner no time is skipped when the server falls behind.
    """
    try:
        content = json.loads(_text(path))
        seconds = float(content["time"])
        return [
            _disb_task(task, seconds, seed + number) for number, task in enumerate(content["tasks"])
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadArrivals(f"{path}: no DISB workload: {_reason(error)}") from error


def _disb_task(task: Mapping[str, Any], seconds: float, seed: int) -> DisbTask:
    name, load = str(task["id"]), task["load"]
    times: Times | None
    match load["type"]:
        case "trace":
            times = np.sort(np.array(load["trace"], dtype=float) / 1e3)
            times = times[times < seconds]
        case "periodic":
            times = periodic(float(load["frequency"]), seconds)
        case "poisson":
            times = poisson(float(load["frequency"]), seconds, seed)
        case "continuous":
            times = None
        case other:
            raise BadArrivals(f"load type {other!r} of task {name!r}")
    model = str(task.get("client", {}).get("model_name", ""))
    request_class = "strict" if name.endswith("_rt") else "best_effort"
    return DisbTask(name, model, request_class, times, seconds)


def azure_llm(path: Path) -> Times:
    """Times of an Azure LLM inference trace (column TIMESTAMP), from its first row on."""
    stamps = [_stamp(path, text) for (text,) in _columns(path, "TIMESTAMP")]
    return np.sort(np.array(stamps)) - min(stamps)


def _stamp(path: Path, text: str) -> float:
    try:
        # Seven decimals are written, datetime takes six; later traces name the zone, UTC.
        whole, _, decimals = text.partition("+")[0].partition(".")
        return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{decimals or 0}")
    except ValueError as error:
        raise BadArrivals(f"{path}: no time: {text!r}") from error


def azure_functions(path: Path) -> Times:
    """Starts of an Azure Functions 2021 trace: end_timestamp - duration, never below zero."""
    starts = [
        _number(path, end) - _number(path, duration)
        for end, duration in _columns(path, "end_timestamp", "duration")
    ]
    return np.maximum(0.0, np.sort(np.array(starts)))


def counts(path: Path) -> Times:
    """Plain counts, one a line: the last column of each; a heading and # comments are skipped."""
    lines = [line.split("#")[0].strip() for line in _text(path).splitlines()]
    cells = [line.replace(",", " ").split()[-1] for line in lines if line]
    if cells and not _is_number(cells[0]):
        cells = cells[1:]
    found = np.array([_number(path, cell) for cell in cells])
    if len(found) == 0 or np.any(found < 0):
        raise BadArrivals(f"{path}: counts must be one number >= 0 a line")
    return found


def from_file(
    path: Path, *, task: str | None = None, width_s: float = 1.0, seed: int = 0
) -> Schedule:
    """Times of a trace file, its format told by its content.

    ``task`` picks one task of a DISB file, else its open-loop tasks are merged; ``width_s`` is the
    interval of plain counts (60: per minute).
    """
    head = _text(path).lstrip("\ufeff \r\n\t")[:200]
    if head.startswith("{"):
        return _from_disb(path, task, seed)
    if "TIMESTAMP" in head:
        return _whole(azure_llm(path))
    if "end_timestamp" in head:
        return _whole(azure_functions(path))
    per_interval = counts(path)
    return Schedule(from_rates(per_interval / width_s, seed, width_s), len(per_interval) * width_s)


def _whole(times: Times) -> Schedule:
    """A schedule that ends with the second of the last request."""
    return Schedule(times, math.floor(times[-1]) + 1.0 if len(times) else 1.0)


def _from_disb(path: Path, task: str | None, seed: int) -> Schedule:
    tasks = disb(path, seed)
    if task is not None and task not in {each.id for each in tasks}:
        raise BadArrivals(f"{path}: no task {task!r}; there are {[each.id for each in tasks]}")
    chosen = [each for each in tasks if task in (None, each.id)]
    found = [each.times for each in chosen if each.times is not None]
    if not found:
        raise BadArrivals(f"{path}: only closed-loop tasks: use a closed-loop stream for them")
    return Schedule(np.sort(np.concatenate(found)), chosen[0].seconds)


def make(spec: Mapping[str, Any]) -> Schedule:
    """Times from a description, as it stands in a run's JSON.

    ``kind`` is poisson, uniform (rate, seconds), steps (levels: [[rate, seconds], ...]), diurnal
    (mean, peak_to_mean, seconds[, bursts_per_minute, periods]), preset (name, seconds[, mean]),
    trace (path[, task, width_s]) or times (times[, seconds]); all may have seed, time_scale and
    rate_scale, and ``limit_s``, which cuts off what comes later.

    >>> make({"kind": "uniform", "rate": 4, "seconds": 1}).times.tolist()
    [0.0, 0.25, 0.5, 0.75]
    """
    given = dict(spec)
    try:
        kind, seed = given.pop("kind"), int(given.pop("seed", 0))
        time_scale, rate_scale = given.pop("time_scale", 1.0), given.pop("rate_scale", 1.0)
        limit = given.pop("limit_s", None)
        schedule = _make(kind, given, seed)
    except KeyError as error:
        raise BadArrivals(f"arrivals lack {error}: {dict(spec)}") from error
    except TypeError as error:
        raise BadArrivals(f"arrivals {dict(spec)}: {error}") from error
    times = scaled(schedule.times, time_scale, rate_scale, seed)
    seconds = schedule.seconds * time_scale
    if limit is not None and limit < seconds:
        times, seconds = times[times < limit], float(limit)
    return Schedule(times, seconds)


def _make(kind: str, given: dict[str, Any], seed: int) -> Schedule:
    match kind:
        case "poisson":
            return Schedule(poisson(**given, seed=seed), given["seconds"])
        case "uniform" | "periodic":
            return Schedule(periodic(**given), given["seconds"])
        case "steps":
            levels = [(float(rate), float(seconds)) for rate, seconds in given["levels"]]
            return Schedule(steps(levels, seed), sum(seconds for _, seconds in levels))
        case "diurnal":
            return Schedule(from_rates(diurnal(**given, seed=seed), seed + 1), given["seconds"])
        case "preset":
            return Schedule(from_rates(preset(**given, seed=seed), seed + 1), given["seconds"])
        case "trace":
            path = Path(given.pop("path"))
            return from_file(path, **given, seed=seed)
        case "times":
            times = np.sort(np.asarray(given["times"], dtype=float))
            seconds = given.get("seconds")
            return _whole(times) if seconds is None else Schedule(times, float(seconds))
    raise BadArrivals(f"unknown kind of arrivals {kind!r}")


def _check(rate: float, seconds: float) -> None:
    if not (0 <= rate < math.inf and 0 < seconds < math.inf):
        raise BadArrivals(f"rate {rate} must be >= 0 and seconds {seconds} > 0")


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArrivals(f"{path}: {_reason(error)}") from error
    if not text.strip():
        raise BadArrivals(f"{path}: empty")
    return text


def _columns(path: Path, *names: str) -> list[tuple[str, ...]]:
    reader = csv.DictReader(_text(path).splitlines())
    missing = [name for name in names if name not in (reader.fieldnames or ())]
    if missing:
        raise BadArrivals(f"{path}: no column {', '.join(missing)}")
    rows = [tuple(row[name] or "" for name in names) for row in reader]
    if not rows:
        raise BadArrivals(f"{path}: no rows")
    return rows


def _number(path: Path, text: str) -> float:
    if not _is_number(text):
        raise BadArrivals(f"{path}: no number: {text!r}")
    return float(text)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(getattr(error, "strerror", None) or error)
