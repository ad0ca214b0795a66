"""Machines of Amazon EC2: spot and on-demand instances from a launch template.

What a cluster has stands in tags of its instances, nowhere else. The launch template says image,
roles, security groups, and user data that joins the cluster. Errors that only mean that there is no
machine to be had lead to fewer machines; the others tell the operator what to mend.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from shunter.allocator.cluster.procurement import Kind
from shunter.plugins.ray.providers.provider import Listed, ProviderError

LOGGER = logging.getLogger("shunter.procurement")
NOTICE_S = 120.0
"""From the notice until a spot instance is taken."""
CLUSTER_TAG, DRAINING_TAG = "shunter:cluster", "shunter:draining"
SCARCE = {
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientCapacity",
    "InsufficientFreeAddressesInSubnet",
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "Unsupported",  # this zone has none of that type
}
BUSY = {"RequestLimitExceeded", "Throttling", "ThrottlingException", "ServiceUnavailable"}
BUSY |= {"InternalError", "InternalFailure", "Unavailable"}
MARKED = ["marked-for-termination", "marked-for-stop"]
WARNING = "EC2 Spot Instance Interruption Warning"
MESSAGES = 100
"""So many notices are read at a time at most."""

P, R = ParamSpec("P"), TypeVar("R")


@dataclass(frozen=True)
class AwsSettings:
    """Where the machines of a cluster are."""

    cluster: str
    region: str
    launch_template: str
    """Its name, or its id (``lt-...``)."""
    instance_type: str = ""
    """Instead of the launch template's."""
    subnets: tuple[str, ...] = ()
    """Tried one after the other: one in each zone. Default: the launch template's."""
    notices: str = ""
    """URL of an SQS queue to which EventBridge sends interruption warnings. Without it they are
    seen when the requests of the instances are described, which may be later."""


def _told(method: Callable[P, R]) -> Callable[P, R]:
    """With errors of AWS as ours."""

    @wraps(method)
    def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except ClientError as error:
            said = error.response.get("Error", {})
            text = f"AWS refuses {error.operation_name}: {said.get('Code')}: {said.get('Message')}"
            raise ProviderError(text) from error
        except BotoCoreError as error:
            raise ProviderError(f"AWS cannot be asked: {error}") from error

    return telling


class AwsProvider:
    """See :class:`Provider`. Not thread-safe."""

    def __init__(self, settings: AwsSettings) -> None:
        """Nothing is asked yet; credentials are found as boto3 finds them."""
        self._settings = settings
        # Adaptive: throttled calls are made again, ever slower.
        config = Config(retries={"mode": "adaptive", "max_attempts": 6})
        self._ec2 = boto3.client("ec2", region_name=settings.region, config=config)
        self._sqs = boto3.client("sqs", region_name=settings.region, config=config)
        self._warned: dict[str, float] = {}
        self._draining: set[str] = set()
        """Their tags may not be seen everywhere yet."""

    @_told
    def machines(self) -> Sequence[Listed]:
        """Instances with the cluster's tag that start or run."""
        pages = self._ec2.get_paginator("describe_instances").paginate(
            Filters=[
                {"Name": f"tag:{CLUSTER_TAG}", "Values": [self._settings.cluster]},
                {"Name": "instance-state-name", "Values": ["pending", "running"]},
            ]
        )
        found = [
            self._listed(instance)
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]
        names = {each.name for each in found}
        self._warned = {name: end for name, end in self._warned.items() if name in names}
        self._draining &= names
        return found

    def _listed(self, instance: Mapping[str, Any]) -> Listed:
        tags = {each["Key"]: each["Value"] for each in instance.get("Tags", ())}
        name = instance["InstanceId"]
        spot = instance.get("InstanceLifecycle") == "spot"
        return Listed(
            name,
            Kind.SPOT if spot else Kind.ON_DEMAND,
            DRAINING_TAG in tags or name in self._draining,
            instance.get("PrivateIpAddress", ""),
        )

    @_told
    def notices(self) -> Mapping[str, float]:
        """By the requests of spot instances, and by events where a queue of them is set."""
        pages = self._ec2.get_paginator("describe_spot_instance_requests").paginate(
            Filters=[{"Name": "status-code", "Values": MARKED}]
        )
        for page in pages:
            for each in page["SpotInstanceRequests"]:
                name, status = each.get("InstanceId"), each.get("Status", {})
                if name and status.get("Code") in MARKED:
                    self._warn(name, status["UpdateTime"].timestamp())
        if self._settings.notices:
            self._read_events()
        return dict(self._warned)

    def _warn(self, name: str, at: float) -> None:
        self._warned[name] = min(at + NOTICE_S, self._warned.get(name, at + NOTICE_S))

    def _read_events(self) -> None:
        url = self._settings.notices
        for _ in range(MESSAGES // 10):
            got = self._sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
            messages = got.get("Messages", ())
            for each in messages:
                warning = _warning(each["Body"])
                if warning is None:
                    LOGGER.warning("not an interruption warning in %s: %.200r", url, each["Body"])
                else:
                    self._warn(*warning)
                # Who else is to hear of it needs a queue of his own.
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
            if not messages:
                return

    @_told
    def acquire(self, kind: Kind, count: int) -> Sequence[str]:
        """As many as there are, zone by zone."""
        names: list[str] = []
        for subnet in self._settings.subnets or ("",):
            if len(names) < count:
                names += self._run(kind, count - len(names), subnet)
        return names

    def _run(self, kind: Kind, count: int, subnet: str) -> list[str]:
        template = self._settings.launch_template
        key = "LaunchTemplateId" if template.startswith("lt-") else "LaunchTemplateName"
        resources = ["instance", "spot-instances-request"] if kind == Kind.SPOT else ["instance"]
        tags = [{"Key": CLUSTER_TAG, "Value": self._settings.cluster}]
        asked: dict[str, Any] = {
            "LaunchTemplate": {key: template},
            "MinCount": 1,  # as many as there are, up to count
            "MaxCount": count,
            "TagSpecifications": [{"ResourceType": each, "Tags": tags} for each in resources],
        }
        if kind == Kind.SPOT:
            once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            asked["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
        if self._settings.instance_type:
            asked["InstanceType"] = self._settings.instance_type
        if subnet:
            asked["SubnetId"] = subnet
        try:
            done = self._ec2.run_instances(**asked)
        except ClientError as error:
            if _code(error) in SCARCE | BUSY:
                LOGGER.info("no %s machine%s: %s", kind, f" in {subnet}" * bool(subnet), error)
                return []
            raise
        return [each["InstanceId"] for each in done["Instances"]]

    @_told
    def drain(self, name: str) -> None:
        """As a tag, which the next controller finds."""
        tags = [{"Key": DRAINING_TAG, "Value": "yes"}]
        self._ec2.create_tags(Resources=[name], Tags=tags)
        self._draining.add(name)

    @_told
    def release(self, names: Iterable[str]) -> None:
        """One call each: a call that names one that is gone ends none of them."""
        for name in names:
            try:
                self._ec2.terminate_instances(InstanceIds=[name])
            except ClientError as error:
                if _code(error) != "InvalidInstanceID.NotFound":
                    raise


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _warning(body: str) -> tuple[str, float] | None:
    """Instance and time of an event as EventBridge sends it; None for anything else."""
    with suppress(ValueError, TypeError, KeyError):
        event = json.loads(body)
        name = event["detail"]["instance-id"]
        if event["detail-type"] == WARNING and isinstance(name, str):
            return name, datetime.fromisoformat(event["time"]).timestamp()
    return None
