"""A control page as a server in Python makes and writes it, and what others read there."""

import math
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shunter.batching.page.layout import (
    SLOT_COUNT,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
    TIME_BUCKETS,
)
from shunter.batching.page.records import (
    GroupTelemetry,
    SlotChange,
    SlotIdentity,
    SlotTelemetry,
)
from shunter.batching.page.runtime import LOCK, OwnFolder, only_live
from shunter.plugins import supervised
from shunter.plugins.host import HostError
from shunter.plugins.prometheus import exposition
from shunter.plugins.slot_writer import ServerPage
from shunter.plugins.supervised import Supervised
from shunter.plugins.view import page_status
from shunter.plugins.view import status as view

IDENTITY = SlotIdentity(1, generation=3, group_count=2, model_name='m"1', model_version="2.0")
GROUPS = [GroupTelemetry(group_instances=2, group_cap=8), GroupTelemetry(group_fitted=7)]


@pytest.fixture
def environ(tmp_path):
    return {"SHUNTER_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def folder(environ):
    own = OwnFolder(environ)
    yield own.folder
    own.close()


@pytest.fixture
def server(folder):
    page = ServerPage(folder.control, os.getpid(), "Servant")
    yield page
    page.close()


def test_a_folder_is_found_while_its_server_lives_and_those_of_dead_ones_are_swept(
    environ, tmp_path
):
    dead = tmp_path / f"shunter-{os.geteuid()}-1"
    dead.mkdir(mode=0o700)
    (dead / LOCK).touch()
    unfinished = tmp_path / f"shunter-{os.geteuid()}-2"
    unfinished.mkdir(mode=0o700)
    first, second = OwnFolder(environ), OwnFolder(environ)
    assert not dead.exists() and unfinished.exists()
    assert first.folder.path != second.folder.path
    second.close()
    assert only_live(environ=environ) == first.folder
    first.close()
    assert not first.folder.path.exists()


def test_a_slot_says_what_was_written_and_only_what_changes_is_written_again(server):
    slot = server.take()
    slot.identity(IDENTITY, GROUPS)
    told = SlotTelemetry(arrivals=(5, 1), queued=(2, 0))
    slot.telemetry(told)
    slot.change(SlotChange(4, 2))
    page = server.page
    assert page.live_slots() == [slot.index]
    assert page.read_identity(slot.index) == IDENTITY
    assert page.read_groups(slot.index, 2) == GROUPS
    assert page.read_telemetry(slot.index) == told
    assert page.read_change(slot.index) == SlotChange(4, 2)
    sequence = page.identity_sequence(slot.index)
    slot.identity(IDENTITY, GROUPS)
    assert page.identity_sequence(slot.index) == sequence
    slot.identity(replace(IDENTITY, generation=4), GROUPS)
    assert page.identity_sequence(slot.index) == sequence + 2


def test_a_slot_that_was_left_is_free_and_empty(server):
    slots = [server.take() for _ in range(SLOT_COUNT)]
    with pytest.raises(HostError, match=f"at most {SLOT_COUNT}"):
        server.take()
    slots[7].identity(IDENTITY, GROUPS)
    slots[7].telemetry(SlotTelemetry(arrivals=(5, 1)))
    server.give_back(slots[7])
    assert server.page.live_slots() == []
    assert server.page.read_telemetry(7) == SlotTelemetry()
    again = server.take()
    assert again.index == 7
    again.identity(IDENTITY, GROUPS)
    assert server.page.read_identity(7) == IDENTITY


def test_what_is_said_of_a_model_that_has_gone_is_not_written(server):
    """One thread unloads it while another, which has looked before, tells of it."""
    gone = server.take()
    gone.identity(IDENTITY, GROUPS)
    server.give_back(gone)
    gone.identity(replace(IDENTITY, generation=4), GROUPS)
    gone.groups(GROUPS)
    gone.telemetry(SlotTelemetry(arrivals=(5, 1)))
    gone.change(SlotChange(4, 2))
    assert server.page.live_slots() == []
    assert not any(server.page.slot_bytes(gone.index)[16:])


def test_what_a_controller_wrote_after_a_model_left_is_not_for_the_next_one(server):
    gone = server.take()
    gone.identity(IDENTITY, GROUPS)
    server.give_back(gone)
    word = SLOT_FIELDS["wanted_request"].offset // 8
    server.page.words[SLOTS_OFFSET // 8 + gone.index * SLOT_SIZE // 8 + word] = 7
    again = server.take()
    assert again.index == gone.index
    assert server.page.words[SLOTS_OFFSET // 8 + again.index * SLOT_SIZE // 8 + word] == 0


def test_the_status_names_the_server_and_its_last_minute(server, folder):
    slot = server.take()
    slot.identity(IDENTITY, GROUPS)
    slot.telemetry(SlotTelemetry(attainment=(900_001, 0)))
    found = page_status.fetch(folder.path)
    assert (found["server"], found["models"][0]["generation"]) == ("Servant", 3)
    assert found["models"][0]["slo_attainment"] == {"strict": 0.9, "best_effort": None}
    view.render(found)


def numbers_of(text):
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_prometheus_gets_what_the_page_says(server):
    slot = server.take()
    slot.identity(IDENTITY, GROUPS)
    times = [0] * (2 * TIME_BUCKETS)
    times[0], times[2], times[TIME_BUCKETS - 1] = 3, 2, 1
    told = SlotTelemetry(
        arrivals=(6, 1),
        expired=(2, 0),
        slo_late=(0, 4),
        attainment=(500_001, 0),
        latency_times=tuple(times),
        latency_ns=(2_000_000_000, 0),
        batches_by_size=(1, 0, 2, *(0,) * 13),
        batch_requests=7,
        threshold_milli=1500,
    )
    slot.telemetry(told)
    found = numbers_of(exposition(server.page, time.monotonic_ns()))
    model = 'model="m\\"1",version="2.0"'
    strict = f'{model},class="strict"'
    wanted = {
        f"shunter_arrivals_total{{{strict}}}": 6,
        f'shunter_requests_total{{{strict},outcome="expired"}}': 2,
        f'shunter_slo_missed_total{{{model},class="best_effort",reason="late"}}': 4,
        f"shunter_slo_attainment{{{strict}}}": 0.5,
        f'shunter_latency_seconds_bucket{{{strict},le="0.000262144"}}': 3,
        f'shunter_latency_seconds_bucket{{{strict},le="0.001048576"}}': 5,
        f'shunter_latency_seconds_bucket{{{strict},le="+Inf"}}': 6,
        f"shunter_latency_seconds_sum{{{strict}}}": 2,
        f'shunter_batch_size_bucket{{{model},le="4"}}': 3,
        f"shunter_batch_size_count{{{model}}}": 3,
        f"shunter_batch_size_sum{{{model}}}": 7,
        f"shunter_threshold{{{model}}}": 1.5,
        f"shunter_generation{{{model}}}": 3,
        f'shunter_predicted_fixed_seconds{{{model},group="1"}}': 0,
        f"shunter_holds{{{model}}}": 0,
        "shunter_settings_valid": 1,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert math.isnan(found[f'shunter_slo_attainment{{{model},class="best_effort"}}'])
    assert f'shunter_predicted_fixed_seconds{{{model},group="0"}}' not in found


BEATS = "import sys, time\nwhile True: time.sleep(0.01); open(sys.argv[1], 'a').write('.')"
HANGS = "import sys; open(sys.argv[1], 'a').write('.'); sys.stdin.read()"


@pytest.fixture
def supervise(tmp_path, monkeypatch):
    """Looks at a program until something is so."""
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervised, "SILENT_S", 0.3)
    told = tmp_path / "told"
    told.touch()
    started = []

    def start(code):
        program = Supervised(
            "test", ["-c", code, str(told)], tmp_path / "log", lambda: told.stat().st_size
        )
        started.append(program)

        def until(is_so):
            end = time.monotonic() + 30
            while not is_so(program):
                assert time.monotonic() < end
                program.look()
                time.sleep(0.005)
            return program.pid

        return until

    yield start
    for each in started:
        each.close()
        assert each.pid == 0


@pytest.mark.parametrize("code", ["raise SystemExit(3)", HANGS])
def test_a_program_that_ends_or_hangs_is_started_again(supervise, code):
    until = supervise(code)
    pids = set()
    until(lambda program: pids.add(program.pid) or len(pids - {0}) == 3)


def test_a_program_that_beats_is_left_alone_and_ends_with_its_supervisor(
    supervise, tmp_path, monkeypatch
):
    now, told = [0.0], tmp_path / "told"
    monkeypatch.setattr(supervised, "time", SimpleNamespace(monotonic=lambda: now[0]))
    until = supervise(BEATS)
    pid = until(lambda program: program.pid)
    for _ in range(10):
        now[0] += 0.2
        beats = told.stat().st_size
        assert until(lambda _, beats=beats: told.stat().st_size > beats) == pid
