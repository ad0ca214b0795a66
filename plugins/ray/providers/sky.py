"""A cluster for SkyPilot's SkyServe, which has a procurement of its own.

SkyServe starts machines on any cloud, takes spot ones first and on-demand ones where there are none
(``dynamic_ondemand_fallback``), and sends requests to those that are ready. It knows no classes and
no deadlines: each machine's server keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from shunter.plugins.errors import UserError

HEAD = """\
# A service of SkyServe: sky serve up -n {name} THIS_FILE
# Spot machines first, on-demand ones where there are none. Written by shunter.
"""


@dataclass(frozen=True)
class SkyService:
    """What is to be served, and on what."""

    name: str
    store: str
    """Folder with the model archives, or the address of a bucket (``s3://...``)."""
    least: int = 1
    most: int = 10
    rate: float = 10.0
    """Requests a second that one machine is to get."""
    accelerators: str = ""
    """Such as ``A100:8``; empty: a machine without."""
    cloud: str = ""
    """Such as ``aws``; empty: whichever is cheapest."""
    on_demand_least: int = 0
    start_s: int = 600
    """Until a new machine has loaded its models."""
    keep_s: int = 600
    """A machine is kept for so long after it was needed last."""
    port: int = 8080


def sky_yaml(service: SkyService) -> str:
    """The file that ``sky serve up`` takes. Raises UserError."""
    _check(service)
    resources: dict[str, Any] = {"use_spot": True, "ports": service.port}
    if service.accelerators:
        resources["accelerators"] = service.accelerators
    if service.cloud:
        resources["infra"] = service.cloud
    document = {
        "name": service.name,
        "service": {
            "readiness_probe": {"path": "/ping", "initial_delay_seconds": service.start_s},
            "replica_policy": {
                "min_replicas": service.least,
                "max_replicas": service.most,
                "target_qps_per_replica": service.rate,
                "dynamic_ondemand_fallback": True,
                "base_ondemand_fallback_replicas": service.on_demand_least,
                "downscale_delay_seconds": service.keep_s,
            },
        },
        "resources": resources,
        "file_mounts": {"/models": service.store},
        "setup": "sudo apt-get install -y openjdk-17-jre-headless\npip install shunter\n",
        # Without keys: they end after an hour, and SkyServe's probe could get no new ones.
        "run": "exec shunter serve --no-tokens --store /models"
        f" --config inference_address=http://0.0.0.0:{service.port}\n",
    }
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=False)
    return HEAD.format(name=service.name) + body


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def _check(service: SkyService) -> None:
    for what, value, is_right, allowed in (
        ("--least", service.least, service.least >= 0, "a number from 0"),
        ("--most", service.most, service.most >= max(1, service.least), "a number from --least"),
        ("--rate", service.rate, service.rate > 0, "a number above 0"),
        (
            "--on-demand-least",
            service.on_demand_least,
            0 <= service.on_demand_least <= service.most,
            "a number up to --most",
        ),
    ):
        if not is_right:
            raise UserError(f"{what} {value}: allowed is {allowed}")
