"""What a host writes to the control page, and what it takes from there."""

import os
from dataclasses import fields

import pytest

from shunter.allocator.planning.configuration import parse_configuration
from shunter.batching.page.records import (
    Commands,
    GroupCommands,
    GroupTelemetry,
    NetworkTelemetry,
    SlotCommands,
    SlotIdentity,
)
from shunter.batching.page.slices import ALL_CPUS
from shunter.batching.queue.slo_window import SloWindow
from shunter.plugins import record
from shunter.plugins.triton import layout
from shunter.plugins.triton.published import (
    AUTO,
    NO_STATE,
    clipped,
    counted_of,
    groups_of,
    slices_of,
    telemetry_of,
    wanted_of,
)


def state(**words):
    found = layout.unpack("state", layout.pack("state", **words))
    pids = zip(found["pids"], found.pop("busy_ns"), strict=True)
    return found | {"pids": {pid: busy for pid, busy in pids if pid}}


def test_counters_have_the_order_of_the_page():
    found = counted_of(state(telemetry=range(layout.TELEMETRY_WORDS)))
    names = [each.name for each in fields(NetworkTelemetry)][:-1]
    words = [getattr(found, name) for name in names]
    flat = [n for each in words for n in (each if isinstance(each, tuple) else (each,))]
    assert flat == list(range(layout.TELEMETRY_WORDS))


def test_a_slot_says_what_the_dispatcher_counted():
    counted = [0] * layout.TELEMETRY_WORDS
    counted[2:4], counted[14:16], counted[12:14] = (10, 4), (3, 0), (6, 0)
    told = state(
        telemetry=counted,
        waiting=(5, 6),
        running=3,
        running_batches=2,
        threshold=2.5,
        pids=(11, 12, 0),
        busy_ns=(7, 0, 0),
        strict_batches=(1, 2),
    )
    found = telemetry_of(told, SloWindow(), 10**9)
    assert (found.answered, found.answered_late, found.good) == ((10, 4), (3, 0), (7, 4))
    assert (found.queued, found.in_flight_requests, found.in_flight_batches) == ((5, 6), 3, 2)
    assert (found.ready_workers, found.busy_workers, found.threshold_milli) == (2, 1, 2500)
    assert found.attainment == (round(6 / 9 * 1e6), 0)
    assert found.strict_batches[:2] == (1, 2)


def test_groups_say_who_is_ready_and_what_a_batch_takes():
    told = state(pids=(11, 12, 13), busy_ns=(7, 0, 9), fixed_ns=100, fitted=4, batches=8)
    places = [GroupTelemetry(group_slices=1), GroupTelemetry(group_slices=2, group_yields=1)]
    configuration = parse_configuration("2x1x8,1x2x4")
    one, two = groups_of(configuration, {11: 0, 12: 0, 13: 1}, told, places)
    assert (one.group_ready, one.group_busy, one.group_instances) == (2, 1, 2)
    assert (two.group_ready, two.group_busy, two.group_threads, two.group_cap) == (1, 1, 2, 4)
    assert (one.group_slices, two.group_yields, two.group_fixed_ns) == (1, 1, 100)
    [alone] = groups_of(configuration[:1], {}, NO_STATE, places[:1])
    assert (alone.group_ready, alone.group_fitted, alone.group_batches) == (0, 0, 0)


@pytest.mark.parametrize(("pin", "cores"), [(0, ""), (1, AUTO)])
def test_a_wanted_configuration_says_where_its_workers_run(pin, cores):
    groups = (
        GroupCommands(wanted_instances=2, wanted_threads=1, wanted_batch=8),
        GroupCommands(wanted_instances=1, wanted_threads=2, wanted_cpus=0b1101),
        GroupCommands(wanted_instances=9),
    )
    found = wanted_of(Commands(SlotCommands(wanted_groups=2, wanted_pin=pin), groups))
    assert found == (parse_configuration("2x1x8,1x2x1"), (cores, "0,2-3"))


def test_cores_are_slices_and_where_nobody_says_any_all_are():
    assert slices_of("0,2-3") == 0b1101
    assert slices_of("") == slices_of(AUTO) == ALL_CPUS


def test_texts_that_are_too_long_are_cut_between_characters():
    found = clipped(SlotIdentity(problem="\u00e4" * 200, last_change="x"))
    assert (found.problem, found.last_change) == ("\u00e4" * 127, "x")


def test_what_a_host_leaves_is_read_while_its_server_lives(tmp_path):
    pid = os.getpid()
    model = record.RecordedModel("a.mar", "a", 8, "1x1x8", [""])
    left = record.Record(pid, record.started(pid), [1, 2, 3], (model,))
    assert record.read(tmp_path) is None
    left.write(tmp_path)
    assert record.read(tmp_path) == left
    record.Record(pid, left.started + 1, [1, 2, 3], ()).write(tmp_path)
    assert record.read(tmp_path) is None  # another process with its number
    for text in ("", "[]", '{"pid": 1}', '{"models": [{"x": 1}]}'):
        (tmp_path / record.NAME).write_text(text)
        assert record.read(tmp_path) is None
