"""A repository of `shunter pack --triton`, a Triton started by hand, and `shunter workers`."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shunter.plugins import hosts
from shunter.plugins.cli import files
from shunter.plugins.errors import UserError
from shunter.plugins.ports import free_ports
from shunter.plugins.profiling.profiles import profile_path, provenance_here
from shunter.plugins.triton import installation

pytestmark = pytest.mark.triton
PATIENCE_S = 300
TESTS = Path(__file__).parents[2]
LETTERS = {
    "inputs": [{"name": "text", "dtype": "bytes", "shape": []}],
    "outputs": [{"name": "json", "dtype": "bytes", "shape": []}],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("triton_archives", TESTS / "e2e/archives.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    made = found.Archives(tmp_path_factory.mktemp("store"))
    made.add("plain", "plain")
    made.add_profile("plain-1.0.mar", {(1, 1): 2.0, (1, 2): 3.0})
    made.add("letters", "letters", config={"batchSize": 4, "shunter": {"tensors": LETTERS}})
    wider = {"batchSize": 8, "shunter": {"tensors": LETTERS}}
    made.add("wider", "letters", version="2.0", config=wider)
    return made.folder


class Triton:
    """One that nobody of ours starts."""

    def __init__(self, folder, log):
        self.port, grpc = free_ports(2)
        found = installation.find()
        command = [str(found.program)]
        command += [f"--model-repository={folder}/models", f"--backend-directory={folder}/backends"]
        command += [f"--backend-config=shunter,socket={folder}/backend.sock"]
        command += ["--backend-config=shunter,wait-s=300", "--allow-metrics=false"]
        command += [f"--http-port={self.port}", f"--grpc-port={grpc}"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, env={**kept, **found.variables}, stdout=file, stderr=file
            )

    def ask(self, model, name, text, wanted):
        import tritonclient.http as httpclient

        given = httpclient.InferInput(name, [1, 1], "BYTES")
        given.set_data_from_numpy(np.array([[text]], object))
        with httpclient.InferenceServerClient(f"127.0.0.1:{self.port}") as client:
            return client.infer(model, [given]).as_numpy(wanted)[0, 0]

    def wait_answer(self, *question):
        """The first answer that comes."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.ask(*question)
            except Exception:
                assert self.process.poll() is None and time.monotonic() < end
                time.sleep(0.1)

    def end(self):
        self.process.kill()
        self.process.wait()


def test_a_triton_started_by_hand_serves_a_packed_repository(store, tmp_path):
    shunter = [sys.executable, "-m", "shunter.plugins.cli.main"]
    packed, log = tmp_path / "packed", tmp_path / "log"
    command = [*shunter, "pack", "--triton", str(store), "plain=plain-1.0.mar"]
    command += ["letters=letters-1.0.mar", "--output", str(packed)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"shunter workers {packed}" in said
    version = packed / "models/plain/1"  # what `plan` and `profile` take for packed/models/plain
    profile = version / "model.profile.json", version / "model.mar"
    assert files.profile_file(packed / "models/plain") == profile
    assert provenance_here(version / "model.mar") == files.load(profile[0]).provenance
    triton = None
    workers = subprocess.Popen([*shunter, "workers", str(packed)], stdout=subprocess.PIPE)
    try:
        triton = Triton(packed, log)
        assert triton.wait_answer("plain", "body", b"text", "answer") == "grüße".encode()
        assert json.loads(triton.ask("letters", "text", b"aab", "json")) == {"a": 2, "b": 1}
        workers.send_signal(signal.SIGTERM)
        assert workers.wait(PATIENCE_S) == 0
        out = workers.stdout.read().decode()
        assert f"tritonserver --model-repository={packed}/models" in out
    finally:
        workers.kill()
        workers.communicate()
        if triton is not None:
            triton.end()


def test_what_cannot_be_packed_is_named_and_leaves_nothing(store, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(UserError, match="is there already"):
        hosts.pack_repository(store, ["plain=plain-1.0.mar"], tmp_path / "full", profile_path)
    with pytest.raises(UserError, match="are not those of the other version"):
        models = ["a=letters-1.0.mar", "a=wider-2.0.mar"]
        hosts.pack_repository(store, models, tmp_path / "new", profile_path)
    with pytest.raises(UserError, match="'a b': a name has letters"):
        hosts.pack_repository(store, ["a b=plain-1.0.mar"], tmp_path / "new", profile_path)
    assert [each.name for each in tmp_path.iterdir()] == ["full"]
    with pytest.raises(UserError, match=r"no models/NAME/VERSION/model\.mar"):
        hosts.packed_workers(tmp_path / "full")
