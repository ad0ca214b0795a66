"""The shell around one TorchServe: isolation as plain values, then the stock server itself."""

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import replace

import psutil
import pytest

from shunter.plugins.torchserve import isolation, rest
from shunter.plugins.torchserve import server as server_module
from shunter.plugins.torchserve.server import Ports, Server, ServerFailed, free_ports

PORTS = Ports(1, 2, 3, 4, 5, 6)
BRIEF = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""For a JVM that has only a few requests to serve: it starts with less effort."""


def lines_of(text):
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_given_settings_win_over_those_of_isolation():
    extra = {"job_queue_size": "7", "metrics_address": "http://127.0.0.1:9"}
    lines = lines_of(isolation.properties(PORTS, tokens=True, model_api=False, extra=extra))
    assert lines["inference_address"] == "http://127.0.0.1:1"
    assert lines["metrics_address"] == "http://127.0.0.1:9"
    assert lines["job_queue_size"] == "7"
    assert lines["disable_token_authorization"] == "false"
    assert lines["enable_model_api"] == "false"


def test_the_environment_shares_nothing_but_what_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("TS_CONFIG_FILE", "/elsewhere")
    monkeypatch.setenv("KEPT", "yes")
    own = isolation.environment(
        temporary=tmp_path / "t", runtime=tmp_path / "r", logs=tmp_path / "l", extra={"TEMP": "/x"}
    )
    assert "TS_CONFIG_FILE" not in own
    assert (own["KEPT"], own["TEMP"]) == ("yes", "/x")
    assert own["TMPDIR"] == str(tmp_path / "t")
    assert own["SHUNTER_RUNTIME_DIR"] == str(tmp_path / "r")


def test_the_temporary_folder_leaves_room_for_a_socket_path(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(isolation.tempfile, "tempdir", str(long))
    folder = isolation.short_folder()
    folder.rmdir()
    assert len(str(folder / ".ts.sock.65535")) < 108
    assert list(long.iterdir()) == []


def test_a_server_that_cannot_start_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "torchserve_command", lambda: None)
    monkeypatch.setattr(isolation.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ServerFailed, match="torchserve is not installed"):
        Server(model_store=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_stopping_a_server_that_never_started_is_nothing(tmp_path):
    assert Server(model_store=tmp_path).stop() == 0


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Starts a shell in place of TorchServe, in a folder that stays."""

    def launch(script):
        monkeypatch.setattr(Server, "_command", lambda self: ["sh", "-c", script])
        server = Server(model_store=tmp_path, folder=tmp_path / "x")
        with contextlib.ExitStack() as stack:
            stack.callback(server.stop, 0)
            server._launch()
            ends.push(stack.pop_all())
        return server

    with contextlib.ExitStack() as ends:
        yield launch


def lines_in(log, count):
    end = time.monotonic() + 60
    while len(found := log.read_bytes().splitlines()) < count:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_log_that_was_cut_goes_on_at_its_beginning(launch):
    server = launch("echo one; until [ -e go ]; do sleep 0.01; done; echo two; sleep 600")
    lines_in(server.log, 1)
    os.truncate(server.log, 0)
    (server.folder / "go").touch()
    assert lines_in(server.log, 1) == [b"two"]


def test_a_folder_is_its_servers_also_when_who_started_it_was_killed(launch):
    server = launch("echo one; until [ -e go ]; do sleep 0.01; done")
    (lock,) = server._passed
    (server.folder / isolation.LOCK).write_text(str(dead()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), lock)  # as the kernel closes it
    with pytest.raises(isolation.FolderTaken, match=r"has left behind \(`shunter status` says"):
        isolation.lock(server.folder)
    (server.folder / "go").touch()
    server._tree.launcher.wait(60)
    os.close(isolation.lock(server.folder))


def dead():
    """Pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    pytest.importorskip("sklearn")
    from shunter.model_store.digits.archive import pack_digits

    return pack_digits(tmp_path_factory.mktemp("store")).path.parent


@pytest.fixture(scope="module")
def server(store, tmp_path_factory):
    """Stock TorchServe with tokens and two workers of the digits model."""
    server = Server(
        model_store=store,
        models=["digits=digits.mar"],
        folder=tmp_path_factory.mktemp("server"),
        config={"default_workers_per_model": "2"},
        env=BRIEF,
        tokens=True,
    )
    server.start()
    yield server
    server.stop(0)


@pytest.fixture(scope="module")
def split():
    from shunter.model_store.digits import data

    return data.load()


def token(server, api):
    return server.keys[api]["key"]


def _runs(pid):
    """Whether it has not ended; orphans are buried later."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.e2e
class TestStockServer:
    def test_it_is_ready_when_start_returns(self, server):
        assert server.running
        assert psutil.Process(server.pid).name() == "java"
        assert len(server.worker_pids()) == 2
        assert rest.registered(server.management, token(server, "management")) == {"digits"}

    def test_it_works_in_folders_of_its_own(self, server):
        assert os.readlink(f"/proc/{server.pid}/cwd") == str(server.folder)
        assert b"started" in server.log.read_bytes()

    def test_rest_answers_with_the_label(self, server, split):
        request = urllib.request.Request(
            f"{server.inference}/predictions/digits",
            data=json.dumps({"image": split.test_images[0].tolist()}).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {token(server, 'inference')}",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["label"] == split.test_labels[0]

    def test_without_the_key_it_refuses(self, server):
        with pytest.raises(urllib.error.HTTPError) as refused:
            rest.registered(server.management)
        with refused.value as answer:
            assert answer.code == 400

    def test_grpc_answers_with_the_label(self, server, split):
        pytest.importorskip("grpc")
        from shunter.plugins.torchserve.grpc_client import InferenceClient

        body = split.test_images[1].astype("uint8").tobytes()
        address = f"127.0.0.1:{server.grpc_inference}"
        with InferenceClient(address, token=token(server, "inference")) as client:
            answer = json.loads(client.predict("digits", {"data": body}, timeout_s=30))
        assert answer["label"] == split.test_labels[1]

    def test_a_model_that_is_not_in_the_store_is_named(self, store):
        with pytest.raises(ServerFailed, match=r"did not load nope; its log ends:[^$]*nope\.mar"):
            Server(model_store=store, models=["nope=nope.mar"], env=BRIEF).start()

    @pytest.mark.parametrize("which", ["inference", "grpc_management"])
    def test_another_port_is_taken_for_one_that_somebody_has(self, store, monkeypatch, which):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            tried = [replace(free_ports(), **{which: taken.getsockname()[1]}), free_ports()]
            left = iter(tried)
            monkeypatch.setattr(server_module, "free_ports", lambda: next(left))
            with Server(model_store=store, env=BRIEF) as server:
                assert server.ports == tried[1]
                assert rest.healthy(server.inference)

    def test_it_ends_with_all_its_processes_and_may_start_again(self, store, tmp_path):
        server = Server(
            model_store=store,
            models=["digits=digits.mar"],
            folder=tmp_path,
            config={"default_workers_per_model": "1"},
            env=BRIEF,
        )
        server.start()
        pids = [server.pid, *server.worker_pids()]
        os.kill(server.pid, 9)
        assert server.stop() == 0
        assert not any(map(_runs, pids))
        assert not server.running
        server.start()
        assert len(server.worker_pids()) > 0
        assert server.stop() == 0
        assert server.stop() == 0
        assert (tmp_path / "server.log").is_file()


def test_how_many_models_have_their_workers_is_told_without_asking_all_each_time(monkeypatch):
    ready, asked, wrong, groups = set(), [], {}, []

    def get_json(url, token=None):
        if url.endswith("/shunter/status"):
            usual = {"version": "1", "groups": groups}
            return {"models": [{"name": n, "problem": w, **usual} for n, w in wrong.items()]}
        if url.endswith("limit=1000"):
            return {"models": [{"modelName": f"m{i}"} for i in range(9)]}
        name = url.split("/")[-2]
        asked.append(name)
        status = "READY" if name in ready else "UNLOADING"
        return [{"workers": [{"status": status}], "minWorkers": 1}]

    monkeypatch.setattr(rest, "get_json", get_json)
    readiness = rest.Readiness("http://here")
    assert not readiness.look() and len(asked) == 4
    assert readiness.text == "0 of 9 models are loaded"
    ready |= {"m0", "m1", "m2"}
    assert not readiness.look()
    assert readiness.text == "3 of 9 models are loaded"
    asked.clear()
    assert not readiness.look() and asked == ["m3", "m4", "m5", "m6"]
    ready |= {f"m{i}" for i in range(9)}
    ready.remove("m0")  # whose worker has died meanwhile
    assert not readiness.look()
    ready.add("m0")
    assert readiness.look()
    assert readiness.text == "9 of 9 models are loaded"
    ready.remove("m0")
    wrong |= {"m0": "it does not load", "m1": ""}
    assert not readiness.look()
    assert readiness.text == "9 of 9 models are loaded; m0 1: it does not load"
    goes_on = rest.Readiness("http://here", needs_all=False)
    assert goes_on.look() and goes_on.failed == {"m0": "m0 1: it does not load"}
    ready.add("m0")
    wrong["m0"] = ""
    starting = {"state": "LOADING", "problem": ""}
    groups.append({"front_end": "jvm", "workers": [starting]})
    assert readiness.look()  # that of HTTP is TorchServe's to say
    groups.append({"front_end": "network", "workers": [{"state": "READY"}, starting]})
    assert not readiness.look()
    assert readiness.text == "7 of 9 models are loaded"  # m0 and m1 have it
    starting["problem"] = "it has no tensors"  # HTTP is served all the same
    assert readiness.look()
    starting |= {"state": "READY", "problem": ""}
    assert readiness.look()
    assert readiness.text == "9 of 9 models are loaded"
