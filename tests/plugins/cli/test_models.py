"""``shunter load``, ``unload`` and ``configure``, on a server in memory."""

import contextlib
import importlib.util
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import SLOT_FIELDS, SLOTS_OFFSET
from shunter.batching.page.runtime import OwnFolder
from shunter.plugins import hosts
from shunter.plugins.cli import files
from shunter.plugins.cli import main as cli
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError
from shunter.plugins.management import STARTING, ManagementSocket
from shunter.plugins.view import page_status

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


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """An archive of the folder where the command is typed, and of a store that a server has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    for path in (tmp_path / "here.mar", tmp_path / "store/there.mar"):
        path.write_text("no zip")
    page = ControlPage.create(tmp_path / "page", owner_pid=1, created_unix_ns=1, now_ns=1)
    with page:
        page.words[(SLOTS_OFFSET + SLOT_FIELDS["slot_state"].offset) // 8] = 1
        archive, field = os.fsencode(tmp_path / "store/good.mar"), SLOT_FIELDS["archive"]
        for index, word in enumerate(memoryview(archive.ljust(field.field.width, b"\0")).cast("q")):
            page.words[(SLOTS_OFFSET + field.offset) // 8 + index] = word
        folder = SimpleNamespace(control=tmp_path / "page")
        monkeypatch.setattr(page_status, "live", lambda environ: [folder])
        yield


@pytest.mark.parametrize("archive", ["here.mar", "there.mar"])
def test_what_is_wrong_with_a_refused_archive_of_this_host_is_said(run, damaged, archive):
    status, _, said = run("load", archive)
    assert status == 2 and said.count("\n") == 1
    assert f"{archive} cannot be read as a model archive: File is not a zip file" in said
    assert "there is no here.mar" in run("load", "here.mar", "--management", "http://other:1")[2]
    assert "there is no a://here.mar" in run("load", "a://here.mar")[2]


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (None, "There is no item named 'MAR-INF/MANIFEST.json'"),
        ("{", "cannot be read as a model archive: Expecting"),
        ('{"model": {"handler": "h"}}', "its MANIFEST.json has no modelName"),
        ('{"model": {"modelName": "m"}}', "its MANIFEST.json has no handler"),
        ('{"model": {"modelName": "m", "handler": "h", "configFile": "c"}}', "no item named 'c'"),
    ],
)
def test_an_archive_that_is_none_is_told_from_a_good_one(tmp_path, manifest, said):
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(*("MAR-INF/MANIFEST.json", manifest) if manifest else ("x", ""))
    with pytest.raises(UserError, match=said):
        files.check_archive(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", '{"model": {"modelName": "m", "handler": "h"}}')
    files.check_archive(path)
    files.check_archive(tmp_path)
    files.check_archive(tmp_path / "missing.mar")
