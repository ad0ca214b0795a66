"""Two real nodes of Ray on this host with a server each: requests, faults, an eviction."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from shunter.plugins.ray import started

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("ray", "uvicorn", "aiohttp"))),
        reason="needs Ray: pip install '.[cluster]'",
    ),
]
PATIENCE_S = 300
CONFIG = """
[gateways]
port = {port}
[machines]
provider = "local"
least = 2
most = 2
[models.echo]
archive = "{archive}"
"""


class Cluster:
    """The cluster under test, asked as a user asks it."""

    def __init__(self, folder, port):
        self.folder = folder
        self.gateways = [f"http://127.0.0.1:{port + number}" for number in (0, 1)]

    def run(self, *arguments):
        command = [sys.executable, "-m", "shunter.plugins.cli.main", "cluster", *arguments]
        command += ["--folder", str(self.folder)]
        # Its JVMs do not compile with effort what would not pay.
        env = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout

    def logs(self):
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))

    def status(self):
        return json.loads(self.run("status", "--json"))

    def wait(self, is_so):
        end = time.monotonic() + PATIENCE_S
        while not is_so(found := self.status()):
            assert time.monotonic() < end, json.dumps(found, indent=1) + self.logs()
            time.sleep(0.5)
        return found

    def ask(self, headers=None, *, gateway=0, model="echo"):
        url = f"{self.gateways[gateway]}/predictions/{model}"
        return httpx.post(url, json={"id": "x"}, headers=headers, timeout=PATIENCE_S)


def machine(status, name):
    return next((each for each in status["machines"] if each["name"] == name), None)


def is_whole(status, machines=2):
    serving = [each for each in status["machines"] if each["state"] == "serving"]
    return len(serving) == machines and not any(each["problem"] for each in status["gateways"])


class Load:
    """Requests that may run twice, one after the other in a few threads, until it is ended."""

    def __init__(self, cluster, threads=3):
        self.statuses = Counter()
        self._cluster, self._ended = cluster, threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(threads)
        ]

    def __enter__(self):
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for each in self._threads:
            each.join()

    def _run(self, gateway):
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not self._ended.wait(0.05):
                gateway, status = self._ask(client, gateway)
                self.statuses[status] += 1

    def _ask(self, client, gateway):
        """As a client with two addresses does: the other one, when a gateway is away."""
        for number in range(gateway, gateway + 2):
            url = f"{self._cluster.gateways[number % 2]}/predictions/echo"
            try:
                return number, client.post(url, json={"id": "x"}).status_code
            except httpx.TransportError:
                continue
        return gateway, "lost"


def free_ports():
    """The first of two ports that follow each other."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


@pytest.fixture(scope="module")
def cluster(archives, tmp_path_factory):
    # The Python that it runs on is behind a short path, for Ray's sockets are below the folder.
    folder = Path(tempfile.mkdtemp(prefix="sc-", dir="/tmp"))
    port = free_ports()
    archive = archives.add("echo", config={"minWorkers": 1, "maxWorkers": 1})
    config = tmp_path_factory.mktemp("cluster") / "cluster.toml"
    config.write_text(CONFIG.format(port=port, archive=archive))
    found = Cluster(folder, port)
    try:
        found.run("up", "--local", "2", "--store", str(archives.folder), "--config", str(config))
        yield found
    finally:
        if (folder / started.FILE).exists():
            nodes = started.noted(folder)
            found.run("down")
            assert not any(each.runs for each in nodes)
        shutil.rmtree(folder)


@pytest.mark.parametrize("gateway", [0, 1])
def test_a_request_is_answered_by_any_gateway(cluster, gateway):
    answer = cluster.ask(gateway=gateway)
    assert (answer.status_code, answer.json()["id"]) == (200, "x")


def test_class_and_deadline_arrive(cluster):
    def best_effort(status):
        return sum(model["arrivals"][1] for each in status["machines"] for model in each["models"])

    before = best_effort(cluster.status())
    assert cluster.ask({"x-shunter-class": "best-effort"}).status_code == 200
    cluster.wait(lambda status: best_effort(status) == before + 1)
    refused = cluster.ask({"x-shunter-deadline-ms": "soon"})
    assert refused.status_code == 400
    assert "x-shunter-deadline-ms" in refused.json()["message"]


def test_a_model_that_no_machine_has(cluster):
    answer = cluster.ask(model="nobody")
    assert (answer.status_code, answer.json()["type"]) == (404, "ModelNotFoundException")
    assert httpx.get(f"{cluster.gateways[0]}/models").status_code == 404
    assert httpx.get(f"{cluster.gateways[0]}/ping").json() == {"status": "Healthy"}


def controller_and_gateway(status):
    return {status["controller"]["pid"], status["gateways"][0]["pid"]}


def server(status):
    return {machine(status, "node-1")["pid"]}


def actor(status):
    return {machine(status, "node-1")["actor_pid"]}


@pytest.mark.parametrize("victims", [controller_and_gateway, server, actor])
def test_what_is_killed_costs_no_request_and_comes_back(cluster, victims):
    before = victims(cluster.wait(is_whole))
    with Load(cluster) as load:
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        cluster.wait(lambda status: is_whole(status) and not victims(status) & before)
    assert load.statuses.keys() == {200}


def test_an_eviction_costs_no_request_and_the_machine_is_replaced(cluster):
    cluster.wait(is_whole)
    with Load(cluster) as load:
        cluster.run("evict", "node-1", "--notice", "600")
        cluster.wait(lambda status: is_whole(status) and not machine(status, "node-1"))
    assert load.statuses.keys() == {200}
    assert cluster.status()["procurement"] == {"wanted": 2, "problem": ""}
