"""What every host does: the same tests over a server in memory and over each real one.

A new server gets a site of its own and a line in ``SITES``.
"""

import contextlib
import http.client
import importlib.util
import inspect
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shunter.allocator.planning.configuration import parse_configuration
from shunter.plugins import host as protocols
from shunter.plugins import hosts, management
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError
from shunter.plugins.management import ManagementSocket, RemoteHost
from shunter.plugins.torchserve.archives import UnpackedModel
from shunter.plugins.torchserve.host import TorchServeHost
from shunter.plugins.torchserve.process import TorchServeProcess
from shunter.plugins.torchserve.runtime import TorchServeRuntime
from shunter.plugins.torchserve.worker_client import ModelWorker
from shunter.plugins.triton.serving.host import TritonHost
from shunter.plugins.triton.serving.process import TritonProcess

PATIENCE_S = 300
"""Nothing that a test waits for takes so long, even on a machine that is busy otherwise."""
HERE = Path(__file__).parent


def module(path):
    """A file of the tests, which are no package."""
    spec = importlib.util.spec_from_file_location(f"hosts_{path.stem}", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


FAKE = module(HERE / "fake_host.py")


class Gate:
    """Holds a request of a server in memory."""

    def __init__(self):
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait_reached(self):
        assert self.reached.wait(PATIENCE_S)

    def open(self):
        self.opened.set()


class FileGate:
    """Holds a request of the test handler echo."""

    def __init__(self, path):
        self.path = path

    def wait_reached(self):
        end = time.monotonic() + PATIENCE_S
        while not self.path.with_name(f"{self.path.name}.held").exists():
            assert time.monotonic() < end
            time.sleep(0.01)

    def open(self):
        self.path.touch()


class FakeSite:
    """A server in memory."""

    def __init__(self, folder):
        self.process = FAKE.FakeProcess({"m-1.0.mar", "m-2.0.mar"})

    ask = ask_soon = property(lambda self: self.process.ask)
    gate = staticmethod(Gate)

    @contextlib.contextmanager
    def broken(self, model):
        self.process.host.broken.add(model)
        try:
            yield
        finally:
            self.process.host.broken.clear()


class RemoteProcess:
    """A process as another one sees it."""

    def __init__(self, process, folder):
        folder.mkdir(exist_ok=True)
        self._process = process
        ManagementSocket(folder, process.host).is_open = True
        self.host = RemoteHost(folder, process.name)

    def __getattr__(self, name):
        return getattr(self._process, name)


class RemoteSite(FakeSite):
    """A server in memory, asked from another process."""

    def __init__(self, folder):
        super().__init__(folder)
        self._host = self.process.host
        self.process = RemoteProcess(self.process, folder)

    @contextlib.contextmanager
    def broken(self, model):
        self._host.broken.add(model)
        try:
            yield
        finally:
            self._host.broken.clear()


class RealSite:
    """A server with processes, and the test handler echo in its store."""

    def __init__(self, folder):
        self._folder = folder
        self._no_load = folder / "no-load"
        self.store = folder / "store"
        self.store.mkdir(parents=True)
        archives = module(HERE.parent / "e2e/archives.py").Archives(self.store)
        section = {"environment": {"ECHO_NO_LOAD": str(self._no_load)}}
        config = {"shunter": section, "maxRetryTimeoutInSec": 1, "batchSize": 4}
        for version in ("1.0", "2.0"):
            archives.add("m", version=version, config=config)
        self._gates = 0

    def gate(self):
        self._gates += 1
        return FileGate(self._folder / f"gate{self._gates}")

    def ask_soon(self, model):
        """The same of a request that cannot wait for a worker that is still to come."""
        return self.ask(model)

    def ask(self, model, gate=None):
        body = {"id": "held", "gate": str(gate.path)} if gate else {"id": "free"}
        address = self.process.inference.removeprefix("http://")
        link = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        with contextlib.closing(link):
            link.request("POST", *self._request(*model.partition("/")[::2], json.dumps(body)))
            answer = link.getresponse()
            text = answer.read()
            # Triton has other statuses for it, of its own: 400, or 503 where other versions serve.
            return 404 if b"unknown model" in text else answer.status

    @contextlib.contextmanager
    def broken(self, model):
        self._no_load.write_text("raise")
        try:
            yield
        finally:
            self._no_load.unlink()


class TorchServeSite(RealSite):
    """TorchServe with the plugin."""

    def __init__(self, folder):
        super().__init__(folder)
        # What the tests change must stay as they left it.
        settings = folder / "shunter.toml"
        settings.write_text("[configuration]\nauto = false\n")
        variables = {
            "SHUNTER_CONFIG": str(settings),
            "SHUNTER_CORE_CLAIMS": str(folder / "cores"),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -ea:org.shunter...",
        }
        self.process = hosts.process_of(self.store, [], variables=variables, tokens=True)

    def _request(self, name, version, body):
        keys = json.loads(Path(self.process.addresses["keys"]).read_text(encoding="utf-8"))
        key = keys["inference"]["key"]
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        return f"/predictions/{name}" + (f"/{version}" if version else ""), body, headers


class TritonSite(RealSite):
    """Triton with the backend; handlers of TorchServe's kind, behind an input of bytes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.process = hosts.process_of(self.store, [], folder=folder / "server", name=hosts.TRITON)
        self._parameters = {}

    def ask_soon(self, model):
        self._parameters = {"deadline_ms": 300}
        try:
            return self.ask(model)
        finally:
            self._parameters = {}

    def _request(self, name, version, body):
        tensor = {"name": "body", "shape": [1, 1], "datatype": "BYTES", "data": [body]}
        number = f"/versions/{version.split('.')[0]}" if version else ""
        content = json.dumps({"inputs": [tensor], "parameters": self._parameters})
        return f"/v2/models/{name}{number}/infer", content


SITES = [
    pytest.param(FakeSite, id="memory"),
    pytest.param(RemoteSite, id="management"),
    pytest.param(TorchServeSite, id="torchserve", marks=pytest.mark.e2e),
    pytest.param(TritonSite, id="triton", marks=pytest.mark.triton),
]


@pytest.fixture(scope="module", params=SITES)
def site(request, tmp_path_factory):
    """A started server."""
    site = request.param(tmp_path_factory.mktemp("site"))
    site.process.start(PATIENCE_S)
    yield site
    site.process.drain(0)


@pytest.fixture
def host(site):
    """A host without models."""
    host = site.process.host
    yield host
    with contextlib.suppress(HostError):
        for model in reversed(host.models()):  # the default version goes last
            host.unload(f"{model.name}/{model.version}")


@pytest.fixture
def clients():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def listed(host):
    return [(model.name, model.version, model.ready) for model in host.models()]


def test_a_loaded_model_is_listed_and_serves(site, host):
    assert host.models() == []
    model = host.load("m-1.0.mar", workers=2)
    assert (model.name, model.version, model.ready) == ("m", "1.0", 2)
    assert model.managed and not model.problem
    assert host.models() == [model]
    assert site.ask("m") == 200
    happened = [each for each in host.events() if each["about"] == "m/1.0"]
    last = host.events()[-1]["number"]
    assert happened and all(each["number"] > last for each in host.events(last))


def test_a_model_may_have_another_name_and_several_versions(site, host):
    assert host.load("m-1.0.mar", "other").name == "other"
    host.load("m-2.0.mar", "other")
    assert listed(host) == [("other", "1.0", 1), ("other", "2.0", 1)]
    host.unload("other/2.0")
    assert listed(host) == [("other", "1.0", 1)]
    assert site.ask("other/1.0") == 200
    assert site.ask("other/2.0") == 404


def test_an_archive_that_is_missing_or_there_already_changes_nothing(host):
    with pytest.raises(HostError, match=r"nothing\.mar"):
        host.load("nothing.mar")
    model = host.load("m-1.0.mar")
    with pytest.raises(HostError, match="m"):
        host.load("m-1.0.mar")
    assert host.models() == [model]


def test_a_model_that_does_not_load_leaves_nothing(site, host):
    with site.broken("m"), pytest.raises(HostError, match=r"(?s)workers .*model m.*told to fail"):
        host.load("m-1.0.mar")
    assert host.models() == []
    host.load("m-1.0.mar")
    assert site.ask("m") == 200


def test_a_new_generation_serves_and_no_request_is_lost(site, host, clients):
    host.load("m-1.0.mar")
    done = threading.Event()

    def client():
        found = []
        while not done.is_set() or not found:
            found.append(site.ask("m"))
        return found

    asking = [clients.submit(client) for _ in range(4)]
    try:
        model = host.start_generation("m", parse_configuration("2x1x4"), cores="0")
    finally:
        done.set()
    assert {status for each in asking for status in each.result(PATIENCE_S)} == {200}
    assert (model.configuration, model.ready) == ("2x1x4", 2)
    assert host.models() == [model]


def test_a_generation_that_does_not_load_leaves_the_one_of_now(site, host):
    before = host.load("m-1.0.mar")
    with site.broken("m"), pytest.raises(HostError, match="told to fail at loading"):
        host.start_generation("m", parse_configuration("2x1x4"), cores="0")
    assert listed(host) == [("m", "1.0", 1)]
    assert host.models()[0].configuration == before.configuration
    assert site.ask("m") == 200


def wait_refused(site):
    """Until a new request is not answered any more."""
    end = time.monotonic() + PATIENCE_S
    with contextlib.suppress(OSError):  # a server that has gone does not even refuse
        while site.ask_soon("m") == 200:
            assert time.monotonic() < end


def test_a_retired_model_answers_what_it_holds_and_may_come_back(site, host, clients):
    host.load("m-1.0.mar", workers=2)
    gate = site.gate()
    held = clients.submit(site.ask, "m", gate)
    gate.wait_reached()
    retired = clients.submit(host.retire, "m")
    wait_refused(site)
    gate.open()
    assert held.result(PATIENCE_S) == 200
    assert retired.result(PATIENCE_S).ready == 0
    assert listed(host) == [("m", "1.0", 0)]
    assert site.ask_soon("m") == 503
    model = host.start_generation("m", parse_configuration("1x1x2"), cores="0")
    assert (model.configuration, model.ready) == ("1x1x2", 1)
    assert site.ask("m") == 200


@pytest.mark.parametrize("model", ["nobody", "m/9.9"])
def test_a_model_that_is_not_there_is_named(host, model):
    host.load("m-1.0.mar")
    for refused in (
        lambda: host.unload(model),
        lambda: host.retire(model),
        lambda: host.start_generation(model, parse_configuration("1x1x1")),
    ):
        with pytest.raises(HostError, match=model.split("/")[0]):
            refused()
    assert listed(host) == [("m", "1.0", 1)]


def test_the_status_tells_the_models_that_serve(site, host):
    host.load("m-1.0.mar")
    status = host.status()
    assert [(model["name"], model["version"]) for model in status["models"]] == [("m", "1.0")]
    assert status["pid"] == site.process.pid


def test_a_user_is_told_where_it_is(site):
    assert site.process.running
    assert site.process.inference in site.process.addresses["inference"]
    assert site.process.status_command.startswith("shunter status")


def test_draining_answers_what_is_held_and_ends(site, host, clients):
    """The last one: it ends the server."""
    host.load("m-1.0.mar", workers=2)
    gate = site.gate()
    held = clients.submit(site.ask, "m", gate)
    gate.wait_reached()
    drained = clients.submit(site.process.drain, PATIENCE_S)
    wait_refused(site)
    assert not held.done()
    gate.open()
    assert held.result(PATIENCE_S) == 200
    assert drained.result(PATIENCE_S) is True
    assert not site.process.running
    with pytest.raises(HostError, match="answers"):
        host.models()


IMPLEMENTED = [
    (protocols.Host, TorchServeHost),
    (protocols.Host, RemoteHost),
    (protocols.Host, FAKE.FakeHost),
    (protocols.Host, TritonHost),
    (protocols.HostProcess, TorchServeProcess),
    (protocols.HostProcess, TritonProcess),
    (protocols.HostProcess, FAKE.FakeProcess),
    (protocols.WorkerRuntime, TorchServeRuntime),
    (protocols.ModelWorker, ModelWorker),
    (protocols.UnpackedModel, UnpackedModel),
]


@pytest.mark.parametrize(("protocol", "kind"), IMPLEMENTED)
def test_methods_have_the_parameters_of_their_protocol(protocol, kind):
    for name, wanted in vars(protocol).items():
        if inspect.isfunction(wanted) and not name.startswith("_"):
            own = list(inspect.signature(getattr(kind, name)).parameters.values())
            asked = list(inspect.signature(wanted).parameters.values())
            simple = [(each.name, each.kind, each.default) for each in own[: len(asked)]]
            assert simple == [(each.name, each.kind, each.default) for each in asked], name
            assert all(each.default is not each.empty for each in own[len(asked) :]), name


def test_a_host_that_says_nothing_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(management, "STATUS_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / management.NAME))
        listening.listen()
        with pytest.raises(HostError, match="does not answer, or has ended: timed out"):
            RemoteHost(tmp_path, "a").status()


def test_a_server_that_nobody_knows_is_refused():
    for choose in (hosts.runtime_of, hosts.plugins_folder):
        with pytest.raises(UserError, match="no server is called 'nobody'; allowed: torchserve"):
            choose(name="nobody")
