"""Servers, models and load for the end-to-end tests."""

import functools
import importlib.util
import shutil
import socket
import sys
from pathlib import Path

import pytest

from shunter.plugins.torchserve import build
from shunter.plugins.torchserve.server import Server

HERE = Path(__file__).parent
COPIES = 30
"""Models of a name that Triton has one after the other: each is told of by the settings."""
ASSERTIONS = "-ea:org.shunter..."
"""The jar checks that locks are held."""
NETWORK = """
[nic]
enabled = true
port = PORT
tcp = false
"""


@functools.cache
def _load(name):
    """A module of this folder, which is no package; it finds the others as e2e_NAME."""
    spec = importlib.util.spec_from_file_location(f"e2e_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def harness():
    """harness.py."""
    _load("exchange")
    return _load("harness")


@pytest.fixture(scope="session")
def wait_until(harness):
    """The function wait_until of exchange.py."""
    return harness.wait_until


@pytest.fixture(scope="session")
def load(harness):
    """The class Load."""
    return _load("load").Load


@pytest.fixture(scope="session")
def pings(harness):
    """The class Pings."""
    return _load("load").Pings


@pytest.fixture
def grpc_client(site):
    """A client of the v1 API."""
    pytest.importorskip("grpc")
    from shunter.plugins.torchserve.grpc_client import InferenceClient

    with InferenceClient(f"127.0.0.1:{site.server.grpc_inference}") as client:
        yield client


@pytest.fixture(scope="session")
def grpc_calls(harness):
    """grpc_calls.py."""
    pytest.importorskip("grpc")
    return _load("grpc_calls")


@pytest.fixture(scope="session")
def plugins(tmp_path_factory):
    """A folder with the jar; a copy, so that it stays the same for the whole session."""
    try:
        source = build.ensure()
    except build.JarError as error:
        if shutil.which("javac") is None:
            pytest.skip(str(error))
        raise
    folder = tmp_path_factory.mktemp("plugins")
    shutil.copy(source / build.JAR, folder)
    return folder


@pytest.fixture(scope="session")
def archives(tmp_path_factory):
    """A model store shared by all servers."""
    return _load("archives").Archives(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def settings(tmp_path_factory):
    """A shunter.toml."""
    text = _load("named_models").settings_text()
    path = tmp_path_factory.mktemp("settings") / "shunter.toml"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path.write_text(text + NETWORK.replace("PORT", str(port)))
    return path


class Brief(Server):
    """For a few requests: its JVM does not compile with effort what would not pay."""

    def __init__(self, *, env=None, **arguments):
        env = {"JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 {ASSERTIONS}", **(env or {})}
        super().__init__(env=env, **arguments)

    def start(self, timeout_s=None):
        super().start(timeout_s or _load("exchange").START_S)


@pytest.fixture(scope="session")
def make_server(archives):
    """Makes a server on the shared store; without plugins a stock one."""

    def make(plugins=None, **arguments):
        return Brief(model_store=archives.folder, plugins=plugins, **arguments)

    return make


@pytest.fixture(scope="session")
def make_bare():
    """Makes a server that is started without --ts-config and --ncs, as most users do it."""

    class Bare(Brief):
        def _command(self):
            command = super()._command()
            at = command.index("--ts-config")
            return [part for part in command[:at] + command[at + 2 :] if part != "--ncs"]

    return Bare


@pytest.fixture(scope="session")
def torchserve_site(harness, archives, plugins, settings, tmp_path_factory):
    """The server that most tests share: each with a model of its own."""
    config = {
        "shunter_config": str(settings),
        "metrics_mode": "prometheus",
        "model_metrics_auto_detect": "true",
        "ts_open_inference_protocol": "true",
    }
    # Cores of its own, whatever else is served on this host.
    claims = {"SHUNTER_CORE_CLAIMS": str(tmp_path_factory.mktemp("claims") / "cores")}
    env = {**claims, "JDK_JAVA_OPTIONS": ASSERTIONS}
    server = Server(model_store=archives.folder, plugins=plugins, config=config, env=env)
    with harness.running(server, archives, tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="session")
def triton_site(harness, archives, tmp_path_factory):
    """The Triton of the tests that run behind both."""
    folder = tmp_path_factory.mktemp("triton")
    module = _load("named_models")
    settings = folder / "shunter.toml"
    settings.write_text(module.settings_text(COPIES))
    with _load("triton_site").running(archives, folder, settings) as site:
        yield site


@pytest.fixture
def start(harness, archives, make_server, plugins, tmp_path):
    """Starts a server of its own for a test: which one, and with which shunter.toml."""

    def start(server, settings):
        if server == "triton":
            return _load("triton_site").running(archives, tmp_path, settings)
        made = make_server(plugins, config={"shunter_config": str(settings)})
        return harness.running(made, archives, tmp_path)

    _load("named_models")
    return start


def pytest_generate_tests(metafunc):
    """Tests with the mark ``both_servers`` run behind one server after the other."""
    if metafunc.definition.get_closest_marker("both_servers"):
        servers = ["torchserve", pytest.param("triton", marks=pytest.mark.triton)]
        metafunc.parametrize("site", servers, indirect=True)


@pytest.fixture
def site(request):
    """The server under test: TorchServe, or the one that the test is run behind."""
    return request.getfixturevalue(f"{getattr(request, 'param', 'torchserve')}_site")


@pytest.fixture
def serve(site):
    """Registers models that are gone after the test."""
    models = []

    def serve(*arguments, **options):
        models.append(site.add(*arguments, **options))
        return models[-1]

    yield serve
    for model in reversed(models):  # the first version is the default one, and goes last
        model.end()
