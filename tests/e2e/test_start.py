"""How a server starts: bare, from a snapshot, with tokens, switched off."""

import json
import os
import sys

import psutil
import pytest

from shunter.plugins.torchserve.server import free_ports

pytestmark = pytest.mark.e2e


@pytest.fixture
def running(harness, archives, tmp_path):
    """Runs a server as a site."""
    numbers = iter(range(9))

    def running(server, **options):
        folder = tmp_path / f"site{next(numbers)}"
        folder.mkdir()
        return harness.running(server, archives, folder, **options)

    return running


def _cmdlines(site):
    children = psutil.Process(site.server.pid).children(recursive=True)
    return [" ".join(child.cmdline()) for child in children]


@pytest.mark.support("Snapshots")
def test_snapshots_bring_back_workers_and_configuration_with_the_jar_and_workers_without(
    running, make_server, make_bare, archives, plugins, tmp_path
):
    common = {"folder": tmp_path / "server", "ports": free_ports(), "snapshots": True}
    with running(make_server(plugins, **common), patience_s=30) as site:
        scaled = site.add("scaled")
        tuned = site.add("tuned", batch_size=8)
        tuned.configure(configuration="1x1x4", cores="auto", auto="true")
        scaled.scale(2)
        assert tuned.changed()["generation"] == 2
    store = archives.folder
    with running(
        make_bare(model_store=store, plugins=plugins, **common), patience_s=30
    ) as site:
        models = {model["name"]: model for model in site.status()["models"]}
        assert models["scaled"]["configuration"] == "2x0x1"
        assert models["scaled"]["auto"] is False
        assert models["tuned"]["configuration"] == "1x1x4"
        assert models["tuned"]["auto"] is True
        assert [group["cores"] for group in models["tuned"]["groups"]] == ["auto"]
        assert tuned.moved(site).ask()["threads"] == "1"
        assert len(scaled.moved(site).pids()) == 2
    with running(make_bare(model_store=store, **common)) as site:
        assert site.management("GET", "/shunter/status").status == 404
        described = {name: site.management("GET", f"/models/{name}")[0] for name in models}
        assert [len(described[name]["workers"]) for name in ("scaled", "tuned")] == [2, 1]
        assert described["tuned"]["batchSize"] == 8
        assert tuned.moved(site).ask().status == 200


@pytest.mark.support("Token authorisation, TLS, CORS")
def test_a_bare_start_installs_the_plugin_behind_the_tokens(
    harness, running, make_bare, archives, plugins
):
    """No --ts-config, no --ncs, no snapshot: TorchServe asks for the plugin too early then."""
    with running(make_bare(model_store=archives.folder, plugins=plugins, tokens=True)) as site:
        assert site.status()["controller"]["state"] == "running"
        keys = site.server.keys
        port = site.server.ports.management
        for key in (None, "x", keys["inference"]["key"]):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            for method, path in (
                ("GET", "/shunter/status"),
                ("GET", "/shunter/models/m"),
                ("PUT", "/shunter/models/m/configuration?configuration=1x1x1"),
            ):
                answer = harness.call(port, method, path, None, headers)
                assert (answer.status, answer["type"]) == (400, "InvalidKeyException"), answer
        assert keys["management"]["key"] not in json.dumps(site.status())


def test_switched_off_the_jar_leaves_a_stock_server(running, make_server, plugins, archives):
    with running(make_server(plugins, env={"SHUNTER": "off"})) as site:
        model = site.add(stock=True, batch_size=4, initial_workers=1)
        answer = site.management("GET", "/shunter/status")
        assert answer.status == 503 and "off" in answer["message"]
        asked = model.ask("a", headers={"x-shunter-class": "nonsense"})
        assert (asked.status, asked["id"]) == (200, "a")
        lines = _cmdlines(site)
        assert sum("model_service_worker.py" in line for line in lines) == 1
        assert not any("shunter.handlers" in line or "controller" in line for line in lines)
        assert "shunter_" not in site.metrics()


def test_a_bad_section_at_the_start_costs_that_model_and_no_other(
    running, make_server, plugins, archives
):
    bad = archives.add("bad", config={"shunter": {"slo": 5}})
    good = archives.add("good")
    with running(make_server(plugins, models=[good, bad])) as site:
        assert site.models() == {"good"}
        assert "shunter.slo" in site.log()


def test_what_alerts_are_made_of_is_logged_and_counted_as_by_stock(
    running, make_server, plugins, tmp_path, wait_until
):
    grpc = pytest.importorskip("grpc")
    from shunter.plugins.torchserve.grpc_client import InferenceClient

    folder = tmp_path / "server"
    trap = folder / "shunter"  # the working directory is not a place to import from
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    config = {"prefer_direct_buffer": "false"}
    server = make_server(plugins, folder=folder, quiet=False, config=config)
    with running(server) as site:
        assert not (tmp_path / "imported").exists()
        model = site.add(config={"responseTimeout": 1})
        for _ in range(5):
            assert model.ask().status == 200
        metrics = folder / "logs/ts_metrics.log"

        def times():  # written after the answer, as by stock
            return metrics.read_text().count("WorkerThreadTime.Milliseconds")

        wait_until("the last is written", lambda: times() >= 5)
        assert times() == len(model.ran()) == 5
        assert "Backend worker error" not in site.log()
        stuck = model.gate()
        assert model.ask("stuck", **stuck.mark).status == 500
        assert model.ask().status == 200
        wait_until("recovery", lambda: "Auto recovery succeeded" in site.log())
        lines = site.log().splitlines()
        expected = [
            "org.pytorch.serve.wlm.WorkerThread - Backend worker error",
            "WorkerInitializationException: no answer within responseTimeout of 1 s",
            "org.pytorch.serve.wlm.WorkerThread - Auto recovery start timestamp: ",
            "org.pytorch.serve.wlm.WorkerThread - Retry worker: ",
        ]
        for words in expected:
            assert any(words in line for line in lines), words
        patient = site.add()
        held = patient.gate()
        with InferenceClient(f"127.0.0.1:{site.server.grpc_inference}") as client:
            marks = {"data": json.dumps({"id": "held", **held.mark}).encode()}
            call = site.pool.submit(client.predict, patient.name, marks, timeout_s=100)
            wait_until("it runs", lambda: patient.order() == ["held"])
        with pytest.raises(grpc.RpcError):  # its channel was closed
            call.result()
        wait_until("it is told", lambda: "grpc client call already cancelled" in site.log())


NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *query-gpu=index*) printf '%s\n' index 0 ;;
  *) printf '%s\n' 'utilization.gpu [%], memory.used [MiB]' '7 %, 11 MiB' ;;
esac
"""


def test_describe_tells_the_use_of_a_gpu_as_stock_does(running, make_server, plugins, tmp_path):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    said = {}
    for name, jar in (("stock", None), ("shunter", plugins)):
        config = {"number_of_gpu": "1", "disable_system_metrics": "true"}
        path = f"{program.parent}{os.pathsep}{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        with running(make_server(jar, config=config, env={"PATH": path})) as site:
            [worker] = site.add(stock=True).describe()["workers"]
            said[name] = (worker["gpu"], worker["gpuUsage"])
    assert said["shunter"] == said["stock"]
    assert "gpuId::0" in said["stock"][1] and "11 MiB" in said["stock"][1]
