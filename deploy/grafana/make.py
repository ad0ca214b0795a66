"""Writes ``shunter.json``, the dashboard, beside this file: panels are one line each here.

``python deploy/grafana/make.py`` writes it, ``--check`` says whether it is stale.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("shunter.json")
WIDTH, HEIGHT = 8, 7
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${source}"}
OF = '{job=~"$job",model=~"$model"}'
STRICT = '{job=~"$job",model=~"$model",class="strict"}'
JOB = '{job=~"$job"}'
BY_CLASS = "{{model}} {{class}}"


@dataclass(frozen=True)
class Panel:
    """A graph with a line for each series of its queries (expression, legend)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""
    most: float | None = None
    """The end of the axis; None: what is there."""


def one(
    title: str, unit: str, expr: str, legend: str, about: str = "", most: float | None = None
) -> Panel:
    """A panel of one query."""
    return Panel(title, unit, ((expr, legend),), about, most)


def rate(metric: str, of: str = OF, by: str = "model, class") -> str:
    return f"sum by ({by}) (rate({metric}{of}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str = "model, class") -> str:
    return f"histogram_quantile({q}, {rate(metric + '_bucket', by=by + ', le')})"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Deadlines": (
        one(
            "In time, of the last minute", "percentunit", f"shunter_slo_attainment{OF}", BY_CLASS,
            "Share of the requests with a deadline that met it.", 1,
        ),
        one(
            "Burn rate of a target of 99 %", "none",
            f"model_class:shunter_slo_errors:ratio_rate5m{STRICT} / 0.01", "{{model}}",
            "1: the budget of a month is used in a month; alerts are at 14.4 and 6.",
        ),
        one(
            "Missed, by reason", "reqps",
            rate("shunter_slo_missed_total", by="model, class, reason"),
            "{{model}} {{class}} {{reason}}",
        ),
        one("Latency, p99", "s", quantile(0.99, "shunter_latency_seconds"), BY_CLASS),
        one("Latency, median", "s", quantile(0.5, "shunter_latency_seconds"), BY_CLASS),
        one(
            "In time, by slice", "percentunit", f"shunter_slice_slo_attainment{OF}",
            "{{model}} {{class}} {{slice}}", most=1,
        ),
    ),
    "Load": (
        Panel(
            "Requests", "reqps",
            (
                (rate("shunter_arrivals_total"), f"{BY_CLASS} offered"),
                (rate("shunter_good_total"), f"{BY_CLASS} good"),
            ),
            "Good: answered in time, or without a deadline.",
        ),
        one("Outcomes", "reqps", rate("shunter_requests_total", by="outcome"), "{{outcome}}"),
        one("Waiting", "short", f"shunter_queued_requests{OF}", BY_CLASS),
        one("Oldest wait", "s", f"shunter_oldest_wait_seconds{OF}", BY_CLASS),
        one(
            "Batch size, mean", "short",
            f"model:shunter_batch_size:mean5m{OF}", "{{model}}",
        ),
        one("Wait before the batch, p99", "s", quantile(0.99, "shunter_queue_seconds"), BY_CLASS),
    ),
    "Workers": (
        Panel(
            "Workers", "short",
            (
                (f"shunter_ready_workers{OF}", "{{model}} ready"),
                (f"shunter_busy_workers{OF}", "{{model}} busy"),
            ),
        ),
        one(
            "Busy share", "percentunit", f"model:shunter_workers:busy_ratio1m{OF}", "{{model}}",
            "What an autoscaler should go by.", 1,
        ),
        one(
            "Generation", "short", f"shunter_generation{OF}", "{{model}}",
            "It rises with each change of the configuration.",
        ),
        Panel(
            "Run again, and given up", "short",
            (
                (f"increase(shunter_retried_total{OF}[5m])", "{{model}} run again"),
                (f"increase(shunter_poisoned_total{OF}[5m])", "{{model}} given up"),
            ),
            "Requests of workers that died, in five minutes.",
        ),
        one(
            "Best effort stood still", "percentunit",
            rate("shunter_parked_seconds_total", by="model"), "{{model}}",
            "Share of the time that its work was stopped for strict requests.",
        ),
        one(
            "Prediction error", "s", f"shunter_prediction_error_seconds{OF}",
            "{{model}} group {{group}}",
        ),
    ),
    "Pool": (
        Panel(
            "Hot memory", "bytes",
            (
                (f"shunter_pool_hot_bytes{JOB}", "process {{pool}}"),
                (f"shunter_pool_budget_bytes{JOB}", "budget {{pool}}"),
            ),
        ),
        one(
            "Batches that waited for weights", "percentunit",
            f"pool:shunter_pool_misses:ratio_rate5m{JOB}", "process {{pool}}", most=1,
        ),
        Panel(
            "Models", "short",
            (
                (f"shunter_pool_models{JOB}", "process {{pool}}"),
                (f"shunter_pool_hot_models{JOB}", "hot {{pool}}"),
            ),
        ),
    ),
    "Network front end": (
        one(
            "Requests", "reqps",
            rate("shunter_nic_outcomes_total", by="model, class, outcome"),
            "{{model}} {{class}} {{outcome}}",
        ),
        one("Latency, p99", "s", quantile(0.99, "shunter_nic_latency_seconds"), BY_CLASS),
        one("In time", "percentunit", f"shunter_nic_slo_attainment{OF}", BY_CLASS, most=1),
        one("Sessions", "short", f"shunter_nic_sessions{JOB}", "sessions"),
        Panel(
            "Landing blocks", "short",
            (
                (f"shunter_nic_landing_free{JOB}", "free"),
                (f"shunter_nic_landing_blocks{JOB}", "all"),
                (f"shunter_nic_landing_wanted{JOB}", "wanted"),
            ),
            "Memory in which payloads land; with none free they are sent again.",
        ),
        Panel(
            "Datagrams of no use", "pps",
            (
                (rate("shunter_nic_drops_total", JOB, "reason"), "{{reason}}"),
                (rate("shunter_nic_overflows_total", JOB, "job"), "no room in the kernel"),
                (rate("shunter_nic_hello_overflows_total", JOB, "job"), "too many hellos"),
            ),
        ),
    ),
}


def variable(name: str, query: str) -> dict[str, Any]:
    """Whose values a viewer chooses from; all of them at first."""
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def graph(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """A panel as Grafana has it."""
    custom = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    defaults = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """All of it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []}
        )
        y += 1
        for i, panel in enumerate(row):
            x = i * WIDTH % COLUMNS
            panels.append(graph(panel, len(panels) + 1, x, y))
            y += HEIGHT if x + WIDTH == COLUMNS or i == len(row) - 1 else 0
    source = {"name": "source", "type": "datasource", "query": "prometheus", "refresh": 1}
    return {
        "uid": "shunter",
        "title": "Shunter",
        "description": "Model servers with Shunter; it needs rules.yml.",
        "tags": ["shunter"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                source,
                variable("job", "label_values(shunter_ready_workers, job)"),
                variable("model", 'label_values(shunter_ready_workers{job=~"$job"}, model)'),
            ]
        },
        "panels": panels,
    }


def main() -> int:
    """Write it, or with ``--check`` compare. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is stale")
    text = json.dumps(dashboard(), indent=1) + "\n"
    if parser.parse_args().check:
        return int(PATH.read_text(encoding="utf-8") != text)
    PATH.write_text(text, encoding="utf-8")
    print(PATH)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
