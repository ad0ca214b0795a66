"""``shunter load``, ``unload`` and ``configure``, on a server in memory."""

import contextlib
import importlib.util
from pathlib import Path

import pytest

from shunter.batching.page.runtime import OwnFolder
from shunter.plugins import hosts
from shunter.plugins.cli import main as cli
from shunter.plugins.host import HostError
from shunter.plugins.management import STARTING, ManagementSocket

FAKE = Path(__file__).parents[1] / "fake_host.py"


@pytest.fixture
def environ(monkeypatch, tmp_path):
    """No server runs here but those of the test."""
    monkeypatch.setenv("SHUNTER_RUNTIME_DIR", str(tmp_path))
    return {"SHUNTER_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def asked(monkeypatch, environ):
    """A host in memory, and with which address and key it was chosen."""
    spec = importlib.util.spec_from_file_location("cli_fake_host", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    process = module.FakeProcess({"m-1.0.mar"})
    process.start()
    process.host.chosen = []

    def host_of(*arguments):
        process.host.chosen.append(arguments)
        return process.host

    monkeypatch.setattr(hosts, "host_of", host_of)
    monkeypatch.delenv("SHUNTER_TOKEN", raising=False)
    return process.host


@pytest.fixture
def run(capsys, asked):
    """Runs a command; returns its exit status, standard output and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_a_model_is_loaded_configured_retired_and_unloaded(run, asked):
    loaded = run("load", "m-1.0.mar", "--name", "x", "--workers", "2", "--batch", "8")
    assert loaded == (0, "x/1.0 runs 2x0x8, 2 workers ready\n", "")
    assert run("configure", "x", "1x2x4")[:2] == (0, "x/1.0 runs 1x2x4, 1 worker ready\n")
    assert run("configure", "x", "none")[:2] == (0, "x/1.0 0 workers ready\n")
    assert run("unload", "x/1.0")[:2] == (0, "x/1.0 is unloaded\n")
    assert asked.models() == []


def test_a_server_and_its_key_may_be_named(run, asked):
    run("load", "m-1.0.mar")
    run("unload", "m", "--management", "http://other:1", "--token", "k3y")
    assert asked.chosen == [("http://127.0.0.1:8081", None), ("http://other:1", "k3y")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("configure", "m", "2x4"), "INSTANCESxTHREADSxBATCH"),
        (("configure", "m", "2x4x1"), "no model is called m"),
        (("unload", "m"), "no model is called m"),
        (("load", "nothing.mar"), "there is no nothing.mar"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(run, arguments, said):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err and err.count("\n") == 1


@pytest.fixture
def started(environ, asked):
    """Makes the runtime folder of a server; with a management socket of the host in memory."""
    with contextlib.ExitStack() as stack:

        def started(*, listens):
            folder = OwnFolder(environ)
            stack.callback(folder.close)
            if listens:
                found = ManagementSocket(folder.folder.path, asked)
                stack.callback(found.close)
                return folder.folder.path, found
            return folder.folder.path

        yield started


def test_the_only_server_here_is_asked_if_it_listens_and_any_by_its_folder(run, asked, started):
    path, socket = started(listens=True)
    assert run("load", "m-1.0.mar") == (2, "", f"shunter: {STARTING}\n")
    socket.is_open = True
    assert run("load", "m-1.0.mar")[:2] == (0, "m/1.0 runs 1x0x1, 1 worker ready\n")
    assert run("load", "m-1.0.mar")[2] == "shunter: m/1.0 is there already; unload it first\n"
    other = started(listens=False)
    status, _, said = run("configure", "m", "2x1x8")
    assert status == 2 and "several servers are running" in said and str(other) in said
    assert run("configure", "m", "2x1x8", "--runtime", str(path))[0] == 0
    assert asked.models()[0].configuration == "2x1x8"
    assert "by --management" in run("unload", "m", "--runtime", str(other))[2]
    both = ("--runtime", str(path), "--management", "http://x:1")
    assert "leave one out" in run("unload", "m", *both)[2]
    assert asked.chosen == []
    assert run("unload", "m", "--management", "http://x:1")[0] == 0
    assert asked.chosen == [("http://x:1", None)]


def test_a_runtime_folder_that_has_no_room_for_a_socket_is_named(tmp_path, asked):
    with pytest.raises(HostError, match="too long; SHUNTER_RUNTIME_DIR names another"):
        ManagementSocket(tmp_path / ("x" * 100), asked)


def test_what_is_asked_without_sense_ends_nobody(started):
    _, socket = started(listens=True)
    socket.is_open = True
    for line in (
        b"no json",
        b"[]",
        b'{"ask": "load", "with": {}}',
        b'{"ask": "__init__", "with": 0}',
    ):
        assert b'{"refused": "' in socket.answer(line)
