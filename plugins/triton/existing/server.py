"""A running Triton, asked about one of its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError
from shunter.plugins.triton.existing.statistics import Counters
from shunter.plugins.triton.layout import PAGE_PARAMETER

THREADS_PARAMETER = "SHUNTER_THREADS"
"""Of a model's configuration: threads of an operator, if its own code reads it."""
ANSWER_S = 10.0
LOAD_S = 900.0
CPU = "KIND_CPU"


class ServedModel:
    """A model of a Triton that somebody else started."""

    def __init__(self, name: str, inference: str, grpc: str = "") -> None:
        """``inference``: base URL of HTTP; ``grpc``: host:port, by which changes disturb less."""
        self.name, self.grpc = name, grpc
        self._client = httpx.Client(base_url=inference, timeout=ANSWER_S, trust_env=False)
        self._path = f"/v2/models/{quote(name, safe='')}"

    def close(self) -> None:
        """Ask no more."""
        self._client.close()

    def counters(self) -> Counters:
        """Its statistics. Raises HostError."""
        return Counters.of(self._get(f"{self._path}/stats"))

    def config(self) -> dict[str, Any]:
        """Its configuration as it is in force, completed by Triton. Raises HostError."""
        return self._get(f"{self._path}/config")

    def present(self) -> tuple[int, int]:
        """Its instances and the threads of each, 0: its own business. Raises HostError."""
        return present_of(self.config())

    def server_version(self) -> str:
        """Of the server. Raises HostError."""
        return str(self._get("/v2").get("version", "?"))

    def change(self, instances: int, threads: int = 0) -> None:
        """Have so many instances; come back when they serve. Raises HostError: all is as it was.

        Other instances go on meanwhile. Another number of ``threads`` (0: as it is) loads the model
        once more beside the one that serves.
        """
        config = self.config()
        group_of(config)["count"] = instances
        if threads:
            config["parameters"][THREADS_PARAMETER] = {"string_value": str(threads)}
        text = json.dumps(config)
        if self.grpc:
            self._load_by_grpc(text)
            return
        path = f"/v2/repository/models/{quote(self.name, safe='')}/load"
        try:
            body = {"parameters": {"config": text}}
            answer = self._client.post(path, json=body, timeout=LOAD_S)
        except httpx.HTTPError as error:
            raise HostError(f"Triton does not answer: {error}") from error
        if not answer.is_success:
            raise HostError(f"Triton refused the change of {self.name}: {answer.text[:500]}")

    def _load_by_grpc(self, text: str) -> None:
        try:
            import grpc
            from tritonclient.grpc import service_pb2, service_pb2_grpc
        except ImportError as error:
            raise UserError("gRPC needs Triton's client: pip install 'shunter[triton]'") from error
        request = service_pb2.RepositoryModelLoadRequest(model_name=self.name)
        request.parameters["config"].string_param = text
        try:
            with grpc.insecure_channel(self.grpc) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                stub.RepositoryModelLoad(request, timeout=LOAD_S)
        except grpc.RpcError as error:
            said = f"{error.code().name}: {error.details()}"[:500]
            raise HostError(f"Triton refused the change of {self.name}: {said}") from error

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = self._client.get(path)
            found = answer.json() if answer.is_success else None
        except (httpx.HTTPError, ValueError) as error:
            raise HostError(f"no Triton answers at {self._client.base_url}: {error}") from error
        if not isinstance(found, dict):
            raise HostError(f"Triton answered {answer.status_code}: {answer.text[:500]}")
        return found


def group_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The one instance group that can be changed. Raises UserError where there is no such."""
    groups = config.get("instance_group", [])
    if len(groups) != 1 or groups[0].get("kind") != CPU:
        kinds = ", ".join(str(each.get("kind")) for each in groups) or "none"
        raise UserError(
            f"its instance groups are {kinds}; the number of instances is changed only where there "
            f"is one, of {CPU}"
        )
    return groups[0]


def parameter(config: Mapping[str, Any], name: str) -> str:
    """A parameter of a configuration; empty: it has none of that name."""
    found = config.get("parameters", {}).get(name, {})
    return str(found.get("string_value", ""))


def page_of(config: Mapping[str, Any]) -> str:
    """Where its strategy library looks. Raises UserError: it has none."""
    found = parameter(config, PAGE_PARAMETER)
    if not found:
        raise UserError(
            f"{config.get('name')} has no parameter SHUNTER_PAGE: prepare it by `shunter adopt "
            "prepare FOLDER`, and load it again"
        )
    return found


def threads_of(config: Mapping[str, Any]) -> int:
    """Threads that its code was told to use; 0: it takes no such number."""
    text = parameter(config, THREADS_PARAMETER)
    return int(text) if text.isdecimal() else 0


def present_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many instances a configuration has, and threads of each."""
    groups = config.get("instance_group") or [{}]
    return int(groups[0].get("count", 1)), threads_of(config)
