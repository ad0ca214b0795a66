"""The offsets as numbers: moving a field must break a test on purpose."""

from pathlib import Path

import pytest

from shunter.batching import layout

CHECKOUT = Path(__file__).parents[2]

HEADER = {
    "magic": 0,
    "layout_version": 8,
    "page_size": 16,
    "header_size": 24,
    "slot_size": 32,
    "slot_count": 40,
    "owner_pid": 48,
    "created_unix_ns": 56,
    "jvm_heartbeat_ns": 128,
    "controller_pid": 256,
    "controller_heartbeat_ns": 264,
    "controller_cycles": 272,
    "ready": 384,
}
HOLDER = {
    "holder_pid": 0,
    "holder_heartbeat_ns": 8,
    "hold_mask": 16,
    "hold_since_ns": 24,
}
SLOT = {
    "slot_sequence": 0,
    "slot_state": 8,
    "generation": 16,
    "registered_batch_size": 24,
    "registered_max_wait_us": 32,
    "queue_capacity": 40,
    "group_count": 48,
    "slo_us": 56,
    "model_name": 64,
    "model_version": 320,
    "auto": 448,
    "archive": 456,
    "updated_ns": 1024,
    "arrivals": 1032,
    "queued": 1048,
    "oldest_arrival_ns": 1064,
    "answered": 1080,
    "answered_late": 1096,
    "expired": 1112,
    "rejected": 1128,
    "failed": 1144,
    "abandoned": 1160,
    "retried": 1176,
    "poisoned": 1184,
    "in_flight_requests": 1192,
    "in_flight_batches": 1200,
    "ready_workers": 1208,
    "busy_workers": 1216,
    "threshold_milli": 1224,
    "batches_by_size": 1232,
    "service_ns_by_size": 1360,
    "batch_requests": 1488,
    "good": 1496,
    "slo_met": 1512,
    "slo_late": 1528,
    "slo_rejected": 1544,
    "slo_failed": 1560,
    "slo_abandoned": 1576,
    "queue_ns": 1592,
    "service_ns": 1608,
    "latency_ns": 1624,
    "queue_times": 1640,
    "service_times": 1896,
    "latency_times": 2152,
    "change_request": 2432,
    "change_state": 2440,
    "group_ready": 2560,
    "group_busy": 2568,
    "group_batches": 2576,
    "group_requests": 2584,
    "group_cap": 2592,
    "group_threads": 2600,
    "group_fixed_ns": 2608,
    "group_per_request_ns": 2616,
    "group_error_ns": 2624,
    "group_fitted": 2632,
    "group_instances": 2640,
    "command_sequence": 3584,
    "alpha_millionths": 3592,
    "threshold_cap_milli": 3600,
    "threshold_fixed_milli": 3608,
    "max_wait_us": 3616,
    "mix_classes": 3624,
    "ageing_us": 3632,
    "ahead_batches": 3640,
    "latency_fixed_ns": 3648,
    "latency_per_request_ns": 3656,
    "quantum_us": 3664,
    "admission": 3672,
    "margin_us": 3680,
    "wanted_request": 3688,
    "wanted_groups": 3696,
    "wanted_pin": 3704,
    "command_cap": 3712,
    "weight_milli": 3720,
    "preference": 3736,
    "wanted_instances": 3752,
    "wanted_threads": 3760,
    "wanted_batch": 3768,
}


def offsets(fields):
    return {name: placed.offset for name, placed in fields.items()}


def test_header_fields_stand_where_they_always_stood():
    assert offsets(layout.HEADER_FIELDS) == HEADER


def test_holder_fields_stand_where_they_always_stood():
    assert offsets(layout.HOLDER_FIELDS) == HOLDER


def test_slot_fields_stand_where_they_always_stood():
    assert offsets(layout.SLOT_FIELDS) == SLOT


def test_sizes_are_what_other_programs_were_compiled_with():
    assert layout.LAYOUT_VERSION == 3
    assert layout.HEADER_SIZE == 512
    assert layout.HOLDER_SIZE == 128
    assert layout.HOLDER_COUNT == 16
    assert layout.SLOTS_OFFSET == 2560
    assert layout.SLOT_SIZE == 4736
    assert layout.SLOT_COUNT == 128
    assert layout.GROUP_COUNT == 8
    assert layout.GROUP_STRIDE == 128
    assert layout.PAGE_SIZE == 608768


def test_the_magic_reads_as_text_in_memory():
    assert layout.MAGIC.to_bytes(8, "little") == b"SHUNTER\0"


def test_the_page_fits_a_small_container():
    assert layout.PAGE_SIZE < 1 << 20


@pytest.mark.parametrize("sections", [layout.HEADER, layout.HOLDER, layout.SLOT])
def test_writers_never_share_a_line(sections):
    fields, size = layout.place(sections)
    starts = {}
    for placed in fields.values():
        first = starts.setdefault(placed.section.name, placed.offset)
        assert first % layout.LINE == 0
        assert placed.offset % 8 == 0
    assert len(starts) == len(sections)
    assert size % layout.LINE == 0


def test_group_sections_have_one_stride():
    repeated = {p.section for p in layout.SLOT_FIELDS.values() if p.section.repeat > 1}
    assert {section.stride for section in repeated} == {layout.GROUP_STRIDE}
    assert {section.repeat for section in repeated} == {layout.GROUP_COUNT}


def test_the_seqlock_word_is_the_first_of_its_section():
    for section in layout.SLOT:
        if section.name in ("identity", "commands"):
            assert section.fields[0].name.endswith("_sequence")


def test_the_emitted_java_and_c_files_are_fresh():
    assert layout.main(["--check", "--root", str(CHECKOUT)]) == 0


def test_a_stale_emitted_file_is_found(tmp_path, capsys):
    assert layout.main(["--root", str(tmp_path)]) == 0
    assert layout.main(["--root", str(tmp_path), "--check"]) == 0
    path = next(iter(layout.emitted_files(tmp_path)))
    path.write_text(path.read_text() + "\n")
    assert layout.main(["--root", str(tmp_path), "--check"]) == 1
    assert path.name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "bucket"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (32, 5), (33, 6), (10**9, 15)]
)
def test_batch_sizes_fall_into_powers_of_two(size, bucket):
    assert layout.size_bucket(size) == bucket
