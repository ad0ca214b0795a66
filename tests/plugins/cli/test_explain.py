"""``shunter explain``: requests in sentences, out of what a server says."""

import http.server
import json
import threading

import pytest

from shunter.plugins.cli import main as cli
from shunter.plugins.cli.observe.explain import story

ANSWERED = {
    "id": "4f1d",
    "model": "digits/1.0",
    "class": "strict",
    "arrived_unix_ms": 1_790_000_000_123,
    "deadline_ms": 40.0,
    "waited_ms": 12.34,
    "ran_ms": 20.0,
    "batch": 3,
    "group": 0,
    "deaths": 0,
    "status": 200,
    "in_time": True,
    "why": "",
}
REFUSED = ANSWERED | {
    "group": None,
    "batch": 0,
    "ran_ms": 0,
    "status": 504,
    "in_time": False,
    "why": "The deadline cannot be met: waited 12 ms in the queue of digits/1.0",
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "with 2 others"),
        ({}, "+ 32.3 ms  it was answered with 200"),
        ({"batch": 2}, "with 1 other\n"),
        ({"batch": 1}, "took it, alone"),
        ({"in_time": False, "ran_ms": 50.0}, "answered with 200, 22.3 ms late"),
        ({"deadline_ms": None}, "no deadline"),
        ({"deaths": 1}, "1 of its workers died\n"),
        (REFUSED, "+ 12.3 ms  it ended with 504: The deadline cannot be met"),
    ],
)
def test_a_request_in_sentences(changed, said):
    told = story(ANSWERED | changed)
    assert said in told
    assert told.startswith("4f1d: strict request to digits/1.0")
    assert (".123  it came" in told) and ("worker of group" in told) == (changed is not REFUSED)


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append(self.path)
            body = json.dumps({"requests": self.server.found}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.seen, server.found = [], [ANSWERED]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(server, *argv):
    management = f"http://127.0.0.1:{server.server_address[1]}"
    with pytest.raises(SystemExit) as ended:
        cli.main(["explain", *argv, "--management", management])
    return ended.value.code or 0


def test_what_is_asked_and_shown(server, capsys):
    assert run(server, "a/b c") == 0
    assert server.seen[-1] == "/shunter/requests/a%2Fb%20c?count=1&bad=false"
    assert "4f1d: strict" in capsys.readouterr().out
    server.found = [ANSWERED, REFUSED, ANSWERED | {"in_time": False}]
    assert run(server, "last", "--bad", "--count", "20", "--model", "digits") == 0
    assert server.seen[-1] == "/shunter/requests?count=20&bad=true&model=digits"
    shown = capsys.readouterr().out
    assert "504" in shown and "after its deadline" in shown
    assert run(server, "--json") == 0
    assert json.loads(capsys.readouterr().out) == server.found
    server.found = []
    assert run(server) == 0
    assert "no request" in capsys.readouterr().out
    assert run(server, "--count", "0") == 2
