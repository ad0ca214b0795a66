import os
import signal
import subprocess
import sys

import pytest

from shunter.batching.page.processes import try_lock
from shunter.batching.page.runtime import RuntimeFolderError, live, only_live, parent

UID = os.geteuid()


@pytest.fixture
def environ(tmp_path):
    return {"SHUNTER_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def make_folder(tmp_path):
    """Makes the runtime folder of a server, which lives until the test ends."""
    descriptors = []

    def make(name=f"shunter-{UID}-42", mode=0o700, locked=True):
        folder = tmp_path / name
        folder.mkdir(mode=mode)
        folder.chmod(mode)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        descriptors.append(descriptor)
        if locked:
            assert try_lock(descriptor, 0, 0)
        return folder

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SHUNTER_RUNTIME_DIR": "/a", "XDG_RUNTIME_DIR": "/b"}, "/a"),
        ({"SHUNTER_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": "/b"}, "/b"),
        ({"XDG_RUNTIME_DIR": ""}, "/dev/shm"),
        ({}, "/dev/shm"),
    ],
)
def test_runtime_folders_lie_where_the_environment_says(environ, expected):
    assert str(parent(environ)) == expected


def test_the_only_running_server_is_found(make_folder, environ):
    folder = make_folder()
    found = only_live(None, environ)
    assert found.path == folder
    assert found.pid == 42
    assert found.control == folder / "control"


def test_a_folder_that_shares_its_pid_with_another_container_is_found(make_folder, environ):
    folder = make_folder(f"shunter-{UID}-1-2")
    assert only_live(None, environ).path == folder
    assert only_live(None, environ).pid == 1


def test_no_server_is_an_error_that_says_where_was_looked(environ, tmp_path):
    with pytest.raises(RuntimeFolderError, match=f"no running server with Shunter in {tmp_path}"):
        only_live(None, environ)


def test_a_missing_parent_folder_is_no_server(tmp_path):
    assert live({"SHUNTER_RUNTIME_DIR": str(tmp_path / "missing")}) == []


def test_of_several_servers_one_must_be_named(make_folder, environ):
    first, second = make_folder(f"shunter-{UID}-1"), make_folder(f"shunter-{UID}-2")
    with pytest.raises(RuntimeFolderError, match="--runtime") as caught:
        only_live(None, environ)
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)
    assert only_live(second, environ).path == second


def test_the_folder_of_a_server_that_is_gone_is_passed_over(make_folder, environ):
    gone = make_folder(f"shunter-{UID}-1", locked=False)
    folder = make_folder()
    assert only_live(None, environ).path == folder
    with pytest.raises(RuntimeFolderError, match="not the folder of a running server"):
        only_live(gone, environ)


def test_a_folder_that_others_can_enter_is_refused(make_folder, environ):
    folder = make_folder(mode=0o755)
    assert live(environ) == []
    with pytest.raises(RuntimeFolderError, match="has mode 0755, a runtime folder has 0700"):
        only_live(folder, environ)


def test_a_folder_below_a_setgid_folder_is_found(tmp_path, environ, make_folder):
    tmp_path.chmod(0o2755)
    folder = make_folder(mode=0o2700)
    assert folder.stat().st_mode & 0o7777 == 0o2700
    assert only_live(None, environ).path == folder
    assert only_live(folder, environ).path == folder


@pytest.mark.parametrize("mode", [0o2710, 0o2770, 0o500])
def test_the_setgid_bit_excuses_no_other(make_folder, environ, mode):
    folder = make_folder(mode=mode)
    with pytest.raises(RuntimeFolderError, match=f"has mode {mode:04o}"):
        only_live(folder, environ)


def test_links_files_and_foreign_names_are_passed_over(make_folder, environ, tmp_path):
    folder = make_folder("elsewhere")
    (tmp_path / f"shunter-{UID}-7").symlink_to(folder)
    (tmp_path / f"shunter-{UID}-8").touch()
    assert live(environ) == []
    with pytest.raises(RuntimeFolderError, match="is not a folder"):
        only_live(tmp_path / f"shunter-{UID}-7", environ)
    with pytest.raises(RuntimeFolderError, match="cannot be read"):
        only_live(tmp_path / "missing", environ)


def test_a_folder_of_another_user_is_refused(make_folder, environ, monkeypatch):
    folder = make_folder()
    monkeypatch.setattr(os, "geteuid", lambda: UID + 1)
    assert live(environ) == []
    with pytest.raises(RuntimeFolderError, match=f"belongs to user {UID}"):
        only_live(folder, environ)


def test_a_server_without_its_lock_file_yet_is_passed_over(make_folder, environ):
    (make_folder() / "lock").unlink()
    assert live(environ) == []


LOCKER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


def test_a_killed_server_is_gone_and_needs_no_lock_of_our_kind(make_folder, environ, tmp_path):
    folder = make_folder(locked=False)
    command = [sys.executable, "-c", LOCKER, str(folder / "lock")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert server.stdout.readline() == b"locked\n"
        assert only_live(None, environ).path == folder
    finally:
        server.send_signal(signal.SIGKILL)
        server.communicate()
    assert live(environ) == []
