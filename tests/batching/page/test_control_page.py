import os
import subprocess
import sys

import pytest

from shunter.batching.page.control_page import ControlPage, PageError, UnstableError
from shunter.batching.page.layout import (
    GROUP_COUNT,
    GROUP_STRIDE,
    HEADER_FIELDS,
    PAGE_SIZE,
    SLOT_COUNT,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
    Order,
)
from shunter.batching.page.records import GroupCommands, SlotCommands


def test_a_created_page_can_be_attached_and_tells_its_owner(page, page_path):
    with ControlPage.attach(page_path) as other:
        header = other.header()
    assert (header.owner_pid, header.created_unix_ns, header.server_heartbeat_ns) == (1, 2, 3)
    assert header.controller_pid == 0


def test_a_page_is_private_and_never_replaces_a_file(page, page_path):
    assert page_path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        ControlPage.create(page_path, owner_pid=1, created_unix_ns=2, now_ns=3)


def test_another_processor_is_refused_before_anything_is_made(page, page_path, monkeypatch):
    other = os.uname_result(("Linux", "host", "6.1", "", "aarch64"))
    monkeypatch.setattr(os, "uname", lambda: other)
    with pytest.raises(PageError, match="needs an x86_64 processor, this one is aarch64"):
        ControlPage.attach(page_path)
    with pytest.raises(PageError, match="needs an x86_64 processor"):
        ControlPage.create(page_path.with_name("new"), owner_pid=1, created_unix_ns=2, now_ns=3)
    assert not page_path.with_name("new").exists()


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("magic", "magic is 99"),
        ("layout_version", "layout_version is 99, this program knows 11"),
    ]
    + [(name, f"{name} is 99") for name in ("page_size", "header_size", "slot_size", "slot_count")],
)
def test_a_page_of_another_layout_is_refused_and_both_sides_are_named(
    page, page_path, field, expected
):
    page.words[HEADER_FIELDS[field].offset // 8] = 99
    with pytest.raises(PageError, match=expected):
        ControlPage.attach(page_path)


def test_an_unfinished_page_is_refused(page, page_path):
    page.words[HEADER_FIELDS["ready"].offset // 8] = 0
    with pytest.raises(PageError, match="not complete"):
        ControlPage.attach(page_path)


@pytest.mark.parametrize("size", [0, 100, PAGE_SIZE - 1, PAGE_SIZE + 1])
def test_a_file_of_another_size_is_refused_before_it_is_mapped(page, page_path, size):
    with page_path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(PageError):
        ControlPage.attach(page_path)
    with page_path.open("r+b") as file:
        file.truncate(PAGE_SIZE)


def test_links_folders_and_missing_files_are_refused(page, page_path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(page_path)
    for path in (link, tmp_path / "missing"):
        with pytest.raises(OSError):
            ControlPage.attach(path)
    with pytest.raises((OSError, PageError)):
        ControlPage.attach(tmp_path)
    with pytest.raises(PageError, match="not a regular file"):
        ControlPage.attach(tmp_path, writable=False)


def test_a_reader_cannot_write(page, page_path):
    with ControlPage.attach(page_path, writable=False) as reader:
        with pytest.raises(TypeError):
            reader.write_controller(1, 1, 1)
        assert reader.live_slots() == []


def test_no_descriptor_is_left_open(page, page_path, open_descriptors):
    before = open_descriptors()
    for _ in range(3):
        ControlPage.attach(page_path).close()
    page.words[0] = 0
    with pytest.raises(PageError):
        ControlPage.attach(page_path)
    assert open_descriptors() == before


def test_closing_twice_does_no_harm(page):
    page.close()
    page.close()


def test_live_slots_are_those_in_use(page, poke):
    for slot in (0, 5, SLOT_COUNT - 1):
        poke(slot, "slot_state", 1)
    assert page.live_slots() == [0, 5, SLOT_COUNT - 1]


@pytest.mark.parametrize("slot", [-1, SLOT_COUNT])
def test_a_slot_outside_the_page_is_refused(page, slot):
    with pytest.raises(IndexError):
        page.read_identity(slot)


def test_identity_and_telemetry_of_a_server_are_read(make_golden, page_path):
    with make_golden.make_page(page_path) as page:
        identity, telemetry = page.read_identity(0), page.read_telemetry(0)
        groups = page.read_groups(0, identity.group_count)
    assert identity.live
    assert (identity.model_name, identity.model_version) == ("modèle", "1.0")
    assert identity.default_version == "2.0"
    assert (identity.generation, identity.registered_batch_size, identity.slo_us) == (7, 32, 40000)
    assert telemetry.updated_ns == 123_456_789
    assert telemetry.arrivals == (1001, 1002)
    assert telemetry.threshold_milli == 1025
    assert telemetry.batches_by_size[0] == 1026
    assert telemetry.service_ns_by_size[15] == 1057
    assert [group.group_ready for group in groups] == [100, 200]
    assert [group.group_threads for group in groups] == [105, 205]


def test_hostile_words_are_cut_to_their_ranges(page, poke):
    poke(0, "group_count", 10**6)
    poke(0, "registered_batch_size", -5)
    poke(0, "queued", -1)
    identity = page.read_identity(0)
    assert identity.group_count == GROUP_COUNT
    assert identity.registered_batch_size == 1
    assert page.read_telemetry(0).queued == (0, 0)
    assert len(page.read_groups(0, 10**6)) == GROUP_COUNT


def test_identity_that_never_stands_still_is_an_error_and_not_a_hang(page, poke):
    poke(0, "slot_sequence", 7)
    with pytest.raises(UnstableError, match="slot 0: slot_sequence 7"):
        page.read_identity(0)


def test_identity_that_changes_during_the_copy_is_read_again(page, poke):
    poke(0, "slot_sequence", 2)
    poke(0, "generation", 1)
    words, copies = page.words, []

    class Moving:
        """The page's words; right after the first copy of them the server changes the slot."""

        def __getitem__(self, key):
            found = words[key]
            if isinstance(key, slice):
                copies.append(memoryview(found.tobytes()).cast("q"))
                words[SLOTS_OFFSET // 8] = 4
                words[(SLOTS_OFFSET + SLOT_FIELDS["generation"].offset) // 8] = 9
                return copies[-1]
            return found

    page.words = Moving()
    try:
        identity = page.read_identity(0)
    finally:
        page.words = words
    assert identity.generation == 9
    assert len(copies) == 2


COMMANDS = SlotCommands(
    alpha_millionths=1, max_wait_us=7, mix_classes=1, ahead_batches=0, latency_fixed_ns=9
)
GROUPS = (GroupCommands(4, (1, 2), (3, 4)), GroupCommands(8))


def test_commands_are_none_until_a_controller_writes_them(page):
    assert page.read_commands(0) is None


def test_commands_come_back_as_they_were_written(page):
    assert page.write_commands(3, COMMANDS, GROUPS) == 2 == page.command_sequence(3)
    assert page.write_commands(3, COMMANDS, GROUPS) == 4
    commands = page.read_commands(3)
    assert commands.slot == COMMANDS
    assert commands.groups == GROUPS + (GroupCommands(),) * (GROUP_COUNT - 2)
    assert page.read_commands(2) is None
    assert page.read_commands(4) is None


def test_writing_commands_touches_no_byte_of_another_writer(page, page_path):
    words = page.words
    for index in range(SLOTS_OFFSET // 8, PAGE_SIZE // 8):
        words[index] = 2 * index
    before = page_path.read_bytes()
    page.write_commands(3, COMMANDS, GROUPS)
    after = page_path.read_bytes()
    start = SLOTS_OFFSET + 3 * SLOT_SIZE + SLOT_FIELDS["command_sequence"].offset
    end = SLOTS_OFFSET + 3 * SLOT_SIZE + SLOT_FIELDS["network_workers"].offset
    assert before[:start] == after[:start]
    assert before[end:] == after[end:]
    assert page.read_commands(3).slot == COMMANDS


def test_bad_commands_are_refused_before_anything_is_stored(page):
    page.write_commands(0, COMMANDS, GROUPS)
    with pytest.raises(ValueError, match="weight_milli"):
        page.write_commands(0, SlotCommands(), [GroupCommands(weight_milli=(1, -1))])
    with pytest.raises(ValueError, match="9 groups"):
        page.write_commands(0, SlotCommands(), [GroupCommands()] * 9)
    for wrong, text in (
        (GroupCommands(wanted_cpus=1 << 512), "wanted_cpus = 13"),
        (GroupCommands(wanted_device="é" * 33), "wanted_device = 'éé.*64 bytes"),
        (GroupCommands(wanted_device="a\0b"), "none of them 0"),
    ):
        with pytest.raises(ValueError, match=text):
            page.write_commands(0, SlotCommands(), [wrong])
    assert page.command_sequence(0) == 2
    assert page.read_commands(0).slot == COMMANDS


@pytest.mark.parametrize("left", [1, 7, -1, 2**63 - 1, -(2**63)])
def test_a_sequence_that_a_dead_writer_left_is_repaired(page, poke, left):
    poke(0, "command_sequence", left)
    stored = page.write_commands(0, COMMANDS)
    assert stored > 0
    assert stored % 2 == 0
    assert stored != left + 1 or left < 0
    assert page.read_commands(0).slot == COMMANDS


def test_the_sequence_is_odd_while_commands_change(page, monkeypatch):
    seen = []

    def store(self, index, values):
        seen.append(self.command_sequence(0))
        with pytest.raises(UnstableError):
            self.read_commands(0)

    monkeypatch.setattr(ControlPage, "_store", store)
    page.write_commands(0, COMMANDS)
    assert seen == [1]


WRITER = """
import sys
from pathlib import Path
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.records import GroupCommands, SlotCommands
with ControlPage.attach(Path(sys.argv[1])) as page:
    value = 0
    print("ready", flush=True)
    while True:
        value = (value + 1) % 1000
        group = GroupCommands(value, (value, value), (value, value))
        page.write_commands(0, SlotCommands(value, 1000 + value), [group] * 8)
"""


def test_a_reader_never_sees_half_of_what_another_process_writes(page, page_path, tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(page_path)], stdout=subprocess.PIPE, cwd=tmp_path
    )
    try:
        assert writer.stdout.readline() == b"ready\n"
        read = 0
        for _ in range(3000):
            try:
                commands = page.read_commands(0)
            except UnstableError:
                continue
            if commands is not None:
                read += 1
                value = commands.slot.alpha_millionths
                assert commands.slot.threshold_cap_milli == 1000 + value
                expected = GroupCommands(value, (value, value), (value, value))
                assert set(commands.groups) == {expected}
    finally:
        writer.kill()
        writer.communicate()


def test_a_mask_of_slots_comes_back_and_can_be_forgotten(page):
    assert page.read_padding(3) is None
    for mask in (0, 1, 1 << 63, 1 << 64, 1 << 127, (1 << 128) - 1):
        page.write_padding(3, mask)
        assert page.read_padding(3) == mask
    page.forget_padding(3)
    assert page.read_padding(2) is page.read_padding(3) is page.read_padding(4) is None


def test_of_a_mask_the_word_that_it_is_known_is_written_last(page):
    stores = []

    class Watched:
        """The page's words; remembers what is stored."""

        def __getitem__(self, key):
            return words[key]

        def __setitem__(self, key, value):
            stores.append((SLOTS_OFFSET + SLOT_FIELDS["padding_known"].offset) // 8 == key)
            words[key] = value

    words, page.words = page.words, Watched()
    try:
        page.write_padding(0, (1 << 64) + 1)
        assert stores == [False, False, True]
        page.write_padding(0, (1 << 64) + 1)
        assert len(stores) == 3, "what is there is not stored again"
    finally:
        page.words = words


def test_turns_and_bounds_come_back_and_are_the_controllers_alone(page, page_path):
    before = page_path.read_bytes()
    page.write_turns(Order.EDF, Order.ROUND_ROBIN, True)
    page.write_bounds(2_000_000, 1_000_000)
    page.want_memory(True)
    header = page.header()
    assert (header.strict_order, header.best_effort_order, header.exclusive) == (2, 3, 1)
    assert (header.max_hold_us, header.longest_park_us) == (2_000_000, 1_000_000)
    assert header.memory_wanted == 1
    page.want_memory(False)
    assert page.header().memory_wanted == 0
    after = page_path.read_bytes()
    start, end = (HEADER_FIELDS[name].offset for name in ("controller_pid", "ready"))
    assert before[:start] == after[:start]
    assert before[end:] == after[end:]


def test_strict_service_and_who_gives_way_are_read(page, poke):
    poke(2, "strict_batches", 5, index=1)
    poke(2, "strict_batch_ns", 7, index=1)
    poke(2, "strict_batches", -5, index=2)
    batches, ns = page.read_strict_service(2)
    assert (batches[:3], ns[:3]) == ([0, 5, 0], [0, 7, 0])
    assert len(batches) == len(ns) == 16
    assert not page.yields(2)
    poke(2, "group_yields", 1, index=7 * GROUP_STRIDE // 8)
    assert page.yields(2)
    assert not page.yields(1)
    assert not page.yields(3)


def test_only_one_controller_writes_a_page(page, page_path):
    assert page.claim_controller()
    assert not page.claim_controller()
    with ControlPage.attach(page_path) as other:
        assert not other.claim_controller()
        page.close()
        assert other.claim_controller()
