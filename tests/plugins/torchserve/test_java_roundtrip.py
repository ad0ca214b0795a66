"""The Java side of the page and of the rules, through the programs PageTool and GoldenTool."""

import json

import pytest

from shunter.allocator.planning.configuration import InstanceGroup
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import RUNNERS_OFFSET, SLOT_FIELDS, SLOTS_OFFSET
from shunter.batching.page.records import Commands, SlotCommands
from shunter.batching.page.slices import Slice, of_cpus
from shunter.plugins.control.fixed_policy import with_configuration
from shunter.plugins.control.reconfiguration import Wanted

pytestmark = pytest.mark.java

BEFORE_COMMANDS = SLOT_FIELDS["command_sequence"].offset


def test_java_reads_every_word_that_python_wrote(run_tool, make_golden, page_path):
    make_golden.make_page(page_path).close()
    done = run_tool("PageTool", "dump", page_path)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    expected = make_golden.expected_dump()
    assert {name: lines.get(name) for name in expected} == expected


def test_python_reads_every_word_that_java_wrote(run_tool, make_golden, page_path, tmp_path):
    done = run_tool("PageTool", "create", page_path)
    assert done.returncode == 0, done.stderr
    assert page_path.stat().st_mode & 0o777 == 0o600
    make_golden.make_page(tmp_path / "ours").close()
    slot = slice(SLOTS_OFFSET, SLOTS_OFFSET + BEFORE_COMMANDS)
    assert page_path.read_bytes()[slot] == (tmp_path / "ours").read_bytes()[slot]
    with ControlPage.attach(page_path) as page:
        assert page.live_slots() == [0]
        assert page.read_identity(0).model_name == make_golden.MODEL_NAME
        assert page.read_commands(0) is None
        assert page.header().owner_pid > 0
        assert page.header().server_heartbeat_ns > 0


def test_java_makes_no_page_on_another_processor(run_tool, page_path, monkeypatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dos.arch=aarch64")
    done = run_tool("PageTool", "create", page_path)
    assert done.returncode != 0
    assert "needs an x86_64 processor, this one is aarch64" in done.stderr
    assert not page_path.exists()


def test_java_leaves_the_rest_of_a_new_page_zero(run_tool, page_path):
    assert run_tool("PageTool", "create", page_path).returncode == 0
    content = page_path.read_bytes()
    assert not any(content[SLOTS_OFFSET + BEFORE_COMMANDS :])
    assert not any(content[RUNNERS_OFFSET:SLOTS_OFFSET])


def test_java_reads_commands_that_were_written_twice(run_tool, make_golden, page_path):
    with make_golden.make_page(page_path) as page:
        page.write_commands(0, make_golden.COMMANDS, make_golden.GROUP_COMMANDS[::-1])
    done = run_tool("PageTool", "dump", page_path)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert lines["command_sequence"] == "4"
    assert lines["command_cap[1]"] == "16"


@pytest.mark.parametrize("name", ["threshold", "latency", "release", "classes"])
def test_java_agrees_with_the_golden_tables(run_tool, golden_folder, name):
    done = run_tool("GoldenTool", name, golden_folder / f"{name}.json")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("threshold", ["step", "adaptive", "hold_ns"]),
        ("latency", ["fit", "time_bucket"]),
        (
            "release",
            [
                *("should_release", "split", "split_by_latency", "fit_deadlines"),
                *("is_too_late", "too_late_at_ns", "predicted_wait_ns", "staggered_size"),
                *("may_send_ahead", "wake_after_us"),
            ],
        ),
        ("classes", ["class", "deadline"]),
    ],
)
def test_java_finds_a_wrong_row_of_every_table(run_tool, golden, tmp_path, name, tables):
    document = golden(f"{name}.json")
    column = -1 if name != "classes" else 1
    wrong = {
        bool: lambda v: not v,
        int: lambda v: v + 1,
        float: lambda v: v + 1.0,
        list: lambda v: [7],
    }
    for table in tables:
        row = document[table]["rows"][0]
        row[column] = wrong[type(row[column])](row[column])
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    done = run_tool("GoldenTool", name, path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [line.split(" ", 1)[0] for line in done.stdout.splitlines()] == tables


def test_java_reads_the_slice_of_each_wanted_group(run_tool, page, page_path):
    groups = tuple(InstanceGroup(n, 2, 8) for n in range(1, 6))
    slices = (
        Slice(of_cpus([0, 1, 2, 7, 63, 64, 510, 511])),
        Slice(device="GPU-" + 60 * "a"),
        Slice(of_cpus([5]), "MIG-1"),
        Slice(),
    )
    for pin, rest in ((True, "auto"), (False, "null")):
        wanted = with_configuration(Commands(SlotCommands(), ()), Wanted(1, groups, pin, slices))
        page.write_commands(0, *wanted)
        assert page.read_commands(0).groups[:5] == wanted.groups
        done = run_tool("PageTool", "wanted", page_path)
        assert done.stdout.splitlines()[-5:] == [
            "1x2x8 0-2,7,63-64,510-511 null",
            f"2x2x8 {rest} GPU-{60 * 'a'}",
            "3x2x8 5 MIG-1",
            f"4x2x8 {rest} null",
            f"5x2x8 {rest} null",
        ], done.stderr
