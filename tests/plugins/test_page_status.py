"""``shunter status`` from the control page of a server on this host."""

import os
import subprocess
import sys

import pytest
from rich.console import Console

from shunter.batching.control_page import ControlPage
from shunter.batching.layout import SLOT_FIELDS, SLOTS_OFFSET
from shunter.plugins import page_status
from shunter.plugins import status as view
from shunter.plugins.errors import UserError

HOLD = (
    "import fcntl, os, sys; lock = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600);"
    "fcntl.lockf(lock, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)


@pytest.fixture
def runtime(tmp_path):
    """A runtime folder as a running server has it, with a page and its lock held."""
    folder = tmp_path / f"shunter-{os.geteuid()}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-c", HOLD, str(folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        ControlPage.create(
            folder / "control", owner_pid=os.getpid(), created_unix_ns=1, now_ns=1
        ).close()
        yield folder
        holder.stdin.close()


def test_a_page_without_models_is_shown(runtime):
    status = page_status.fetch(runtime)
    assert status["pid"] == os.getpid()
    assert status["models"] == []
    assert status["controller"]["state"] == "off"
    view.render(status)


@pytest.mark.parametrize(
    ("auto", "batch_size", "shown"),
    [(1, 8, {"auto"}), (1, 1, {"auto", "(not with batch size 1)"}), (0, 1, set())],
)
def test_a_model_that_may_be_changed_says_so(runtime, auto, batch_size, shown):
    values = {"slot_state": 1, "auto": auto, "registered_batch_size": batch_size}
    with ControlPage.attach(runtime / "control") as page:
        for name, value in values.items():
            page.words[(SLOTS_OFFSET + SLOT_FIELDS[name].offset) // 8] = value
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view.render(page_status.fetch(runtime)))
    assert {each for each in ("auto", "(not with batch size 1)") if each in capture.get()} == shown


def test_a_folder_that_is_none_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        page_status.fetch(tmp_path / "none")
