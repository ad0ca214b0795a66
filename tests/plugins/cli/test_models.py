"""``shunter load``, ``unload`` and ``configure``, on a server in memory."""

import importlib.util
from pathlib import Path

import pytest

from shunter.plugins import hosts
from shunter.plugins.cli import main as cli

FAKE = Path(__file__).parents[1] / "fake_host.py"


@pytest.fixture
def asked(monkeypatch):
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
