"""``shunter doctor`` and ``shunter init``, as they are typed."""

import json

import pytest

from shunter.plugins.cli import main as cli
from shunter.plugins.control import settings
from shunter.plugins.doctor import checks, facts


def run(*argv):
    """Exit status."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*argv])
    return ended.value.code


def test_doctor_says_what_is_there_and_changes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("doctor", "--port", "1", "--json")
    found = json.loads(capsys.readouterr().out)
    assert {each["topic"] for each in found} >= {"system", "Java", "built", "ports", "settings"}
    assert {each["level"] for each in found} <= {"ok", "note", "warning", "error"}
    assert list(tmp_path.iterdir()) == []
    run("doctor", "--port", "1")
    shown = capsys.readouterr().out
    assert all(each["topic"] in shown for each in found)


@pytest.mark.parametrize(("level", "status"), [("OK", 0), ("WARNING", 0), ("ERROR", 1)])
def test_its_status_says_whether_a_server_would_serve(monkeypatch, level, status, capsys):
    finding = checks.Finding("Java", checks.Level[level], "11", "install [another]")
    monkeypatch.setattr(checks, "diagnose", lambda found: [finding])
    monkeypatch.setattr(facts, "gather", lambda ports: None)
    assert run("doctor") == status
    assert "install [another]" in capsys.readouterr().out


def test_init_writes_files_that_hold_and_replaces_none(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "etc"
    assert run("init", str(folder), "--store", str(tmp_path / "store")) == 0
    assert "--ts-config" in capsys.readouterr().out
    assert settings.load(folder / "shunter.toml") == settings.Settings()
    lines = (folder / "config.properties").read_text().splitlines()
    assert f"model_store={tmp_path / 'store'}" in lines
    (folder / "shunter.toml").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert run("init", str(folder)) == 2
    assert "--force" in capsys.readouterr().err
    assert (folder / "shunter.toml").read_text() == "mine"
    assert run("init", str(folder), "--force") == 0
    assert (folder / "shunter.toml").read_text() != "mine"


def test_what_init_says_holds_wherever_it_is_typed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init", "etc") == 0
    said = capsys.readouterr().out
    assert (tmp_path / "model_store").is_dir() and f"made {tmp_path}/model_store\n" in said
    assert f"--ts-config {tmp_path}/etc/config.properties\n" in said
    assert f"wrote {tmp_path}/etc/shunter.toml\n" in said
    assert "key_file.json of the folder where you start it" in said


def test_init_where_nobody_may_write(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert run("init", str(tmp_path / "file" / "etc")) == 2
    assert "Not a directory" in capsys.readouterr().err
