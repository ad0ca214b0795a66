"""``shunter status`` from the control page of a server on this host."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from shunter.batching.page import front_end_page, holds
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    RUNNER_FIELDS,
    RUNNER_SIZE,
    RUNNERS_OFFSET,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
    RunnerState,
)
from shunter.batching.page.records import FrontEndState, NetworkTelemetry, SlotNetwork
from shunter.plugins.errors import UserError
from shunter.plugins.view import page_status, pool_memory
from shunter.plugins.view import status as view

HOLD = (
    "import fcntl, os, sys; lock = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600);"
    "fcntl.lockf(lock, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)
NOBODY = 2**22 + 1  # a process id that no kernel gives out


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
    [(1, 8, True), (1, 1, True), (0, 1, False)],
)
def test_a_model_that_may_be_changed_says_so(runtime, auto, batch_size, shown):
    values = {"slot_state": 1, "auto": auto, "registered_batch_size": batch_size}
    with ControlPage.attach(runtime / "control") as page:
        for name, value in values.items():
            page.words[(SLOTS_OFFSET + SLOT_FIELDS[name].offset) // 8] = value
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view.render(page_status.fetch(runtime)))
    assert ("auto" in capture.get()) is shown


def test_why_a_worker_does_not_load_is_shown_as_it_was_told(runtime):
    told = "ModuleNotFoundError: No module named 'x' [/bold]"
    field = SLOT_FIELDS["problem"]
    with ControlPage.attach(runtime / "control") as page:
        page.words[(SLOTS_OFFSET + SLOT_FIELDS["slot_state"].offset) // 8] = 1
        text = memoryview(told.encode().ljust(field.field.width, b"\0")).cast("q")
        for index, word in enumerate(text):
            page.words[(SLOTS_OFFSET + field.offset) // 8 + index] = word
    status = page_status.fetch(runtime)
    assert status["models"][0]["problem"] == told
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view.render(status))
    assert f"lost a worker: {told}" in capture.get()


def test_who_lives_and_is_silent_is_hung_and_who_is_gone_is_not(runtime):
    def states():
        status = page_status.fetch(runtime)
        return [status[name]["state"] for name in ("controller", "front_end")]

    with ControlPage.attach(runtime / "control") as page:
        page.want_front_end(7)
        for pid, expected in ((os.getpid(), ["hung"] * 2), (NOBODY, ["off", "restarting"])):
            page.write_controller(pid, 1, 1)
            front_end_page.write(page, FrontEndState(pid, 1), ())
            assert states() == expected
        now = time.monotonic_ns()
        page.write_controller(os.getpid(), 1, now)
        front_end_page.write(page, FrontEndState(os.getpid(), now), ())
        assert states() == ["running"] * 2


def test_the_front_end_and_its_models_are_shown(runtime):
    console = Console(width=200)

    def shown():
        with console.capture() as capture:
            console.print(view.render(page_status.fetch(runtime)))
        return " ".join(capture.get().split())

    assert "network front end" not in shown()
    with ControlPage.attach(runtime / "control") as page:
        page.words[(SLOTS_OFFSET + SLOT_FIELDS["slot_state"].offset) // 8] = 1
        state = FrontEndState(4244, time.monotonic_ns(), 8083, 5, 2_000_000, 4, 768, 193)
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
        assert "scarce" not in text and "0 refused" in text
        assert "requests by the network" in text and "best_effort 0.0 0 0 0 0 0 0 -" in text
        told = NetworkTelemetry(
            *((9, 0), (4, 0), (1, 0), (2, 0), (1, 0), (1, 0)),
            network_slo_met=(3, 0),
            network_slo_late=(1, 0),
            network_latency_ns=(50_000_000, 0),
            network_batches_by_size=(1, 0, 1, *[0] * 13),
            network_attainment_ppm=(375_000, -1),
        )
        front_end_page.write_network(page, 0, SlotNetwork(2, 256, 250, 3, 4, 16), told)
        text = shown()
        assert "strict 12.5 4 1 1 2 1 1 37.50%" in text
        assert "1: 1 3-4: 1 2" in text
        front_end_page.write(page, replace(state, landing_free=192), tuple(counters.values()))
        assert "room for payloads is scarce: 192 of 768 blocks are free" in shown()
        front_end_page.write_network(page, 0, SlotNetwork(network_needs_mb=1025))
        assert "are refused: its tensors need 1025 MB; raise queue_mb" in shown()
        front_end_page.write(page, replace(state, front_end_beat_ns=1), ())
        assert "network front end" not in shown()


def test_of_a_front_end_that_was_killed_nothing_is_shown(runtime):
    with ControlPage.attach(runtime / "control") as page:
        page.words[(SLOTS_OFFSET + SLOT_FIELDS["slot_state"].offset) // 8] = 1
        state = FrontEndState(NOBODY, time.monotonic_ns(), 8083, 5, 2_000_000, 4)
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


def poke(page, start, fields, **values):
    for name, value in values.items():
        page.words[(start + fields[name].offset) // 8] = value


def name_model(page, slot, name, yields):
    start = SLOTS_OFFSET + slot * SLOT_SIZE
    text = int.from_bytes(name, "little")
    poke(page, start, SLOT_FIELDS, slot_state=1, group_count=1, group_yields=yields)
    poke(page, start, SLOT_FIELDS, model_name=text, model_version=ord("1"))


def test_who_gives_way_to_whom_is_shown(runtime):
    console = Console(width=200)

    def shown():
        with console.capture() as capture:
            console.print(view.render(page_status.fetch(runtime)))
        return " ".join(capture.get().replace("(not default)", "").split())

    with ControlPage.attach(runtime / "control") as page:
        name_model(page, 0, b"strict", 0)
        name_model(page, 70, b"other", 0)
        assert "giving way" not in shown()
        assert [model["preemption"] for model in page_status.fetch(runtime)["models"]] == [None] * 2
        name_model(page, 5, b"bulk", 1)
        assert "bulk/1 no worker as the worker likes" in shown()
        numbers = {
            "runner_state": RunnerState.PARKED,
            "preemptions": 12,
            "parked_ns": 3_450_000_000,
            "yield_worst_ns": 780_000,
            "batches": 99,
        }
        for index, values in ((0, numbers), (3, {"batches": 4})):
            start = RUNNERS_OFFSET + index * RUNNER_SIZE
            who = {"runner_pid": os.getpid(), "runner_slot": 5, "runner_class": 1}
            poke(page, start, RUNNER_FIELDS, **who, **values)
        page.write_padding(5, (1 << 128) - 1 - (1 << 70) - 1)
        text = shown()
        assert f"bulk/1 parked {os.getpid()} 99 12 3.5 0.78 strict/1 other/1 running" in text
        assert f"running {os.getpid()} 4 0 0.0 0.00" in text
        page.write_padding(5, (1 << 128) - 1)
        assert f"bulk/1 parked {os.getpid()} 99 12 3.5 0.78 - running" in shown()
        [told] = [m["preemption"] for m in page_status.fetch(runtime)["models"] if m["preemption"]]
        assert told["not_beside"] == []
        assert [each["state"] for each in told["runners"]] == ["parked", "running"]
        page.forget_padding(5)
        told = page_status.fetch(runtime)["models"][1]["preemption"]
        assert told["not_beside"] is None


def test_who_holds_now_is_shown(runtime):
    console = Console(width=200)

    def shown():
        with console.capture() as capture:
            console.print(view.render(page_status.fetch(runtime)))
        return capture.get()

    with ControlPage.attach(runtime / "control") as page:
        name_model(page, 0, b"strict", 0)
        name_model(page, 70, b"other", 0)
        assert "stands still" not in shown()
        holder = holds.claim(page, os.getpid(), time.monotonic_ns())
        holder.hold(1, 1 << 70, time.monotonic_ns())
        assert "best effort stands still for other/1" in shown()
        assert [model["holds"] for model in page_status.fetch(runtime)["models"]] == [False, True]
        holder.release()
        assert "stands still" not in shown()


def test_a_folder_that_is_none_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        page_status.fetch(tmp_path / "none")


def test_how_the_instances_of_gpus_stand_is_shown_and_long_texts_are_cut(runtime):
    assert page_status.fetch(runtime)["devices"] is None
    with ControlPage.attach(runtime / "control") as page:
        page.tell_devices(1, 7, 3, 2, "0: 4g@0:4 3g@4:4", "é" * 300)
    status = page_status.fetch(runtime)
    assert status["devices"] == {
        "layouts": "0: 4g@0:4 3g@4:4",
        "changing": 1,
        "changes": 3,
        "undone": 2,
        "problem": "é" * 128,
    }
    console = Console(width=200, record=True)
    console.print(view.render(status))
    assert "0: 4g@0:4 3g@4:4; being changed\n3 changes, 2 undone" in console.export_text()


def test_processes_of_several_models_say_what_is_hot_as_long_as_they_live(runtime):
    told = {"pool": 1, "pid": os.getpid(), "models": ["a/1", "b/1"], "hot": ["b/1"]}
    counted = {"bytes": 3e6, "budget": 8e6, "hits": 7, "misses": 2, "swap_ms": 5, "evictions": 1}
    (runtime / "pool.1.json").write_text(json.dumps(told | counted))
    (runtime / "pool.0.json").write_text(json.dumps({"pool": 0, "pid": os.getpid()}))
    (runtime / "pool.2.json").write_text(json.dumps({"pool": 2, "pid": 1 << 23}))
    (runtime / "pool.3.json").write_text('{"pool": 3, "pid"')
    (runtime / "pool.4.json.new").write_text(json.dumps({**told, "pool": 4}))
    status = page_status.fetch(runtime)
    assert [each["pool"] for each in status["pools"]] == [0, 1]
    assert (told | counted).items() <= status["pools"][1].items()
    console = Console(width=200, record=True)
    console.print(pool_memory.draw(status["pools"]))
    rows = [line.split() for line in console.export_text().splitlines()[2:]]
    pid = str(os.getpid())
    assert rows == [
        ["0", pid, "0", "0", "0", "0", "0", "-", "0", "-"],
        ["1", pid, "2", "3", "8", "7", "2", "2.5", "1", "b/1"],
    ]


def test_slices_say_who_is_on_them_and_how_many_deadlines_are_met_there():
    def model(name, *groups):
        return {"name": name, "version": "1", "default": True, "groups": groups}

    def group(where, strict):
        slo = {"strict": {"attainment": strict}, "best_effort": {"attainment": None}}
        return {"slice": where, "slo": slo, "state": "serving", "instances": 2, "workers": []}

    here, there = group("MIG-1", 0.5), group("cpus:0-1", None)
    console = Console(width=120, record=True)
    console.print(view._slices([model("a", here, there), model("b", group("MIG-1", 1.0))]))
    lines = [line.split() for line in console.export_text().splitlines()[2:]]
    assert lines == [
        ["MIG-1", "a/1", "2", "50.00%", "-"],
        ["b/1", "2", "100.00%", "-"],
        ["cpus:0-1", "a/1", "2", "-", "-"],
    ]
    assert view._slices([model("a", group("all cores", 1.0))]) is None
