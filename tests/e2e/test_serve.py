"""``shunter serve`` as an operator has it: in a shell, beside other commands."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from shunter.plugins.errors import UserError
from shunter.plugins.torchserve.isolation import FolderTaken, free_ports, lock
from shunter.plugins.torchserve.process import usual_ports

pytestmark = pytest.mark.e2e
COMMAND = [str(Path(sys.executable).parent / "shunter")]
FAILS = b"""
class Handler:
    def initialize(self, context):
        raise OSError("no such table")

    def handle(self, data, context):
        return data
"""
BOTH = ("--model", "echo=echo-1.0.mar", "--model", "fails=fails-1.0.mar")


@pytest.fixture
def environment():
    """Other servers of this host are out of sight."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield {**os.environ, "SHUNTER_RUNTIME_DIR": folder, "COLUMNS": "200"}


@pytest.fixture
def store(harness, archives, tmp_path):
    """Two archives; one of them does not load."""
    here = type(archives)(tmp_path / "store")
    here.folder.mkdir()
    here.add("echo", config={"minWorkers": 1, "maxWorkers": 1})
    here.add("fails", "layers", files={"layers.py": FAILS})
    return here.folder


def _free():
    """The first of three free ports in a row, and of two more behind them."""
    while True:
        first = free_ports().inference
        with contextlib.suppress(UserError):
            usual_ports(first, first + 5)
            return first


@pytest.fixture
def serve(environment, store, tmp_path):
    """Starts one; its process and first port."""
    begun = []

    def serve(*options):
        first = _free()
        command = ["serve", "--store", store, "--no-tokens", "--folder", tmp_path / "its"]
        command += ["--port", first, "--grpc", first + 5, *options]
        output = tmp_path / f"output{len(begun)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*COMMAND, *map(str, command)], env=environment, stdout=file, stderr=file
            )
        begun.append(process)
        return process, output, first

    yield serve
    for process in begun:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def run(environment, *command):
    words = [*COMMAND, *command]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_server_is_found_by_other_commands_and_goes_on_without_what_does_not_load(
    harness, serve, environment, tmp_path
):
    process, output, port = serve(*BOTH)
    serves(harness, output)
    said = output.read_text()
    assert "of 2 models are loaded" in said  # this is no terminal
    assert re.search(r"fails 1.0: .*OSError: no such table\nThe others are served", said)
    answer = harness.call(port, "POST", "/predictions/echo", b'{"id": "a"}', {})
    assert (answer.status, answer["id"]) == (200, "a")
    code, text = run(environment, "status", "--json")
    found = json.loads(text)
    assert (code, found["pid"] > 0) == (0, True)
    assert {model["name"] for model in found["models"]} == {"echo", "fails"}
    second, refused, _ = serve()
    assert second.wait(60) == 2
    assert f"process {process.pid}: name another --folder" in refused.read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert list(Path(environment["SHUNTER_RUNTIME_DIR"]).iterdir()) == []
    _, output, _ = serve("--model", "echo=echo-1.0.mar")
    serves(harness, output)
    assert (tmp_path / "its/server.log.1").is_file()


def serves(harness, output):
    """Wait for the start of a server, which takes longer than anything else."""
    told = "Ctrl-C drains"
    harness.wait_until("it serves", lambda: told in output.read_text(), harness.START_S)


def _is_free(folder):
    with contextlib.suppress(FolderTaken):
        os.close(lock(folder))
        return True
    return False


def test_a_folder_is_its_servers_also_when_serve_was_killed(harness, serve, environment, tmp_path):
    process, output, _ = serve("--model", "echo=echo-1.0.mar")
    serves(harness, output)
    server = psutil.Process(json.loads(run(environment, "status", "--json")[1])["pid"])
    process.kill()
    process.wait(60)
    try:
        second, refused, _ = serve("--model", "echo=echo-1.0.mar")
        assert second.wait(60) == 2
        assert f"which process {process.pid} has left behind" in refused.read_text()
        assert not (tmp_path / "its/server.log.1").exists()
        pid = json.loads(run(environment, "status", "--json")[1])["pid"]
        assert pid == server.pid
    finally:
        server.terminate()
    harness.wait_until("its lock goes with it", lambda: _is_free(tmp_path / "its"))
    third, output, _ = serve("--model", "echo=echo-1.0.mar")
    serves(harness, output)
    assert third.poll() is None


def test_a_server_of_which_no_model_loads_ends_at_once(serve):
    process, output, _ = serve("--model", "fails=fails-1.0.mar")
    assert process.wait(100) == 2
    said = output.read_text()
    assert re.search(r"no model can be served: fails 1.0: .*OSError: no such table", said)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--port", "9180", "--grpc", "9181"), "port 9181 is wanted twice"),
        (("--config", "inference_address=http://0.0.0.0:1"), "say it by --port"),
        (("--config", "grpc_inference_port=1"), "say it by --grpc"),
    ],
)
def test_ports_that_contradict_each_other_are_refused(serve, options, words):
    process, output, _ = serve(*options)
    assert process.wait(60) == 2
    assert words in output.read_text() and "Traceback" not in output.read_text()
