"""How operators watch a server: the page, and a real Prometheus with our rules."""

import http.client
import json
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

pytestmark = pytest.mark.e2e
DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_S = 60


def test_the_page_needs_no_key_and_the_connection_goes_on(site):
    connection = http.client.HTTPConnection("127.0.0.1", site.server.ports.management, timeout=60)

    def get(path):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer, answer.read()

    answer, page = get("/shunter/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert b'fetch("status"' in page
    answer, _ = get("/shunter")
    assert (answer.status, answer.headers["Location"]) == (308, "/shunter/")
    assert get("/shunter/?again")[1] == page
    assert b"Known: /shunter/status" in get("/shunter/other")[1]
    connection.request("POST", "/shunter/", b"x")
    answer = connection.getresponse()
    assert (answer.status, b"GET, PUT" in answer.read()) == (405, True)
    connection.close()


def test_who_wants_no_more_after_the_page_is_let_go(site):
    with socket.create_connection(("127.0.0.1", site.server.ports.management), 60) as end:
        end.sendall(b"GET /shunter/ HTTP/1.0\r\n\r\n")
        found = b""
        while part := end.recv(1 << 16):
            found += part
    assert found.startswith(b"HTTP/1.1 200") and found.rstrip().endswith(b"</html>")


@pytest.fixture
def prometheus(site, tmp_path):
    """One that scrapes the server every second, with our rules; its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    [job] = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{site.server.ports.metrics}"]}]
    for name in config["rule_files"]:
        shutil.copy(DEPLOY / "prometheus" / name, tmp_path)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1/") as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def test_a_prometheus_takes_every_rule_and_every_query_of_the_dashboard(
    site, serve, load, prometheus, wait_until
):
    model = serve(batch_size=4)

    def query(text):
        answer = prometheus.get("query", params={"query": text}).json()
        assert answer["status"] == "success", (text, answer)
        return answer["data"]["result"]

    def is_up():
        try:
            return any(each["value"][1] == "1" for each in query('up{job="shunter"}'))
        except httpx.TransportError:
            return False

    def good():
        found = query(f'model_class:shunter_good:rate1m{{model="{model.name}"}}')
        return [float(each["value"][1]) for each in found]

    with load(model, clients=2, sleep_ms=2):
        wait_until("it scrapes", is_up)
        wait_until("its rules have numbers", lambda: any(each > 1 for each in good()))
    groups = prometheus.get("rules").json()["data"]["groups"]
    every = [rule for group in groups for rule in group["rules"]]
    assert len(every) > 15
    assert [rule for rule in every if rule["health"] == "err"] == []
    assert not [rule for rule in every if rule.get("state") == "firing"]
    board = json.loads((DEPLOY / "grafana/shunter.json").read_text("utf-8"))
    drawn = 0
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "10s").replace("$job", ".*")
            drawn += bool(query(expr.replace("$model", ".*")))
    assert drawn > 10


def test_what_happened_to_a_request(site, serve, wait_until):
    model = serve(batch_size=4)
    gate, held = model.hold()
    held.append(model.send("ahead"))  # it is given to the worker before that has answered
    wait_until("it is at the worker", lambda: model.state()["in_flight"]["requests"] == 2)
    refused = model.send("late", headers={"x-shunter-deadline-ms": "50"}).result()
    gate.open()
    assert [future.result().status for future in held] == [200] * 2
    told = site.management("GET", "/shunter/requests", model=model.name, count=10).json["requests"]
    assert [each["status"] for each in told] == [200, 200, 504]
    answered, _, expired = told
    assert (answered["model"], answered["batch"], answered["group"]) == (f"{model.name}/1.0", 1, 0)
    assert answered["ran_ms"] > 0 and answered["why"] == "" and answered["in_time"]
    assert expired["group"] is None and not expired["in_time"]
    assert expired["why"] == refused["message"]
    assert expired["waited_ms"] > 0 and expired["deadline_ms"] == pytest.approx(50)
    def dropped():
        found = site.management("GET", "/shunter/events").json["events"]
        return any(
            "dropped: too late" in each["text"] and expired["why"] in each["text"] for each in found
        )

    wait_until("it is an event", dropped)
    bad = site.management("GET", "/shunter/requests", bad="true", model=model.name).json["requests"]
    assert bad == [expired | {"arrived_unix_ms": bad[0]["arrived_unix_ms"]}]
    one = site.management("GET", f"/shunter/requests/{answered['id']}").json["requests"]
    assert [each["id"] for each in one] == [answered["id"]]
    assert site.management("GET", "/shunter/requests/nobody").status == 404
    assert site.management("GET", "/shunter/events", after="x").status == 400
    for count in ("0", "1025", "x"):
        answer = site.management("GET", "/shunter/requests", count=count)
        assert (answer.status, "1 to 1024" in answer["message"]) == (400, True)


def test_a_line_for_each_request_that_ends(
    harness, make_server, plugins, archives, tmp_path, wait_until
):
    log = tmp_path / "access.jsonl"
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def told():
        lines = log.read_text("utf-8").splitlines() if log.exists() else []
        return [json.loads(line) for line in lines]

    events = tmp_path / "events.jsonl"
    environment = {"SHUNTER_ACCESS_LOG": str(log), "SHUNTER_EVENT_LOG": str(events)}
    server = make_server(plugins, env=environment)
    with harness.running(server, archives, tmp_path) as site:
        model = site.add()
        for number in range(5):
            headers = {"traceparent": trace} if number == 3 else {}
            assert model.ask(str(number), headers=headers).status == 200
        wait_until("they are written", lambda: len(told()) == 5)
        assert {each["status"] for each in told()} == {200}
        assert [each.get("traceparent") for each in told()] == [None] * 3 + [trace, None]
        assert abs(told()[0]["arrived_unix_ms"] / 1000 - log.stat().st_mtime) < 600
        happened = site.management("GET", "/shunter/events").json["events"]
        written = [json.loads(line) for line in events.read_text("utf-8").splitlines()]
        assert written[: len(happened)] == happened[: len(written)] != []
        assert any(each["about"] == f"{model.name}/1.0" for each in happened)
        log.rename(tmp_path / "old")
        wait_until("there is a new one", lambda: model.ask("again").status == 200 and told())
