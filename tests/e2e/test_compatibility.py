"""Archives written for TorchServe behave as they do there, byte for byte."""

import io
import json
import re
import warnings
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROWS = ["[1, 2, 3, 4]", "[0.5, 0.25, 0, -1]", "[1e3, 1e-3, 7, 0]"]
JSON = {"Content-Type": "application/json"}
KINDS = ["bytes", "text", "list", "dict", "number", "unserializable", "status", "refuse"]
KINDS += ["raise", "wrong length", "request"]
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="kind"\r\n\r\nrequest\r\n'
    b'--x\r\nContent-Disposition: form-data; name="more"\r\n\r\n1\r\n--x--\r\n'
)
MODEL_FILE = b"""
import torch

class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)
"""


def _weights():
    """The same model twice: as a state dictionary and as TorchScript."""
    import torch

    layer = torch.nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]]))
        layer.bias.zero_()
    eager, scripted = io.BytesIO(), io.BytesIO()
    torch.save({"layer." + name: value for name, value in layer.state_dict().items()}, eager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        torch.jit.save(torch.jit.script(layer), scripted)
    return eager.getvalue(), scripted.getvalue()


@pytest.fixture(scope="module")
def third_party(archives):
    """Archives of models by others: name to file."""
    eager, scripted = _weights()
    weights = {"serializedFile": "weights.pt"}
    files = {"weights.pt": eager, "model.py": MODEL_FILE}
    shared = {"shunter": {"weights": "shared"}}  # stock does not know it
    return {
        "eager": archives.add(
            *("eager", "eager"),
            config=shared,
            model={**weights, "modelFile": "model.py"},
            files=files,
        ),
        "scripted": archives.add(
            "scripted", "eager", config=shared, model=weights, files={"weights.pt": scripted}
        ),
        "plain": archives.add("plain", "plain"),
    }


@pytest.fixture(scope="module")
def both(harness, archives, torchserve_site, make_server, third_party, tmp_path_factory):
    """A stock server and the one with the jar, with the same models."""
    with harness.running(make_server(), archives, tmp_path_factory.mktemp("stock")) as stock:
        asked = [
            server.pool.submit(server.register, name, file)
            for server in (stock, torchserve_site)
            for name, file in third_party.items()
        ]
        assert {future.result().status for future in asked} == {200}
        yield stock, torchserve_site
        for name in third_party:
            torchserve_site.management("DELETE", f"/models/{name}")


def _same(both, *request):
    """The answer of both servers, after a look that they are equal."""
    stock, shunter = (site.inference(*request) for site in both)
    assert stock == shunter
    return shunter


@pytest.mark.parametrize("name", ["eager", "scripted"])
def test_answers_of_base_handlers_are_those_of_stock(both, name):
    expected = [b"[\n  10.0,\n  -2.0\n]", b"[\n  -0.25,\n  1.25\n]"]
    for number, row in enumerate(ROWS):
        answer = _same(both, "POST", f"/predictions/{name}", row, JSON)
        assert (answer.status, answer.headers["x-rows"]) == (200, "1")
        assert number >= len(expected) or answer.body == expected[number]


def test_their_weights_are_files_that_all_their_workers_map(both):
    _, site = both
    folder = Path(site.status()["runtime"]) / "weights"
    workers = [
        worker["pid"]
        for name in ("eager", "scripted")
        for worker in site.management("GET", f"/models/{name}")[0]["workers"]
    ]
    mapped = {
        pid: {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
              if line.endswith(".safetensors")}
        for pid in workers
    }  # fmt: skip
    assert all(len(files) == 1 for files in mapped.values())
    assert set().union(*mapped.values()) == {str(path) for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_every_kind_are_those_of_stock(both, kind):
    headers = {"X-Mine": "1", "User-Agent": "test", "Content-Type": "text/plain"}
    _same(both, "POST", "/predictions/plain", kind, headers)
    _same(both, "POST", "/predictions/plain/1.0", kind, headers)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("POST", "/predictions/plain", FORM, {"Content-Type": "multipart/form-data; boundary=x"}),
        ("GET", "/predictions/plain?kind=text", None, {}),
        ("POST", "/predictions/eager", "not json", JSON),
        ("POST", "/predictions/nobody", "x", {}),
        ("POST", "/predictions/plain/9.9", "x", {}),
        ("OPTIONS", "/", None, {}),
    ],
)
@pytest.mark.support("REST predictions, KServe v1 and v2")
def test_requests_of_every_kind_are_answered_as_by_stock(both, method, path, body, headers):
    _same(both, method, path, body, headers)


def test_describe_is_that_of_stock_and_knows_what_the_handler_says_of_itself(both):
    described = []
    for site in both:
        answer = site.management("GET", "/models/eager", customized="true")[0]
        workers = answer.pop("workers")
        described.append((answer, [sorted(worker) for worker in workers]))
    assert described[0] == described[1]
    assert described[1][0]["customizedMetadata"] == {"inputs": 4, "outputs": 2}


def _described(site, model):
    """A customised describe call under way."""
    path = f"/models/{model.name}/{model.version}"
    return site.pool.submit(site.management, "GET", path, customized="true")


@pytest.mark.support("Explanations, custom `describe`")
def test_a_customised_describe_waits_for_its_turn_and_for_no_deadline(site, serve, wait_until):
    model = serve("ordered", config={"shunter": {"slo_ms": 200}})
    patient = {"x-shunter-deadline-ms": "60000"}
    gate, _ = model.hold(headers=patient)
    before = model.queue("before", headers=patient)
    described = _described(site, model)
    wait_until("it waits", lambda: model.waiting() == 2)
    assert model.ask("expires").status == 504  # it came later, with the model's own deadline
    assert model.waiting() == 2
    gate.open()
    assert before.result().status == 200
    assert described.result()[0]["customizedMetadata"] == {"described": model.pids()[0]}
    assert model.order() == ["held", "before", "describe"]


def test_a_slow_describe_costs_no_worker(site, serve, tmp_path, wait_until):
    gate = tmp_path / "described"
    section = {"environment": {"ECHO_DESCRIBE": str(gate)}}
    model = serve(config={"responseTimeout": 1, "shunter": section})
    other = serve(config={"responseTimeout": 1})
    before = model.pids()
    described = _described(site, model)
    wait_until("it runs", lambda: model.order() == ["describe"])
    stuck = other.gate()
    assert other.ask("stuck", **stuck.mark).status == 500  # begun later, and over time
    assert model.pids() == before and not described.done()
    gate.touch()
    assert described.result()[0]["customizedMetadata"] == {"described": before[0]}
    assert model.ask().status == 200 and model.pids() == before


def test_describe_lists_the_workers_that_requests_go_to(serve, wait_until):
    model = serve(initial_workers=2)
    gate, _ = model.hold("a", "b")
    assert model.scale(1, wait=False).status == 202
    wait_until("one is to go", lambda: len(model.state()["draining"]) == 1)
    assert len(model.describe()["workers"]) == 1
    assert len(model.pids()) == 2
    gate.open()
    wait_until("it is gone", lambda: model.state()["draining"] == [])


def _samples(site, name):
    pattern = re.compile(rf'^{name}\{{(.*ModelName="eager".*)\}} (\S+)$', re.MULTILINE)
    return [float(value) for _, value in pattern.findall(site.metrics())]


@pytest.mark.support("Metrics, custom metrics, log configuration")
def test_metrics_of_handlers_are_counted_before_their_batch_is_answered(both):
    site = both[1]
    seen = sum(_samples(site, "RowsSeen"))
    for row in ROWS * 3:
        assert site.inference("POST", "/predictions/eager", row, JSON).status == 200
        seen += 1
        assert sum(_samples(site, "RowsSeen")) == seen  # nobody waits for it
    assert _samples(site, "LongestRow") == [4]
    for name in ("HandlerTime", "PredictionTime"):
        assert _samples(site, name), name


STOCK = {
    "tickets": ("echo", {"useJobTicket": True}),
    "sequences": ("sequence", {"sequenceBatching": True, "sequenceMaxIdleMSec": 60_000}),
    "coroutines": ("coroutine", {"asyncCommunication": True}),
    "parallel": ("echo", {"parallelType": "pp", "torchrun": {"nproc-per-node": 1}}),
}


@pytest.mark.support(
    "Job tickets", "Sequence batching", "Async communication", "Parallel workers"
)
@pytest.mark.parametrize("name", STOCK)
def test_a_model_that_needs_stock_queues_is_left_to_them(site, serve, name):
    handler, config = STOCK[name]
    config = {"minWorkers": 1, "maxWorkers": 1, "maxBatchDelay": 10, **config}
    model = serve(name, handler=handler, stock=True, config=config)
    beside = serve()
    status = site.status()
    assert status["stock_models"] == [f"{name}/1.0"]
    assert name not in [served["name"] for served in status["models"]]
    sequence = {"ts_request_sequence_id": "s", "ts_request_sequence_start": "true"}
    headers = sequence if handler == "sequence" else {}
    assert model.ask("a", x=2, headers=headers)["id"] == "a"
    if handler == "sequence":
        assert model.ask("b", x=3, headers={"ts_request_sequence_id": "s"})["sum"] == 5
    assert beside.ask("b")["id"] == "b"
    assert len(model.pids()) == 1


@pytest.mark.support("C++ backend")
def test_a_model_of_the_c_backend_is_left_to_stock(harness, site, archives):
    """Which there is not here: its worker never comes."""
    archive = archives.add("cpp", "echo")
    with zipfile.ZipFile(archives.folder / archive) as file:
        content = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(content["MAR-INF/MANIFEST.json"]) | {"runtime": "LSP"}
    content["MAR-INF/MANIFEST.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(archives.folder / archive, "w") as file:
        for name, data in content.items():
            file.writestr(name, data)
    assert site.register("cpp", archive, synchronous="false").status == 202
    try:
        harness.wait_until("it is seen", lambda: site.status()["stock_models"] == ["cpp/1.0"])
    finally:
        assert site.management("DELETE", "/models/cpp").status == 200


@pytest.mark.support("`cpu_launcher_enable=true`", "`debug=true`")
@pytest.mark.parametrize("setting", ["cpu_launcher_enable", "debug"])
def test_a_server_that_starts_workers_in_its_own_way_keeps_them(
    harness, archives, plugins, make_server, tmp_path, setting
):
    """For debugging somebody else starts them."""
    server = make_server(plugins, config={setting: "true"})
    with harness.running(server, archives, tmp_path, patience_s=30) as site:
        archive = archives.add(f"its-{setting}")
        assert site.register("m", archive, synchronous="false").status == 202
        harness.wait_until("it is seen", lambda: site.status()["stock_models"] == ["m/1.0"])
        assert site.status()["models"] == []
        if setting != "debug":

            def answer():
                return site.inference("POST", "/predictions/m", b'{"id": "a"}', JSON)

            harness.wait_until("an answer", lambda: answer().status == 200)


@pytest.mark.support("Micro-batching")
def test_parts_of_a_batch_run_beside_each_other_and_answers_keep_their_order(serve):
    model = serve(handler="micro", config={"batchSize": 8, "maxWorkers": 1, "minWorkers": 1})
    futures = [model.send(f"r{number}", x=number) for number in range(40)]
    answers = [future.result() for future in futures]
    assert {answer.status for answer in answers} == {200}, answers
    found = [(answer["id"], answer["doubled"]) for answer in answers]
    assert found == [(f"r{number}", 2 * number) for number in range(40)]
    assert {answer["part"] for answer in answers} <= {1, 2}


SPEC = b"""
models:
    min-workers: 1
    max-workers: 1
    batch-size: 1
    max-batch-delay: 10
    retry-attempts: 1
    timeout-ms: 30000
    one:
      url: %s
dag:
  start: [one]
  one: [finish]
"""
FUNCTIONS = b"""
import json
import time

def start(data, context):
    time.sleep(0.2)
    return [row.get("data") or row.get("body") for row in data or ()]

def finish(data, context):
    time.sleep(0.2)
    bodies = [json.loads(row.get("data") or row.get("body")) for row in data or ()]
    return [{"finished": body["id"]} for body in bodies]
"""


@pytest.mark.support("Workflow functions")
def test_a_workflow_is_left_to_stock(site, archives):
    """Its parts take a while: stock loses an answer that comes before it set the promise for it
    (``DagExecutor.invokeModel``: ``addRESTInferenceJob``, then ``setResponsePromise``)."""
    described = {"workflowName": "flow", "specFile": "spec.yaml", "handler": "flow.py"}
    manifest = {"createdOn": "01/01/2024", "archiverVersion": "0.2.15", "workflow": described}
    with zipfile.ZipFile(archives.folder / "flow.war", "w") as archive:
        archive.writestr("WAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("spec.yaml", SPEC % archives.add("one").encode())
        archive.writestr("flow.py", FUNCTIONS)
    assert site.management("POST", "/workflows", url="flow.war").status == 200
    parts = [f"flow__{part}/1.0" for part in ("finish", "one", "start")]
    assert sorted(site.status()["stock_models"]) == parts
    answer = site.inference("POST", "/wfpredict/flow", '{"id": "w", "sleep_ms": 200}', JSON)
    assert (answer.status, answer.json) == (200, {"finished": "w"})
    assert site.management("DELETE", "/workflows/flow").status == 200
