"""What the DISB benchmark's samples amount to. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from common import Row, bootstrap

Pairs = Sequence[tuple[Row, Row]]
"""Measurements of a scheme and of RT-only, in the same round."""


def work_per_s(row: Row, service_s: Mapping[str, float]) -> float:
    """Best-effort work done: every request counts as the time that it takes alone.

    >>> work_per_s({"seconds": 2.0, "best_effort_done": {"a": 10, "b": 5}}, {"a": 0.1, "b": 0.2})
    1.0
    """
    done = row["best_effort_done"]
    return sum(count * service_s[model] for model, count in done.items()) / row["seconds"]


def share_of_idle(row: Row, alone: Row) -> float:
    """Best-effort work in units of what the idle time of RT-only would have been good for.

    1 is the work that best effort does alone on the machine with all cores busy, in the scheme
    that is best at that, in the share of the time in which the cores were idle in ``alone``,
    RT-only of the same round.
    Infinite when nothing was idle, which only other work on the machine can bring about.

    >>> share_of_idle({"work_per_s": 0.63, "solo_work_per_s": 1.0}, {"idle_share": 0.7})
    0.9
    """
    return _ratio(row["work_per_s"], row["solo_work_per_s"] * alone["idle_share"])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.inf


def throughput(row: Row) -> float:
    """Answers of both kinds per second."""
    done = sum(row.get("best_effort_done", {}).values())
    return (len(row["strict_ms"]) + done) / row["seconds"]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed.

    >>> quantile([4, 1, 3, 2], 0.5)
    2.0
    """
    return float(np.quantile(np.asarray(values), share, method="inverted_cdf"))


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return quantile(values, 0.99)


def overhead(pairs: Pairs, of: Callable[[np.ndarray], float]) -> Row:
    """By how much ``of`` all strict latencies is above RT-only's; rounds are drawn in pairs.

    Pairs in which a side has no strict answer say nothing; infinite when there are no others.
    """
    parts = [
        (np.asarray(a["strict_ms"]), np.asarray(b["strict_ms"]))
        for a, b in pairs
        if a["strict_ms"] and b["strict_ms"]
    ]
    if not parts:
        return {"value": math.inf, "interval": (math.inf, math.inf)}

    def ratio(drawn: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
        ours, theirs = (np.concatenate(side) for side in zip(*drawn, strict=True))
        return float(of(ours) / of(theirs) - 1)

    return {"value": ratio(parts), "interval": bootstrap(parts, of=ratio)}


def median(values: Sequence[float]) -> Row:
    """With its interval."""
    return {"value": statistics.median(values), "interval": bootstrap(values)}


def summarise(samples: Sequence[Row]) -> list[Row]:
    """A row for every workload and scheme, by workload."""
    keys = dict.fromkeys((each["workload"], each["scheme"]) for each in samples)
    by_round = {(s["workload"], s["scheme"], s["round"]): s for s in samples}
    rows = []
    for workload, scheme in sorted(keys, key=lambda key: key[0]):
        mine = [s for s in samples if (s["workload"], s["scheme"]) == (workload, scheme)]
        alone = [by_round.get((workload, "rt_only", s["round"])) for s in mine]
        pairs = [(s, a) for s, a in zip(mine, alone, strict=True) if a is not None]
        row = {"workload": workload, "scheme": scheme, "rounds": len(mine), **_strict(mine)}
        if scheme != "rt_only" and pairs:
            row |= _against(pairs)
        rows.append(row)
    return rows


def _strict(mine: Sequence[Row]) -> Row:
    return {
        **_latencies([np.asarray(e["strict_ms"]) for e in mine if e["strict_ms"]]),
        "late_vs_early": late_vs_early([each["strict_ms"] for each in mine]),
        "idle_share": _mean(mine, "idle_share"),
        "wrong_answers": _faults(mine, wrong=True),
        "failed": _faults(mine, wrong=False),
        "strict_client_cores": statistics.mean(e["strict_client"]["cores"] for e in mine),
        "strict_client_late_p99_ms": max(_known(e["strict_client"]["late_p99_ms"] for e in mine)),
        "jvm_cores": _mean(mine, "jvm_cores"),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    """Without None, which is of rounds in which no request was due; infinite when none is left."""
    return [each for each in values if each is not None] or [math.inf]


def _latencies(rounds: Sequence[np.ndarray]) -> Row:
    """Of all rounds together; infinite when there are none."""
    found = np.concatenate(rounds or [np.array([math.inf])])
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {
        "requests": sum(map(len, rounds)),
        "mean_ms": float(found.mean()),
        **{name: quantile(found, share) for name, share in shares.items()},
        "p99_ms_interval": bootstrap(
            rounds or [found], of=lambda drawn: p99(np.concatenate(drawn))
        ),
    }


def late_vs_early(rounds: Sequence[Sequence[float]]) -> float | None:
    """Mean latency in a round's second half against its first: the median of the rounds.

    Where it is far above 1 strict requests come faster than they are answered: their latency says
    how long a round was, and nothing else.

    >>> late_vs_early([[1, 1, 1, 1], [1, 1, 3, 3], [1, 1, 5, 5]])
    3.0
    """
    halves = [(each[: len(each) // 2], each[len(each) // 2 :]) for each in rounds if len(each) > 3]
    found = [statistics.mean(late) / statistics.mean(early) for early, late in halves]
    return float(statistics.median(found)) if found else None


def _against(pairs: Pairs) -> Row:
    mine = [ours for ours, _ in pairs]
    found = {
        "mean_overhead": overhead(pairs, np.mean),
        "p99_overhead": overhead(pairs, p99),
        "share_of_idle": median([share_of_idle(*pair) for pair in pairs]),
        "throughput_vs_rt_only": median([_ratio(throughput(a), throughput(b)) for a, b in pairs]),
    }
    row: Row = {name: each["value"] for name, each in found.items()}
    row |= {f"{name}_interval": each["interval"] for name, each in found.items()}
    row["best_effort_per_s"] = statistics.mean(
        sum(each["best_effort_done"].values()) / each["seconds"] for each in mine
    )
    row["work_per_s"] = _mean(mine, "work_per_s")
    row["best_effort_client_cores"] = _mean(mine, "best_effort_client_cores")
    return row | _preemption(mine)


def _preemption(mine: Sequence[Row]) -> Row:
    count = sum(each["preemptions"] for each in mine)
    row: Row = {"preemptions": count, "drops": sum(each["drops"] for each in mine)}
    if count:
        row["yield_mean_us"] = sum(each["yield_us_sum"] for each in mine) / count
        row["yield_worst_us"] = max(each["yield_worst_us"] for each in mine)
        row["restore_mean_us"] = sum(each["restore_us_sum"] for each in mine) / count
        row["parked_share"] = sum(e["parked_ms"] for e in mine) / sum(
            e["seconds"] * 1e3 for e in mine
        )
    return row


def _faults(mine: Sequence[Row], *, wrong: bool) -> int:
    """Requests answered wrongly, or not with 200 for another reason."""
    return sum(
        count
        for each in mine
        for kind in ("strict_faults", "best_effort_faults")
        for status, count in each.get(kind, {}).items()
        if (status == "wrong") is wrong
    )


def _mean(rows: Sequence[Row], key: str) -> float:
    return statistics.mean(each[key] for each in rows)


def headline(rows: Sequence[Row], scheme: str, simple: str = "kernel") -> Row:
    """The worst of all workloads, for a scheme and (``kernel_...``) the simple one beside it.

    Throughput is a geometric mean, ``rounds`` the fewest of a workload.
    """
    found = _worst([row for row in rows if row["scheme"] == scheme])
    if scheme != simple:
        beside = _worst([row for row in rows if row["scheme"] == simple])
        found |= {f"{simple}_{key}": value for key, value in beside.items()}
    return found | {
        "workloads": " ".join(dict.fromkeys(row["workload"] for row in rows)),
        "wrong_answers": sum(row["wrong_answers"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
    }


def _worst(rows: Sequence[Row]) -> Row:
    mine = [row for row in rows if "mean_overhead" in row]
    if not mine:
        return {}
    mean, tail = (max(mine, key=lambda row: row[key]) for key in ("mean_overhead", "p99_overhead"))
    share = min(mine, key=lambda row: row["share_of_idle"])
    found: Row = {}
    for name, row, key in (
        ("strict_mean_overhead", mean, "mean_overhead"),
        ("strict_p99_overhead", tail, "p99_overhead"),
        ("best_effort_share_of_idle", share, "share_of_idle"),
    ):
        found[f"{name}_worst"] = row[key]
        found[f"{name}_worst_interval"] = row[f"{key}_interval"]
        found[f"{name}_worst_workload"] = row["workload"]
    ratios = [row["throughput_vs_rt_only"] for row in mine]
    found["throughput_vs_rt_only"] = statistics.geometric_mean(ratios) if min(ratios) > 0 else 0.0
    return found | {"rounds": min(row["rounds"] for row in mine)}
