"""``shunter status``: read GET /shunter/status and show it as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shunter.plugins.errors import UserError

PATH = "/shunter/status"
_CLASSES = ("strict", "best_effort")
_LOSSES = ("expired", "rejected", "failed", "abandoned")


def fetch(management: str, token: str | None = None, timeout_s: float = 5) -> dict[str, Any]:
    """The status of the server whose management API is at ``management``."""
    url = management.rstrip("/") + PATH
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=timeout_s, trust_env=False)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UserError(f"{management!r} is not a URL like http://127.0.0.1:8081") from error
    except httpx.HTTPError as error:
        raise UserError(f"no TorchServe answers at {management}: {error}") from error
    if answer.status_code == 200:
        return answer.json()
    raise UserError(_refusal(answer, management, token))


def _refusal(answer: httpx.Response, management: str, token: str | None) -> str:
    text = _message(answer)
    if "token" in text.lower() or answer.status_code in (401, 403):
        fault = "did not accept the key" if token else "wants a key"
        return (
            f"TorchServe at {management} {fault}: "
            "pass --token with the management key of key_file.json"
        )
    if answer.status_code in (404, 405):
        return f"TorchServe at {management} runs without the Shunter plugin"
    return f"TorchServe at {management} answered {answer.status_code}: {text}"


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("message", answer.text))
    except (ValueError, AttributeError):
        return answer.text.strip()


def render(status: dict[str, Any]) -> Group:
    """The whole status for a terminal."""
    parts: list[Any] = [_headline(status), _models(status["models"]), _groups(status["models"])]
    if status.get("stock_models"):
        parts.append(Text("left to stock TorchServe: " + ", ".join(status["stock_models"])))
    return Group(*parts)


def batch_sizes(batches: dict[str, int]) -> str:
    """Batches by size bucket, as in ``1: 10  2: 3  3-4: 1``."""
    cells = []
    for upper, count in sorted((int(size), count) for size, count in batches.items()):
        lower = upper // 2 + 1
        cells.append(f"{upper if lower >= upper else f'{lower}-{upper}'}: {count}")
    return "  ".join(cells) or "none yet"


def _headline(status: dict[str, Any]) -> Text:
    controller = status["controller"]
    age = controller.get("heartbeat_age_ms")
    beat = "" if age is None else f", last cycle {age:.0f} ms ago"
    draining = "  [draining]" if status["draining"] else ""
    return Text(
        f"Shunter {status['version']} in TorchServe {status['torchserve']}, pid {status['pid']}, "
        f"up {status['uptime_s']:.0f} s{draining}\n"
        f"controller {controller['state']}{beat}, restarts {controller['restarts']}"
    )


def _models(models: list[dict[str, Any]]) -> Table:
    table = Table(title="models", title_justify="left")
    for name in ("model", "configuration", "class", "SLO ms"):
        table.add_column(name)
    numbers = ("waiting s/b", "oldest ms", "in flight", "threshold", "answered s/b", "late", "lost")
    for name in numbers:
        table.add_column(name, justify="right")
    table.add_column("batches by size")
    for model in models:
        table.add_row(*_model_row(model))
    return table


def _model_row(model: dict[str, Any]) -> Iterator[str]:
    queue, counters = model["queue"], model["counters"]
    yield f"{model['name']}/{model['version']}" + ("" if model["default"] else " (not default)")
    changing = "" if model["state"] == "serving" else f" ({model['state']})"
    yield model["configuration"] + (" auto" if model["auto"] else "") + changing
    yield model["class"]
    yield "-" if model["slo_ms"] is None else f"{model['slo_ms']:g}"
    yield _pair(queue)
    yield f"{queue['oldest_wait_ms']:.0f}"
    yield str(model["in_flight"]["requests"])
    yield f"{model['threshold']:.1f}"
    yield _pair(counters["answered"])
    yield str(_total(counters, "answered_late"))
    yield str(sum(_total(counters, loss) for loss in _LOSSES))
    yield batch_sizes(model["batches"])


def _groups(models: list[dict[str, Any]]) -> Table:
    table = Table(title="worker groups", title_justify="left")
    columns = ("model", "generation", "classes", "front end", "threads", "batch", "cores")
    for name in (*columns, "workers"):
        table.add_column(name)
    for model in models:
        for group in model["groups"]:
            table.add_row(
                f"{model['name']}/{model['version']}",
                f"{group['generation']} {group['state']}",
                ", ".join(group["classes"]),
                group["front_end"],
                _or_dash(group["threads"]),
                str(group["batch"]),
                _or_dash(group["cores"]),
                "\n".join(_worker(worker) for worker in group["workers"]) or "none",
            )
    return table


def _worker(worker: dict[str, Any]) -> str:
    restarts = f", {worker['restarts']} restarts" if worker["restarts"] else ""
    return f"pid {worker['pid']} {worker['state'].lower()}{restarts}"


def _pair(by_class: dict[str, Any]) -> str:
    return "/".join(str(by_class[name]) for name in _CLASSES)


def _total(counters: dict[str, Any], name: str) -> int:
    return sum(counters[name][each] for each in _CLASSES)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
