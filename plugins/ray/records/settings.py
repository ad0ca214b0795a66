"""``cluster.toml``: what a cluster is, checked at the edge.

An unknown key or a bad value is a UserError that names the key, the value and what is allowed.
"""

from __future__ import annotations

import ipaddress
import tomllib
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from shunter.allocator.planning.allowed import allowed
from shunter.plugins.errors import UserError
from shunter.plugins.reading import content

FILE = "cluster.toml"
LAST_PORT = 65000
section = dataclass(
    frozen=True,
    slots=True,
    config=ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True),
)
Switch = Annotated[bool, Strict()]


def _address(text: str) -> str:
    return str(ipaddress.ip_address(text))


Address = Annotated[str, AfterValidator(_address)]


def _number(default: Any, low: float, high: float) -> Any:
    return Field(default, ge=low, le=high, strict=True)


def _text(default: str, meaning: str) -> Any:
    return Field(default, strict=True, json_schema_extra={"allowed": meaning})


@section
class ServerSettings:
    """The model server of each machine: ``[server]``."""

    kind: Literal["torchserve", "triton"] = "torchserve"
    """Which one; all machines run the same."""
    store: str = _text("store", "path of a folder")
    """Model store, on every machine; a relative path starts at the folder of this file."""
    shunter_config: str = _text("", "path of a file")
    """``shunter.toml`` of every machine."""
    port: int = _number(8090, 1, LAST_PORT)
    """Inference of each machine, where other hosts reach it; management and metrics follow, and
    stay on that host."""
    grpc: int = _number(7090, 1, LAST_PORT)
    """gRPC of each machine."""


@section
class GatewaySettings:
    """Where requests come in: ``[gateways]``."""

    count: int = _number(2, 1, 64)
    """Gateways; each has its own process, and a client or load balancer takes any of them."""
    address: Address = _text("127.0.0.1", "an IP address")
    """Where they listen; 0.0.0.0: on every network."""
    port: int = _number(8080, 1, LAST_PORT)
    """Of the first one; those of the others follow."""
    max_body_mb: int = _number(64, 1, 4096)
    """A larger request is answered 413. Bodies are kept until they are answered: they may have to
    be sent again."""
    longest_s: int = _number(300, 1, 86400)
    """A request without an answer is given up after that."""


@section
class MachinesSettings:
    """How many machines there are, and where they come from: ``[machines]``."""

    provider: Literal["none", "local", "aws"] = "none"
    """``none``: those that were started, always; ``local``: nodes on this host, to try it."""
    least: int = _number(1, 0, 10000)
    """So many are always there."""
    most: int = _number(16, 1, 10000)
    """Never more."""
    only_on_demand: Switch = False
    """No spot machines, which are cheaper and may be taken away."""
    on_demand_least: int = _number(0, 0, 10000)
    """So many that nobody takes away."""
    keep_s: float = _number(600, 1, 86400)
    """A machine has to be surplus for so long before it is given back."""
    start_s: float = _number(60, 1, 3600)
    """From asking for a machine until it serves: the load is forecast so far ahead."""
    patience_s: float = _number(300, 10, 3600)
    """A machine that starts for longer is given back."""
    strict_most: float = _number(0.6, 0.05, 1)
    """Share of the workers that strict requests may keep busy."""
    most_busy: float = _number(0.9, 0.05, 1)
    """Share of the workers that all requests may keep busy."""


@section
class AwsSettings:
    """Where machines of Amazon's come from: ``[aws]``. Credentials are found as boto3 does."""

    cluster: str = _text("shunter", "a text")
    """Tag of the machines of this cluster."""
    region: str = _text("", "name of a region")
    """Such as us-east-1."""
    launch_template: str = _text("", "name or id of a launch template")
    """It starts `shunter serve --cluster`."""
    instance_type: str = _text("", "name of an instance type")
    """Instead of the launch template's."""
    subnets: tuple[str, ...] = Field((), json_schema_extra={"allowed": "a list of subnets"})
    """Tried one after the other: one in each zone."""
    notices: str = _text("", "URL of a queue")
    """SQS queue to which EventBridge sends interruption warnings."""


@section
class ModelSettings:
    """A model of the cluster: ``[models.NAME]``."""

    archive: str = _text("", "name of a file of the store")
    """Default: ``NAME.mar``."""
    idempotent: Switch = True
    """Whether a request that was lost on its way may run again elsewhere; a request's own header
    goes first."""


@section
class ClusterSettings:
    """All of ``cluster.toml``."""

    head_port: int = _number(6379, 1, LAST_PORT)
    """Where Ray's head listens to other hosts."""
    server: ServerSettings = Field(default_factory=ServerSettings)
    gateways: GatewaySettings = Field(default_factory=GatewaySettings)
    machines: MachinesSettings = Field(default_factory=MachinesSettings)
    aws: AwsSettings = Field(default_factory=AwsSettings)
    models: dict[str, ModelSettings] = Field(default_factory=dict)


def sections() -> dict[str, Any]:
    """The records of ``cluster.toml``, by what stands above their keys."""
    return {
        "above all tables": ClusterSettings,
        "[server]": ServerSettings,
        "[gateways]": GatewaySettings,
        "[machines]": MachinesSettings,
        "[aws]": AwsSettings,
        "[models.NAME]": ModelSettings,
    }


def given(
    config: Path | None, *, store: Path | None, triton: bool, port: int | None
) -> tuple[ClusterSettings, Path]:
    """Settings of a file, else of the working directory's, with options over it; and the folder
    where its relative paths start. Raises UserError."""
    if config is None and Path(FILE).exists():
        config = Path(FILE)
    found, base = load(config), config.parent if config else Path()
    server, gateways = found.server, found.gateways
    if store is not None:
        server = replace(server, store=str(store.resolve()))
    if triton:
        server = replace(server, kind="triton")
    if port is not None:
        if not 0 < port <= LAST_PORT:
            raise UserError(f"--port {port}: allowed is a number from 1 to {LAST_PORT}")
        gateways = replace(gateways, port=port)
    return replace(found, server=server, gateways=gateways), base


def load(path: Path | None) -> ClusterSettings:
    """Settings in a file, the defaults for None. Raises UserError."""
    if path is None:
        return ClusterSettings()
    try:
        document = tomllib.loads(content(path).decode())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    try:
        return parse(document)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def parse(document: dict[str, Any]) -> ClusterSettings:
    """Settings in a parsed TOML document. Raises UserError."""
    try:
        found = TypeAdapter(ClusterSettings).validate_python(document)
    except ValidationError as error:
        raise _told(error, document) from None
    for key in ("region", "launch_template"):
        if found.machines.provider == "aws" and not getattr(found.aws, key):
            raise UserError(f"aws.{key} is missing: machines.provider = 'aws' needs it")
    return found


def _told(error: ValidationError, document: dict[str, Any]) -> UserError:
    """The first thing that is wrong, in our words."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = [str(part) for part in first["loc"]][: 3 if first["loc"][0] == "models" else 2]
    key, value = ".".join(where), reduce(getitem, where, document)
    record: Any = ClusterSettings
    if len(where) > 1:
        named = ClusterSettings.__pydantic_fields__[where[0]].annotation
        record = ModelSettings if where[0] == "models" else named
    if first["type"] == "unexpected_keyword_argument":
        known = ", ".join(sorted(record.__pydantic_fields__))
        return UserError(f"{key} = {value!r} is unknown; allowed: {known}")
    if first["type"] in ("dataclass_type", "dict_type"):
        return UserError(f"{key} = {value!r} is not allowed; allowed: a table")
    return UserError(f"{key} = {value!r} is not allowed; allowed: {allowed(record, where[-1])}")
