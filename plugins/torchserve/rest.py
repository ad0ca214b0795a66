"""Questions to TorchServe's REST API on loopback."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy named in the environment is not meant for our own loopback server."""

_MISSED = 4
"""So many models without their workers are looked at each time."""


def get_json(url: str, token: str | None = None, timeout_s: float = 5) -> Any:
    """GET and parse; OSError when the server cannot be reached or refuses."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with _DIRECT.open(request, timeout=timeout_s) as answer:
        return json.load(answer)


def healthy(inference: str, token: str | None = None) -> bool:
    """Whether /ping says so."""
    return get_json(f"{inference}/ping", token).get("status") == "Healthy"


def registered(management: str, token: str | None = None) -> set[str]:
    """Names of the registered models."""
    listed = get_json(f"{management}/models?limit=1000", token)["models"]
    return {model["modelName"] for model in listed}


def workers_ready(management: str, token: str | None, names: Iterable[str]) -> bool:
    """Whether every version of these models has the workers it wants, all loaded."""
    return all(
        _ready(version)
        for name in names
        for version in get_json(f"{management}/models/{name}/all", token)
    )


def own_status(management: str, token: str | None = None) -> list[dict[str, Any]]:
    """What the plugin says of the models; nothing where it is not, or is switched off.

    Raises OSError when nobody answers in time, KeyError.
    """
    try:
        return list(get_json(f"{management}/shunter/status", token)["models"])
    except urllib.error.HTTPError:
        return []


def problems(management: str, token: str | None = None) -> dict[str, str]:
    """By models: why their workers did not load or were lost; none where that is not known."""
    try:
        return problems_of(own_status(management, token))
    except (OSError, ValueError, KeyError):
        return {}


def problems_of(models: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The same of what :func:`own_status` has said."""
    return {
        each["name"]: f"{each['name']} {each['version']}: {each['problem']}"
        for each in models
        if each["problem"]
    }


def awaiting_network(models: Iterable[Mapping[str, Any]]) -> set[str]:
    """Those whose workers of the network front end, which TorchServe does not list, still load.

    One that could not load is not waited for: HTTP is served without it.
    """
    return {
        model["name"]
        for model in models
        for group in model["groups"]
        if group["front_end"] == "network"
        for worker in group["workers"]
        if worker["state"] != "READY" and not worker["problem"]
    }


class Readiness:
    """Of a server that starts: which of its models have their workers."""

    def __init__(
        self, management: str, token: str | None = None, *, needs_all: bool = True
    ) -> None:
        """None has. ``needs_all``: those that failed to load are waited for as well."""
        self._management, self._token, self._needs_all = management, token, needs_all
        self._ready: set[str] = set()
        self.failed: dict[str, str] = {}
        """By models: what is wrong with them."""
        self.text = ""
        """How many of them, for users."""

    def look(self) -> bool:
        """Whether all have: those that had them before are asked again when all seem to."""
        names = registered(self._management, self._token)
        known = own_status(self._management, self._token)
        self.failed = problems_of(known)
        wanted = names if self._needs_all else names - self.failed.keys()
        coming, missed = awaiting_network(known), 0
        self._ready -= coming
        for name in sorted(wanted - self._ready):
            if name not in coming and workers_ready(self._management, self._token, [name]):
                self._ready.add(name)
            elif (missed := missed + 1) == _MISSED:  # the others are not ready either
                break
        loaded = f"{len(names & self._ready)} of {len(names)} models are loaded"
        self.text = "; ".join([loaded, *self.failed.values()])
        return wanted <= self._ready and workers_ready(self._management, self._token, wanted)


def _ready(version: dict[str, Any]) -> bool:
    workers = version["workers"]
    loaded = all(worker["status"] == "READY" for worker in workers)
    return loaded and len(workers) >= version["minWorkers"]
