"""Files that outlive the program which wrote them: an older and a newer version of each.

Those of shared memory have tests beside them (test_control_page.py, test_tensor_queue.py);
that beside a snapshot is Java's (SavedSettingsTest).
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.journal import Journal, Phase
from shunter.allocator.devices.journal import Record as Change
from shunter.allocator.planning.profile import ProfileError, read_profile
from shunter.plugins import record
from shunter.plugins.host import HostError

ROOT = Path(__file__).parents[1]


def change(path, **more):
    """Write other fields into a file of JSON; None: without that one."""
    content = json.loads(path.read_text(encoding="utf-8")) | more
    kept = {name: value for name, value in content.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def written(folder, pid):
    models = (record.RecordedModel("m.mar", "m", 8, "1x2x8", ["auto"], None),)
    told = record.Record(pid, record.started(pid), (8000, 8001, 8002), models)
    told.write(folder)
    return told


@pytest.mark.parametrize("version", [None, record.VERSION])
def test_a_host_takes_over_what_an_older_one_or_its_like_has_left(tmp_path, version):
    told = written(tmp_path, os.getpid())
    change(tmp_path / record.NAME, version=version)
    found = record.read(tmp_path)
    assert found is not None
    assert (found.pid, found.models[0].archive) == (told.pid, "m.mar")


def test_what_a_newer_host_has_left_is_left_to_it_while_its_server_runs(tmp_path):
    written(tmp_path, os.getpid())
    change(tmp_path / record.NAME, version=record.VERSION + 1, shards=3)
    with pytest.raises(HostError, match=rf"version 2, this Shunter knows 1.*process {os.getpid()}"):
        record.read(tmp_path)


def test_what_a_newer_host_has_left_of_a_server_that_has_ended_is_nothing(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        pid = gone.pid
    written(tmp_path, pid)
    change(tmp_path / record.NAME, version=record.VERSION + 1, started=1)
    assert record.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": "x", "pid": 1}', '{"version": 2}'])
def test_what_no_host_has_written_is_nothing(tmp_path, text):
    (tmp_path / record.NAME).write_text(text, encoding="utf-8")
    assert record.read(tmp_path) is None


def test_a_journal_of_an_older_program_is_read_and_one_of_a_newer_is_not(tmp_path):
    journal = Journal(tmp_path, "GPU-1")
    told = Change(Phase.SETTLED, frozenset(), frozenset(), "")
    journal.write(told)
    change(journal.path, version=None)
    assert journal.read() == told
    change(journal.path, version=2)
    with pytest.raises(DeviceError, match=r"version 2, this .*then delete the file"):
        journal.read()


@pytest.mark.parametrize("version", [0, 2, None])
def test_a_profile_of_another_version_says_how_to_get_one_of_this(version):
    text = json.dumps({"format": "shunter-profile", "version": version})
    with pytest.raises(ProfileError, match=f"version {version}, this .* run `shunter profile`"):
        read_profile(text)


def test_the_page_on_upgrades_names_every_version_that_is_kept():
    page = (ROOT / "docs/howto/upgrade.md").read_text(encoding="utf-8")
    files = [path for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    kept = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if re.search(r"^(?:[A-Z]+_)?VERSION = \d+$", path.read_text("utf-8"), re.MULTILINE)
    }
    assert kept
    assert {each for each in kept if f"`{each}`" not in page and "build" not in each} == set()
