"""The order of the schemes as the paper's text states it, checked on the rows of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]
TIE = 0.001
"""Shares closer than that are equal."""
OTHERS = ("Molecule", "INFless/Llama", "Naive")


class Table:
    """Rows by figure, workload and scheme."""

    def __init__(self, rows: list[Row]) -> None:
        """Of one run."""
        self._rows = {(row["figure"], row["workload"], row["scheme"]): row for row in rows}

    def workloads(self, figure: str) -> list[str]:
        """Of a figure, in order."""
        return list(dict.fromkeys(w for f, w, _ in self._rows if f == figure))

    def value(self, figure: str, workload: str, scheme: str, key: str = "compliance") -> float:
        """One number."""
        return float(self._rows[figure, workload, scheme][key])

    def mean(self, figure: str, scheme: str) -> float:
        """Compliance over a figure's workloads."""
        return statistics.fmean(
            self.value(figure, workload, scheme) for workload in self.workloads(figure)
        )


def _first(table: Table, figure: str, but: tuple[str, ...] = ()) -> bool:
    return all(
        table.value(figure, workload, "PROTEAN") >= table.value(figure, workload, other) - TIE
        for workload in table.workloads(figure)
        if workload not in but
        for other in OTHERS
    )


def compliance_claims(table: Table) -> Iterator[tuple[str, bool]]:
    """What is said of SLO compliance."""
    yield "fig5: PROTEAN above all others on every vision model", _first(table, "fig5")
    lowest = min(OTHERS, key=lambda scheme: table.mean("fig5", scheme))
    yield "fig5: Molecule is the lowest on average", lowest == "Molecule"
    yield "fig11: PROTEAN first under the erratic trace", _first(table, "fig11")
    yield "fig12: PROTEAN first, FlauBERT aside", _first(table, "fig12", ("FlauBERT",))
    lowest = min(OTHERS, key=lambda scheme: table.mean("fig12", scheme))
    yield "fig12: INFless/Llama is the worst affected on average", lowest == "INFless/Llama"
    yield (
        "fig13: PROTEAN first on average",
        all(table.mean("fig13", "PROTEAN") > table.mean("fig13", other) for other in OTHERS),
    )
    lowest = min(OTHERS, key=lambda scheme: table.mean("fig13", scheme))
    yield "fig13: INFless/Llama is the lowest", lowest == "INFless/Llama"
    gpt = [table.value("fig13", name, "Molecule") for name in ("GPT-1", "GPT-2")]
    yield "fig13: Molecule is better at GPT-2 than at GPT-1", gpt[0] < gpt[1]
    yield "fig14: PROTEAN first, strict skewed", _first(table, "fig14 75:25")
    yield "fig14: PROTEAN first, best effort skewed", _first(table, "fig14 25:75")
    four = [table.value("table4", "ResNet 50", name) for name in ("PROTEAN", *OTHERS)]
    yield "table4: PROTEAN above Molecule", four[0] > four[1]
    yield "table4: Molecule above naive slicing", four[1] > four[3]
    yield "table4: naive slicing above INFless/Llama", four[3] > four[2]
    yield "fig15: PROTEAN first with the tight limit", _first(table, "fig15")
    yield (
        "fig16: PROTEAN above GPUlet on every vision model",
        all(
            table.value("fig5", workload, "PROTEAN")
            >= table.value("fig5", workload, "GPUlet") - TIE
            for workload in table.workloads("fig5")
        ),
    )
    yield (
        "fig17: Oracle above PROTEAN on every vision model",
        all(
            table.value("fig5", workload, "Oracle")
            >= table.value("fig5", workload, "PROTEAN") - TIE
            for workload in table.workloads("fig5")
        ),
    )


def latency_claims(table: Table) -> Iterator[tuple[str, bool]]:
    """What is said of latencies."""
    order = ("PROTEAN", "Naive", "INFless/Llama", "Molecule")
    p50 = [table.value("table5", "best effort", name, "be_p50_ms") for name in order]
    yield "table5: p50 of PROTEAN, naive, INFless, Molecule ascends", p50 == sorted(p50)
    order = ("Naive", "INFless/Llama", "PROTEAN", "Molecule")
    p99 = [table.value("table5", "best effort", name, "be_p99_ms") for name in order]
    yield "table5: p99 of naive, INFless, PROTEAN, Molecule ascends", p99 == sorted(p99)
    yield (
        "fig6: strict p99 of PROTEAN is the lowest on every vision model",
        all(
            table.value("fig5", workload, "PROTEAN", "strict_p99_ms")
            <= table.value("fig5", workload, other, "strict_p99_ms") * (1 + TIE)
            for workload in table.workloads("fig5")
            for other in OTHERS
        ),
    )
