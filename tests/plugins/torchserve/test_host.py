"""What the host asks of a TorchServe, and what it undoes: against a server in memory."""

import ssl

import httpx
import pytest

from shunter.allocator.planning.configuration import parse_configuration
from shunter.plugins.host import HostError
from shunter.plugins.torchserve import host as module
from shunter.plugins.torchserve.host import TorchServeHost

URL = "http://127.0.0.1:8081"
NOT_STARTED = "Failed to start workers for model m version: 1.0"
MISSING_KEY = "failed. Token either incorrect, expired, or not provided correctly"


class Server:
    """Answers as TorchServe's management API; ``refused`` maps a method and path to a refusal."""

    def __init__(self):
        self.workers = {}
        """(name, version) -> workers that are ready."""
        self.refused = {}
        self.appearing = []
        """What is registered, without workers, while a model is loaded."""
        self.scaled = []

    def request(self, method, url, params=None, **_):
        path = url.removeprefix(URL)
        refusal = self.refused.get((method, path))
        if (method, path) == ("POST", "/models"):
            self.workers |= dict.fromkeys(self.appearing, 0)
        elif method == "DELETE":
            del self.workers[tuple(path.split("/")[2:])]
        elif method == "PUT" and path.startswith("/models/"):
            self.scale(path, int(params["max_worker"]))
        if refusal is not None:
            if isinstance(refusal, Exception):
                raise refusal
            status, message = refusal
            return httpx.Response(status, json={"code": status, "message": message})
        return httpx.Response(200, json=self.answer(path))

    def scale(self, path, count):
        self.scaled.append(count)
        self.workers["m", "1.0"] = count

    def answer(self, path):
        parts = path.split("/")[1:]
        if path == "/shunter/status":
            ours = {"configuration": "2x1x4", "problem": None}
            return {
                "models": [
                    {"name": name, "version": version, **ours}
                    for (name, version), count in self.workers.items()
                    if count
                ]
            }
        if path == "/models":
            return {
                "models": [{"modelName": name} for name in sorted({key[0] for key in self.workers})]
            }
        if parts[0] == "shunter":
            return {"state": "serving", "configuration": "2x1x4", "last_change": "", "problem": ""}
        return [
            {"modelName": name, "modelVersion": version, "workers": [{"status": "READY"}] * count}
            for (name, version), count in self.workers.items()
            if name == parts[1]
        ]


@pytest.fixture
def server(monkeypatch):
    server = Server()
    monkeypatch.setattr(httpx, "request", server.request)
    return server


@pytest.fixture
def host():
    return TorchServeHost(URL)


@pytest.mark.parametrize("name", [None, "m"])
def test_only_the_version_that_the_refusal_names_is_forgotten(server, host, name):
    server.appearing = [("m", "1.0"), ("m", "2.0"), ("other", "1.0")]
    server.refused["POST", "/models"] = (500, NOT_STARTED)
    with pytest.raises(HostError, match=r"its log says why$"):
        host.load("m-1.0.mar", name)
    assert sorted(server.workers) == [("m", "2.0"), ("other", "1.0")]


def test_a_version_that_was_there_is_not_forgotten(server, host):
    server.workers["m", "1.0"] = 0
    server.refused["POST", "/models"] = (500, NOT_STARTED)
    with pytest.raises(HostError):
        host.load("m-1.0.mar")
    assert list(server.workers) == [("m", "1.0")]


@pytest.mark.parametrize("refusal", [(400, "Failed to download"), httpx.ReadTimeout("slow")])
def test_what_may_be_somebody_elses_is_left_and_named(server, host, refusal):
    server.appearing = [("m", "1.0")]
    server.refused["POST", "/models"] = refusal
    with pytest.raises(HostError, match=r"m/1\.0 appeared .*`shunter unload NAME/VERSION`"):
        host.load("m-1.0.mar")
    assert list(server.workers) == [("m", "1.0")]


def test_certificates_are_read_once_and_looked_at(host, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/there/is/none")  # no variable changes who is trusted
    module._tls.cache_clear()
    page = httpx.Response(200, json={"models": []})
    given = []
    monkeypatch.setattr(httpx, "request", lambda *_, **options: given.append(options) or page)
    host.status()
    TorchServeHost(URL).status()
    first, second = (options["verify"] for options in given)
    assert first is second and first.verify_mode == ssl.CERT_REQUIRED


def test_what_answers_without_json_is_no_torchserve(host, monkeypatch):
    page = httpx.Response(200, text="<html>another program</html>")
    monkeypatch.setattr(httpx, "request", lambda *given, **options: page)
    with pytest.raises(HostError, match=f"{URL} is no TorchServe: what answers there is not JSON"):
        host.models()


def test_a_load_that_registers_nothing_gives_no_advice_to_unload(server, host):
    server.refused["POST", "/models"] = (404, "no such archive")
    with pytest.raises(HostError, match=r"answered 404: no such archive$"):
        host.load("m-1.0.mar")


CONFIGURATION = "/shunter/models/m/configuration"


def test_a_retired_model_is_retired_again_when_its_change_is_refused(server, host):
    server.workers["m", "1.0"] = 0
    server.refused["PUT", CONFIGURATION] = (400, "cores: 99 are not there")
    with pytest.raises(HostError, match="cores: 99 are not there"):
        host.start_generation("m", parse_configuration("2x1x4"), cores="99")
    assert server.scaled == [2, 0]


def test_a_scale_up_that_fails_is_undone_and_a_failure_of_that_is_told(server, host):
    server.workers["m", "1.0"] = 0
    server.refused["PUT", "/models/m"] = (500, NOT_STARTED)
    with pytest.raises(HostError, match=r"Failed .*could not be ended: .*Failed to start"):
        host.start_generation("m", parse_configuration("2x1x4"))
    assert server.scaled == [2, 0]


def test_a_retired_model_whose_change_is_not_kept_is_retired_again(server, host):
    server.workers["m", "1.0"] = 0
    with pytest.raises(HostError, match="m keeps 2x1x4"):
        host.start_generation("m", parse_configuration("3x1x4"))
    assert server.scaled == [3, 0]


def test_a_model_that_serves_keeps_its_workers_when_its_change_fails(server, host):
    server.refused["PUT", CONFIGURATION] = (400, "no")
    server.workers["m", "1.0"] = 1
    with pytest.raises(HostError, match=r"answered 400: no$"):
        host.start_generation("m", parse_configuration("2x1x4"))
    assert server.scaled == []


@pytest.mark.parametrize(
    ("status", "message", "wants_key"),
    [
        (400, f"Token Authorization {MISSING_KEY}", True),
        (400, f"Token Authentication {MISSING_KEY}", True),
        (401, "who are you", True),
        (403, "not you", True),
        (404, "Model not found in model store: tokenizer.mar", False),
        (404, "Model not found: tokenizer", False),
    ],
)
def test_a_key_is_asked_for_where_one_is_missing_only(server, host, status, message, wants_key):
    server.refused["POST", "/models"] = (status, message)
    with pytest.raises(HostError) as raised:
        host.load("tokenizer.mar")
    assert ("wants a key" in str(raised.value)) is wants_key
    assert (message in str(raised.value)) is not wants_key
