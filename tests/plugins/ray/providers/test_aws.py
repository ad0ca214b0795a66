"""The provider for AWS, against moto's AWS in this process."""

import json
from datetime import UTC, datetime

import pytest

boto3 = pytest.importorskip("boto3", reason="pip install 'shunter[aws]'")
moto = pytest.importorskip("moto", reason="pip install 'shunter[test]'")

from botocore.stub import ANY, Stubber  # noqa: E402
from moto.ec2.models import ec2_backends  # noqa: E402
from moto.ec2.models.spot_requests import SpotInstanceRequest  # noqa: E402

from shunter.allocator.cluster.procurement import Kind, Rules  # noqa: E402
from shunter.plugins.ray.providers.aws import AwsProvider, AwsSettings  # noqa: E402
from shunter.plugins.ray.providers.procurer import Procurer  # noqa: E402
from shunter.plugins.ray.providers.provider import ProviderError  # noqa: E402

pytestmark = pytest.mark.slow
REGION = "us-east-1"
WARNED = "2026-11-23T12:00:00Z"
WARNED_S = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()


# The first one: later there is an account, and moto has credentials for all.
def test_without_credentials_it_is_said_what_is_missing(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ProviderError, match="Unable to locate credentials"):
        provider().machines()


@pytest.fixture(scope="module")
def account():
    """One with a launch template; its client. Moto takes seconds to make one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        # Moto filters by attributes, and forgot this one.
        code = property(lambda each: each._status_code)
        patch.setattr(SpotInstanceRequest, "status_code", code, raising=False)
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        with moto.mock_aws():
            ec2 = boto3.client("ec2", region_name=REGION)
            ec2.create_launch_template(
                LaunchTemplateName="node",
                LaunchTemplateData={"ImageId": "ami-1", "InstanceType": "p4d.24xlarge"},
            )
            yield ec2


@pytest.fixture
def aws(account):
    """The client, and nothing runs."""
    yield account
    for page in account.get_paginator("describe_instances").paginate():
        for reservation in page["Reservations"]:
            for each in reservation["Instances"]:
                account.terminate_instances(InstanceIds=[each["InstanceId"]])


def provider(**others):
    return AwsProvider(AwsSettings("demo", REGION, "node", **others))


def instance(aws, name):
    found = aws.describe_instances(InstanceIds=[name])
    return found["Reservations"][0]["Instances"][0]


def event(name, at=WARNED):
    return json.dumps(
        {
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "source": "aws.ec2",
            "time": at,
            "detail": {"instance-id": name, "instance-action": "terminate"},
        }
    )


def test_machines_are_got_listed_drained_and_given_back(aws):
    here = provider()
    (spot,), (safe,) = here.acquire(Kind.SPOT, 1), here.acquire(Kind.ON_DEMAND, 1)
    found = {each.name: each for each in here.machines()}
    assert {name: each.kind for name, each in found.items()} == {
        spot: Kind.SPOT,
        safe: Kind.ON_DEMAND,
    }
    assert found[spot].address == instance(aws, spot)["PrivateIpAddress"]
    assert instance(aws, spot)["InstanceType"] == "p4d.24xlarge"
    here.drain(spot)
    # What another controller finds, that has begun since.
    assert {each.name for each in provider().machines() if each.is_draining} == {spot}
    here.release([spot, "i-0123456789abcdef0", safe])
    assert here.machines() == []


def test_other_clusters_are_left_alone(aws):
    AwsProvider(AwsSettings("other", REGION, "node")).acquire(Kind.SPOT, 1)
    assert provider().machines() == []


def test_another_type_and_each_zone_in_turn(aws):
    subnets = [each["SubnetId"] for each in aws.describe_subnets()["Subnets"]][:2]
    here = provider(instance_type="g5.xlarge", subnets=tuple(subnets))
    names = here.acquire(Kind.SPOT, 2)  # moto grants one a call
    found = [instance(aws, name) for name in names]
    assert [each["SubnetId"] for each in found] == subnets
    assert {each["InstanceType"] for each in found} == {"g5.xlarge"}


def test_a_notice_is_seen_in_the_request_of_the_instance(aws):
    (request,) = aws.request_spot_instances(
        LaunchSpecification={"ImageId": "ami-1", "InstanceType": "p4d.24xlarge"}
    )["SpotInstanceRequests"]
    (known,) = ec2_backends["123456789012"][REGION].spot_instance_requests.values()
    here = provider()
    assert here.notices() == {}
    known._status_code = "marked-for-termination"
    assert list(here.notices()) == [request["InstanceId"]]
    known._status_code = "instance-terminated-by-price"


def test_notices_come_as_events_and_anything_else_is_left(aws, caplog):
    sqs = boto3.client("sqs", region_name=REGION)
    url = sqs.create_queue(QueueName="warnings")["QueueUrl"]
    here = provider(notices=url)
    (name,) = here.acquire(Kind.SPOT, 1)
    for body in ("[]", "{", '{"detail": 1}', event(7), event(name, "soon"), event(name)):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    assert here.notices() == {name: WARNED_S + 120}
    assert caplog.text.count("not an interruption warning") == 5
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    here.machines()
    assert here.notices() == {name: WARNED_S + 120}
    here.release([name])
    here.machines()
    assert here.notices() == {}


@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "RequestLimitExceeded"])
def test_where_there_is_none_the_next_zone_is_asked(aws, code):
    here = provider(subnets=("subnet-a", "subnet-b"))
    here._ec2.meta.events.register("needs-retry.ec2.RunInstances", lambda **_: None)
    with Stubber(here._ec2) as stub:
        stub.add_client_error("run_instances", code)
        stub.add_response(
            "run_instances",
            {"Instances": [{"InstanceId": "i-1"}]},
            {
                "LaunchTemplate": {"LaunchTemplateName": "node"},
                "MinCount": 1,
                "MaxCount": 3,
                "TagSpecifications": ANY,
                "InstanceMarketOptions": ANY,
                "SubnetId": "subnet-b",
            },
        )
        assert here.acquire(Kind.SPOT, 3) == ["i-1"]


def test_what_an_operator_has_to_mend_is_an_error_that_says_so(aws):
    here = AwsProvider(AwsSettings("demo", REGION, "missing"))
    with pytest.raises(ProviderError, match="AWS refuses RunInstances: InvalidLaunchTemplateName"):
        here.acquire(Kind.ON_DEMAND, 1)
    with Stubber(here._ec2) as stub, pytest.raises(ProviderError, match="UnauthorizedOperation"):
        stub.add_client_error("describe_instances", "UnauthorizedOperation", "You are not allowed")
        here.machines()


def test_a_taken_machine_is_replaced_through_the_whole_way(aws):
    sqs = boto3.client("sqs", region_name=REGION)
    url = sqs.create_queue(QueueName="warnings")["QueueUrl"]
    here = provider(notices=url)
    procurer = Procurer(here, Rules())

    def step(now, busy=()):
        work = {each.name: float(each.name in busy) for each in here.machines()}
        return [type(each).__name__ for each in procurer.step(WARNED_S + now, 1, work)]

    assert step(0) == ["Acquire"]
    (first,) = [each.name for each in here.machines()]
    assert step(5) == []
    sqs.send_message(QueueUrl=url, MessageBody=event(first))
    assert step(10, busy=[first]) == ["Acquire"]
    assert step(15, busy=[first]) == ["Drain"]
    assert step(20, busy=[first]) == []
    assert step(25) == ["Release"]
    (second,) = [each.name for each in here.machines()]
    assert second != first
    assert step(30) == []
