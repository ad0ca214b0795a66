"""Options of ``tritonserver``: those that a user may give, and those of ``serve``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shunter.plugins.errors import UserError

NEAR = ("127.0.0.1", "0.0.0.0")
"""Addresses at which it can be asked from this host."""
_OURS = {
    "http-port": "say --port",
    "grpc-port": "say --grpc",
    "model-repository": "its models are those of --store; model-store=FOLDER has others beside",
    "model-control-mode": "models come and go one by one: --model, `shunter load`",
    "repository-poll-secs": "models come and go one by one: --model, `shunter load`",
    "backend-directory": "put other backends beside those of this Triton",
    "exit-on-error": "a model that does not load must not end the others",
}
"""Option -> what to do instead."""


def checked(given: Mapping[str, str], ports: Sequence[int]) -> dict[str, str]:
    """The same, without the dashes that a user may have written. ``ports``: HTTP, gRPC, metrics.

    Raises UserError for what contradicts ``serve``.
    """
    found = {name.removeprefix("--"): value for name, value in given.items()}
    for name, value in found.items():
        if (why := _against(name, value, ports)) is not None:
            raise UserError(f"--config {name}={value}: this is said by serve itself; {why}")
    return found


def _against(name: str, value: str, ports: Sequence[int]) -> str | None:
    if name in _OURS:
        return _OURS[name]
    if name == "allow-http" and _is_false(value):
        return "it asks Triton by HTTP; http-address=127.0.0.1 keeps others away"
    if name == "http-address" and value not in NEAR:
        return f"it asks Triton at 127.0.0.1; allowed: {', '.join(NEAR)}"
    if name == "http-restricted-api" and _restricts(value):
        return "it asks Triton by these, and has no key: restrict others"
    if name == "backend-config" and value.startswith("shunter,"):
        return "its backend's settings are not for users"
    if name == "metrics-port" and value in map(str, ports):
        return f"port {value} is taken by --port, --grpc or shunter_* metrics: name another"
    return None


def _is_false(value: str) -> bool:
    return value.lower() in ("false", "0", "off", "no")


def _restricts(value: str) -> bool:
    names = value.partition(":")[0].split(",")
    return bool({"model-repository", "health"} & {name.strip() for name in names})


def launched(
    given: Mapping[str, str], ports: Sequence[int], folders: Mapping[str, str]
) -> dict[str, str]:
    """All options. ``folders``: of models, backends and caches, by their option."""
    return {**folders, "http-port": str(ports[0]), "grpc-port": str(ports[1]), **given}
