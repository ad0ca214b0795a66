"""The page, the status and the metrics of a server without HTTP of ours."""

import socket
from types import SimpleNamespace

import httpx
import pytest

from shunter.batching.page.runtime import OwnFolder
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError
from shunter.plugins.http_view import DASHBOARD, HttpView
from shunter.plugins.slot_writer import ServerPage


@pytest.fixture
def page(tmp_path):
    own = OwnFolder({"SHUNTER_RUNTIME_DIR": str(tmp_path)})
    page = ServerPage(own.folder.control, 4711, "Servant")
    yield page
    page.close()
    own.close()


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def host_of(status):
    told = [{"number": number, "text": str(number)} for number in (1, 2)]
    return SimpleNamespace(
        status=status, events=lambda after: [each for each in told if each["number"] > after]
    )


def test_what_is_shown_until_it_is_closed(page, port):
    view = HttpView(page.path, port, host_of(lambda: {"pid": 4711, "models": []}))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert "shunter_settings_valid 1" in client.get("/metrics").text
        shown = client.get("/shunter/?x=1")
        assert shown.content == DASHBOARD.read_bytes()
        assert shown.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in shown.headers["content-security-policy"]
        redirected = client.get("/shunter")
        assert (redirected.status_code, redirected.headers["location"]) == (308, "/shunter/")
        assert client.get("/shunter/status").json() == {"pid": 4711, "models": []}
        told = client.get("/shunter/events?after=1").json()
        assert told == {"events": [{"number": 2, "text": "2"}]}
        assert len(client.get("/shunter/events").json()["events"]) == 2
        wrong = client.get("/shunter/events?after=-1")
        assert wrong.status_code == 400 and '"-1"; allowed: a number' in wrong.json()["message"]
        assert client.get("/other").status_code == 404
        view.close()
        with pytest.raises(httpx.ConnectError):
            client.get("/metrics")


def test_a_host_that_does_not_answer_is_said(page, port):
    def status():
        raise HostError("Triton does not answer")

    view = HttpView(page.path, port, host_of(status))
    answer = httpx.get(f"http://127.0.0.1:{port}/shunter/status")
    assert (answer.status_code, answer.json()["message"]) == (503, "Triton does not answer")
    view.close()


def test_a_port_that_is_taken(page):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} for metrics"):
            HttpView(page.path, port, host_of(dict))
