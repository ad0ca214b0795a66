"""``shunter status`` from the control page of a server on this host."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from shunter.batching import front_end_page
from shunter.batching.control_page import ControlPage
from shunter.batching.layout import SLOT_FIELDS, SLOTS_OFFSET
from shunter.batching.page_records import FrontEndState, SlotNetwork
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


def test_the_front_end_and_its_models_are_shown(runtime):
    console = Console(width=200)

    def shown():
        with console.capture() as capture:
            console.print(view.render(page_status.fetch(runtime)))
        return " ".join(capture.get().split())

    assert "network front end" not in shown()
    with ControlPage.attach(runtime / "control") as page:
        page.words[(SLOTS_OFFSET + SLOT_FIELDS["slot_state"].offset) // 8] = 1
        state = FrontEndState(4244, time.monotonic_ns(), 8083, 5, 2_000_000, 4)
        counters = {"datagrams_in": 11, "drop_tag": 2, "drop_old": 3, "requests": 7}
        front_end_page.write_names(page, tuple(counters))
        front_end_page.write(page, state, tuple(counters.values()))
        assert "free entries" not in shown()
        front_end_page.write_network(page, 0, SlotNetwork(2, 256, 250, 3, 4, 16))
        text = shown()
        head = "running, pid 4244, port 8083, 5 sessions, round trip of a hello 0.50 ms"
        assert f"network front end {head}" in text
        assert "11 datagrams in, 0 out, 5 dropped; 7 requests, 0 failed, 0 expired" in text
        assert "/ 2 3 250 256 4 16" in text.replace("(not default)", "")
        front_end_page.write(page, replace(state, front_end_beat_ns=1), ())
        assert "network front end" not in shown()


def test_of_a_front_end_that_was_killed_nothing_is_shown(runtime):
    with ControlPage.attach(runtime / "control") as page:
        page.words[(SLOTS_OFFSET + SLOT_FIELDS["slot_state"].offset) // 8] = 1
        state = FrontEndState(4244, time.monotonic_ns(), 8083, 5, 2_000_000, 4)
        front_end_page.write(page, state, ())
        front_end_page.write_network(page, 0, SlotNetwork(2, 256, 250, 3, 4, 16))
        [model] = page_status.fetch(runtime)["models"]
        assert model["network"]["free"] == 250
        front_end_page.write(page, replace(state, front_end_beat_ns=1), ())
        found = page_status.fetch(runtime)
        assert found["models"][0]["network"] is None
        assert found["front_end"]["state"] == "off"
        page.want_front_end(7)  # who starts it again is under way
        assert page_status.fetch(runtime)["front_end"]["state"] == "restarting"


def test_a_folder_that_is_none_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        page_status.fetch(tmp_path / "none")
