"""The file for SkyServe, by the fields that SkyPilot 0.14 takes."""

import pytest
import yaml

from shunter.plugins.errors import UserError
from shunter.plugins.ray.providers.sky import SkyService, sky_yaml

jsonschema = pytest.importorskip("jsonschema", reason="pip install 'shunter[test]'")


def fields(required=(), **properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}
SCHEMA = fields(
    ["service", "resources", "run"],
    name=TEXT,
    setup=TEXT,
    run=TEXT,
    file_mounts={"type": "object", "additionalProperties": TEXT},
    resources=fields(
        use_spot={"type": "boolean"}, ports={"type": "integer"}, accelerators=TEXT, infra=TEXT
    ),
    service=fields(
        ["readiness_probe", "replica_policy"],
        readiness_probe=fields(["path"], path=TEXT, initial_delay_seconds=NUMBER),
        replica_policy=fields(
            ["min_replicas"],
            min_replicas=WHOLE,
            max_replicas=WHOLE,
            target_qps_per_replica=NUMBER,
            dynamic_ondemand_fallback={"type": "boolean"},
            base_ondemand_fallback_replicas=WHOLE,
            downscale_delay_seconds=NUMBER,
        ),
    ),
)


def test_the_file_is_one_of_skypilots():
    text = sky_yaml(SkyService("demo", "s3://models", 2, 5, 40.0, "A100:8", "aws", 1))
    found = yaml.safe_load(text)
    jsonschema.validate(found, SCHEMA)
    assert found["service"]["replica_policy"]["dynamic_ondemand_fallback"] is True
    assert found["resources"] == {
        "use_spot": True,
        "ports": 8080,
        "accelerators": "A100:8",
        "infra": "aws",
    }
    assert "sky serve up -n demo" in text
    assert "setup: |" in text
    jsonschema.validate(yaml.safe_load(sky_yaml(SkyService("demo", "models"))), SCHEMA)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"least": -1}, "--least -1: allowed is a number from 0"),
        ({"least": 3, "most": 2}, "--most 2: allowed is a number from --least"),
        ({"rate": 0.0}, "--rate 0.0: allowed is a number above 0"),
        ({"on_demand_least": 11}, "--on-demand-least 11: allowed is a number up to --most"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(UserError, match=f"^{said}$"):
        sky_yaml(SkyService("demo", "models", **wrong))
