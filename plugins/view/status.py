"""``shunter status``: what a host says of itself, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shunter.batching.page.layout import CLASSES
from shunter.plugins.view import pool_memory, tables

INVALID = (
    "shunter.toml cannot be used, the last good settings are in force; the server's log says why"
)


def render(status: dict[str, Any]) -> Group:
    """The whole status for a terminal."""
    models = status["models"]
    parts: list[Any] = [_headline(status)]
    if models:
        parts += [_models(models), _requests(models), _batches(models), _groups(models)]
    else:
        parts.append(Text("no models"))
    if slices := _slices(models):
        parts.append(slices)
    if pools := status.get("pools"):
        parts.append(pool_memory.draw(pools))
    if told := status.get("devices"):
        parts.append(_devices(told))
    if "front_end" in status and status["front_end"]["state"] != "off":
        parts.append(_network(status))
    if giving := [model for model in models if model.get("preemption")]:
        parts.append(_preemption(giving))
    if holding := [_name(model) for model in models if model.get("holds")]:
        parts.append(Text("best effort stands still for " + ", ".join(holding)))
    if changes := [model for model in status["models"] if model.get("last_change")]:
        parts.append(_changes(changes))
    for model in models:
        if model.get("problem"):
            parts.append(Text(f"{_name(model)} lost a worker: {model['problem']}"))
    if status.get("stock_models"):
        parts.append(Text("left to stock TorchServe: " + ", ".join(status["stock_models"])))
    return Group(*(part for each in parts for part in (each, "")))


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
        f"Shunter {status['version']} in {_server(status)}, pid {status['pid']}, "
        f"up {status['uptime_s']:.0f} s{draining}\n"
        f"controller {controller['state']}{beat}"
        + ("" if controller["restarts"] is None else f", restarts {controller['restarts']}")
        + ("" if controller.get("settings_valid", True) else f"\n{INVALID}")
    )


def _server(status: dict[str, Any]) -> str:
    return status.get("server") or f"TorchServe {status['torchserve']}"


def _models(models: list[dict[str, Any]]) -> Table:
    numbers = "SLO ms,threshold,in flight,oldest ms"
    table = tables.empty("models", "model,runs as,class", numbers)
    for model in models:
        changing = "" if model["state"] == "serving" else f" ({model['state']})"
        table.add_row(
            _name(model),
            model["configuration"] + _auto(model) + changing,
            _or_dash(model["class"]),
            "-" if model["slo_ms"] is None else f"{model['slo_ms']:g}",
            f"{model['threshold']:.1f}",
            str(model["in_flight"]["requests"]),
            f"{model['queue']['oldest_wait_ms']:.0f}",
        )
    return table


def _auto(model: dict[str, Any]) -> str:
    """Whether the controller may change the configuration."""
    return " auto" if model["auto"] else ""


def _changes(models: list[dict[str, Any]]) -> Table:
    table = tables.empty("last change", "model", "generation", "what became of it")
    for model in models:
        # Text: an exception's brackets are no markup.
        table.add_row(_name(model), str(model["generation"]), Text(model["last_change"]))
    return table


_ENDED = "done,late,expired,rejected,failed,gone,in time"
_OUTCOMES = ("answered", "answered_late", "expired", "rejected", "failed", "abandoned")


def _requests(models: list[dict[str, Any]]) -> Table:
    table = tables.empty("requests, and in time of the last minute", "model", f"waiting,{_ENDED}")
    for model in models:
        table.add_row(_name(model))
        for each in CLASSES:
            table.add_row(f"  {each}", str(model["queue"][each]), *_ended(model, each))
    return table


def _ended(told: dict[str, Any], each: str) -> list[str]:
    """What became of requests of a class, and how many were in time."""
    in_time = tables.percent(told["slo_attainment"][each])
    return [*(str(told["counters"][name][each]) for name in _OUTCOMES), in_time]


def _network_requests(served: list[dict[str, Any]]) -> Table:
    title = "requests by the network, and in time of the last minute"
    table = tables.empty(title, "model", f"mean ms,{_ENDED}")
    for model in served:
        told = model["network"]
        table.add_row(_name(model))
        for each in CLASSES:
            mean = f"{told['mean_latency_ms'][each]:.1f}"
            table.add_row(f"  {each}", mean, *_ended(told, each))
    return table


def _network_batches(served: list[dict[str, Any]]) -> Table:
    table = tables.empty("batches by the network", "model,count by size", "in all")
    for model in served:
        sizes = model["network"]["batches"]
        table.add_row(_name(model), batch_sizes(sizes), str(sum(sizes.values())))
    return table


def _batches(models: list[dict[str, Any]]) -> Table:
    table = tables.empty("batches", "model", "mean ms", "count by size")
    for model in models:
        mean = f"{model['mean_service_ms']:.1f}"
        table.add_row(_name(model), mean, batch_sizes(model["batches"]))
    return table


def _network(status: dict[str, Any]) -> Group:
    """The network front end and the models that it serves."""
    told = status["front_end"]
    counters = told["counters"]
    dropped = sum(n for name, n in counters.items() if name.startswith("drop_"))
    mean = told["mean_rtt_ms"]
    rtt = "" if mean is None else f", round trip of a hello {mean:.2f} ms"
    line = Text(
        f"network front end {told['state']}, pid {told['pid']}, port {told['port']}, "
        f"{told['sessions']} sessions{rtt}\n"
        f"{counters.get('datagrams_in', 0)} datagrams in, {counters.get('datagrams_out', 0)} out, "
        f"{dropped} dropped; {counters.get('requests', 0)} requests, "
        f"{counters.get('failed', 0)} failed, {counters.get('expired', 0)} expired, "
        f"{counters.get('rejected', 0)} refused"
    )
    if (landing := told.get("landing")) and landing["scarce"]:
        line.append(
            f"\nroom for payloads is scarce: {landing['free']} of {landing['blocks']} blocks are "
            "free; clients send again what finds none"
        )
    table = tables.empty("network", "model", "workers,waiting,free entries,entries,sessions,credit")
    for model in status["models"]:
        if network := model.get("network"):
            columns = ("workers", "queued", "free", "entries", "sessions", "credit")
            table.add_row(_name(model), *(str(network[column]) for column in columns))
            if needs_mb := network.get("needs_mb"):
                line.append(
                    f"\nworkers of {_name(model)} are refused: its tensors need {needs_mb} MB; "
                    "raise queue_mb in the table nic of shunter.toml"
                )
    if not table.row_count:
        return Group(line)
    served = [model for model in status["models"] if model.get("network")]
    return Group(line, table, "", _network_requests(served), "", _network_batches(served))


def _slices(models: list[dict[str, Any]]) -> Table | None:
    """Which models are on each slice, and how many deadlines are met there; None: there are none.

    Where all share all cores there is nothing to say that the other tables do not.
    """
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for model in models:
        for group in model["groups"]:
            if group.get("slice") and group["state"] == "serving":
                found.setdefault(group["slice"], []).append((_name(model), group))
    if not found.keys() - {"all cores"}:
        return None
    shares = ",".join(f"{each} in time" for each in CLASSES)
    table = tables.empty("slices", "slice,model", f"instances,{shares}")
    for name in sorted(found):
        for number, (model_name, group) in enumerate(found[name]):
            instances = group.get("instances")
            told = [group["slo"][each]["attainment"] for each in CLASSES]
            table.add_row(
                "" if number else name,
                model_name,
                _or_dash(len(group["workers"]) or None if instances is None else instances),
                *map(tables.percent, told),
            )
    return table


def _devices(told: dict[str, Any]) -> Text:
    line = f"instances of GPUs: {told['layouts'] or 'none is known yet'}"
    if told["changing"]:
        line += "; being changed"
    line += f"\n{told['changes']} changes, {told['undone']} undone"
    return Text(line + (f"\n{told['problem']}" if told["problem"] else ""))


def _preemption(models: list[dict[str, Any]]) -> Table:
    """Models that give way."""
    numbers = "pid,batches,preempted,parked s,longest yield ms"
    table = tables.empty("giving way to strict work", "model,state", numbers, "not beside")
    for model in models:
        told = model["preemption"]
        beside = told["not_beside"]
        # Before the controller has said anything.
        apart = "as the worker likes" if beside is None else "\n".join(beside) or "-"
        for number, runner in enumerate(told["runners"]):
            table.add_row(
                "" if number else _name(model),
                runner["state"],
                str(runner["pid"]),
                str(runner["batches"]),
                str(runner["preemptions"]),
                f"{runner['parked_ms'] / 1e3:.1f}",
                f"{runner['longest_yield_ms']:.2f}",
                "" if number else apart,
            )
        if not told["runners"]:
            table.add_row(_name(model), "no worker", *[""] * 5, apart)
    return table


def _groups(models: list[dict[str, Any]]) -> Table:
    numbers = "threads,batch,cores,ms of n"
    table = tables.empty("worker groups", "model,classes", numbers, "workers")
    for model in models:
        if model["groups"]:
            table.add_row(_name(model))
        for group in model["groups"]:
            table.add_row(
                f"  generation {group['generation']} {group['state']}",
                "\n".join(group["classes"]) or "-",
                _or_dash(group["threads"]),
                str(group["batch"]),
                _or_dash(group["cores"]),
                _predicted(group["latency"]),
                "\n".join(_worker(worker) for worker in group["workers"])
                or group.get("summary", "none"),
            )
    return table


def _name(model: dict[str, Any]) -> str:
    return f"{model['name']}/{model['version']}" + ("" if model["default"] else " (not default)")


def _worker(worker: dict[str, Any]) -> str:
    restarts = f", {worker['restarts']} restarts" if worker["restarts"] else ""
    return f"pid {worker['pid']} {worker['state'].lower()}{restarts}"


def _predicted(latency: dict[str, float] | None) -> str:
    """The fitted latency of a batch of n, as in ``4.1 + 2.0 n (±0.6)``."""
    if latency is None:
        return "-"
    line = f"{latency['fixed_ms']:.1f} + {latency['per_request_ms']:.2f} n"
    return f"{line} (±{latency['error_ms']:.1f})"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
