"""A running TorchServe, asked through its management API."""

from __future__ import annotations

import functools
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx

from shunter.allocator.planning.configuration import (
    Configuration,
    format_configuration,
    parse_configuration,
)
from shunter.batching.forming.spelling import hint
from shunter.plugins.host import HostedModel, HostError

NAME = "TorchServe"
ANSWER_S = 5.0
"""A question is answered by then."""
LOAD_S = 900.0
"""Workers have loaded, or ended, by then."""
_LOOK_S = 0.05
_PAGE = 1000
"""Models of one answer."""
_NOT_STARTED = re.compile(
    r"Failed to start workers for model (?P<name>.+) version: (?P<version>[^\s;]+)"
)
"""Said of a version that this very call registered; one that was there gets another refusal."""
_NO_MODEL = re.compile(r"Model not found: (?P<name>.+)")
_KEY_REFUSED = ("Token Authentication failed", "Token Authorization failed")
"""How TorchServe begins what it says of a key that is missing or wrong; the status is 400."""
_REGISTERED = re.compile(r'Model "(?P<name>.+)" Version: (?P<version>\S+) registered')


@functools.cache
def _tls() -> ssl.SSLContext:
    """Read once: certificates take 36 ms, and a cluster's machines are asked ten times a second."""
    return httpx.create_ssl_context(trust_env=False)


class _UnderWayError(HostError):
    """A change has not ended in time, and may still succeed."""


class TorchServeHost:
    """The :class:`shunter.plugins.host.Host` of TorchServe with the plugin."""

    name = NAME

    def __init__(self, management: str, token: str | None = None) -> None:
        """``management``: base URL of its management API; ``token``: its key, where one is set."""
        self._management = management
        self._token = token

    def models(self) -> list[HostedModel]:
        """See the protocol."""
        ours = {(model["name"], model["version"]): model for model in self.status()["models"]}
        found = [
            _hosted(version, ours.get((name, version["modelVersion"])))
            for name in self._names()
            for version in self._get(f"/models/{_path(name)}/all")
        ]
        return sorted(found, key=lambda model: (model.name, model.version))

    def load(
        self, archive: str, name: str | None = None, *, workers: int = 1, batch: int | None = None
    ) -> HostedModel:
        """See the protocol."""
        query = {"url": archive, "initial_workers": str(workers), "synchronous": "true"}
        query |= {"model_name": name} if name else {}
        query |= {"batch_size": str(batch)} if batch else {}
        known = {(model.name, model.version) for model in self.models()}
        try:
            answer = self._call("POST", "/models", query, LOAD_S)
        except HostError as error:
            raise HostError(f"{error}{self._forget_failed(str(error), known, name)}") from error
        told = _REGISTERED.search(str(answer.get("status", "")))
        if told is None:
            raise HostError(f"{self._who} did not say what it registered: {answer}")
        return self._model(f"{told['name']}/{told['version']}")

    def _forget_failed(self, refusal: str, known: set[tuple[str, str]], name: str | None) -> str:
        """Unload what a failed call has registered; what else may be of it is for the user.

        Others may load models at the same time, so only the version that the refusal names is known
        to be ours.
        """
        told = _NOT_STARTED.search(refusal)
        try:
            left = [
                f"{model.name}/{model.version}"
                for model in self.models()
                if (model.name, model.version) not in known
                and not model.ready
                and name in (None, model.name)
            ]
            ours = f"{told['name']}/{told['version']}" if told else ""
            if ours in left:
                self.unload(ours)
        except HostError as error:
            return f"; what it left could not be unloaded: {error}"
        if told or not left:
            return ""
        return (
            f"; {', '.join(left)} appeared meanwhile without workers: `shunter unload NAME/VERSION`"
            " if that is of this call"
        )

    def unload(self, model: str) -> None:
        """See the protocol."""
        self._call("DELETE", f"/models/{_path(model)}", {}, LOAD_S)

    def start_generation(
        self, model: str, configuration: Configuration, *, cores: str = "auto"
    ) -> HostedModel:
        """See the protocol. Processes whose threads and cores stay the same are kept.

        The server sets ``auto`` to false as soon as it takes the change, also if it then fails: the
        controller leaves a configuration alone that somebody has asked for.
        """
        now = self._model(model)
        if not now.managed:
            raise HostError(
                f"{model} is left to stock {NAME}, which has no worker groups; its log says why"
            )
        try:
            if not now.ready:  # a configuration is of workers that are there
                self._scale(model, sum(group.instances for group in configuration))
            self._configure(model, configuration, cores)
        except _UnderWayError:
            raise
        except HostError as error:
            if not now.ready:
                self._retire_again(model, error)
            raise
        return self._model(model)

    def _configure(self, model: str, configuration: Configuration, cores: str) -> None:
        path = f"/shunter/models/{_path(model)}/configuration"
        query = {"configuration": format_configuration(configuration), "cores": cores}
        self._call("PUT", path, query, LOAD_S)
        told = self._wait_changed(path)
        if _kinds(parse_configuration(told["configuration"])) != _kinds(configuration):
            raise HostError(
                f"{model} keeps {told['configuration']}: {told['last_change'] or told['problem']}"
            )

    def _retire_again(self, model: str, why: HostError) -> None:
        """After a failure: it had no workers before."""
        try:
            self._scale(model, 0)
        except HostError as error:
            raise HostError(
                f"{why}; the workers started for it could not be ended: {error}"
            ) from why

    def _wait_changed(self, path: str) -> dict[str, Any]:
        end = time.monotonic() + LOAD_S
        while (told := self._get(path))["state"] != "serving":
            if time.monotonic() > end:
                raise _UnderWayError(
                    f"the change is still under way after {LOAD_S:.0f} s; "
                    "`shunter status` tells when it has ended"
                )
            time.sleep(_LOOK_S)
        return told

    def retire(self, model: str) -> HostedModel:
        """See the protocol."""
        self._scale(model, 0)
        return self._model(model)

    def _scale(self, model: str, workers: int) -> None:
        counts = {"min_worker": str(workers), "max_worker": str(workers), "synchronous": "true"}
        self._call("PUT", f"/models/{_path(model)}", counts, LOAD_S)

    def status(self) -> dict[str, Any]:
        """See the protocol: ``GET /shunter/status`` as it is."""
        return self._get("/shunter/status")

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """See the protocol: ``GET /shunter/events``."""
        found: list[dict[str, Any]] = self._get("/shunter/events", {"after": str(after)})["events"]
        return found

    def requests(
        self, request: str | None, *, model: str | None, bad: bool, count: int
    ) -> list[dict[str, Any]]:
        """Requests that ended, the last one first: ``GET /shunter/requests``.

        ``request``: its id, or None: ``count`` of the last ones; ``bad``: refused, failed or late.
        """
        query = {"count": str(count), "bad": str(bad).lower()}
        query |= {"model": model} if model else {}
        path = "/shunter/requests" + (f"/{quote(request, safe='')}" if request else "")
        found: list[dict[str, Any]] = self._get(path, query)["requests"]
        return found

    def _names(self) -> Iterator[str]:
        page: str | None = "0"
        while page is not None:
            answer = self._get("/models", {"limit": str(_PAGE), "next_page_token": page})
            yield from (model["modelName"] for model in answer["models"])
            page = answer.get("nextPageToken")

    def _model(self, model: str) -> HostedModel:
        version = self._get(f"/models/{_path(model)}")[0]
        name = version["modelName"]
        key = (name, version["modelVersion"])
        ours = [each for each in self.status()["models"] if (each["name"], each["version"]) == key]
        return _hosted(version, ours[0] if ours else None)

    @property
    def _who(self) -> str:
        return f"TorchServe at {self._management}"

    def _get(self, path: str, query: dict[str, str] | None = None) -> Any:
        return self._call("GET", path, query or {}, ANSWER_S)

    def _call(self, method: str, path: str, query: dict[str, str], timeout_s: float) -> Any:
        """The JSON of an answer. Raises HostError for every other one."""
        url = self._management.rstrip("/") + path
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = httpx.request(
                *(method, url),
                params=query or None,
                headers=headers,
                timeout=timeout_s,
                trust_env=False,
                verify=_tls(),
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise HostError(
                f"{self._management!r} is not a URL like http://127.0.0.1:8081"
            ) from error
        except httpx.HTTPError as error:
            raise HostError(f"no TorchServe answers at {self._management}: {error}") from error
        if answer.is_success:
            try:
                return answer.json()
            except ValueError as error:
                raise HostError(
                    f"{self._management} is no TorchServe: what answers there is not JSON"
                ) from error
        raise HostError(self._refusal(answer, path))

    def _refusal(self, answer: httpx.Response, path: str) -> str:
        text = _message(answer)
        if text.startswith(_KEY_REFUSED) or answer.status_code in (401, 403):
            fault = "did not accept the key" if self._token else "wants a key"
            return f"{self._who} {fault}: pass --token with the management key of key_file.json"
        if path == "/shunter/status" and answer.status_code in (404, 405):
            return f"{self._who} runs without the Shunter plugin"
        if _NOT_STARTED.fullmatch(text):
            text += "; its log says why"
        elif told := _NO_MODEL.match(text):
            text += hint(told["name"], self._names())
        return f"{self._who} answered {answer.status_code}: {text}"


def _hosted(version: dict[str, Any], ours: dict[str, Any] | None) -> HostedModel:
    """A model version as TorchServe describes it, and as Shunter does when it has workers."""
    ready = sum(worker["status"] == "READY" for worker in version["workers"])
    model = HostedModel(version["modelName"], version["modelVersion"], "", ready)
    if ours is None:
        return replace(model, managed=not version["workers"])
    return replace(model, configuration=ours["configuration"], problem=ours["problem"] or "")


def _kinds(configuration: Configuration) -> list[tuple[int, int, int]]:
    return sorted((group.threads, group.batch, group.instances) for group in configuration)


def _path(model: str) -> str:
    """``NAME`` or ``NAME/VERSION`` in a URL."""
    return "/".join(quote(part, safe="") for part in model.split("/"))


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("message", answer.text))
    except (ValueError, AttributeError):
        return answer.text.strip()
