"""The offsets as numbers: moving a field must break a test on purpose."""

from pathlib import Path

import pytest

from shunter.batching import emit
from shunter.batching.page import layout
from shunter.batching.page.fields import LINE

CHECKOUT = Path(__file__).parents[3]

HEADER = {
    "magic": 0,
    "layout_version": 8,
    "page_size": 16,
    "header_size": 24,
    "slot_size": 32,
    "slot_count": 40,
    "owner_pid": 48,
    "created_unix_ns": 56,
    "server": 64,
    "server_heartbeat_ns": 128,
    "controller_pid": 256,
    "controller_heartbeat_ns": 264,
    "controller_cycles": 272,
    "front_end_wanted": 280,
    "strict_order": 288,
    "best_effort_order": 296,
    "exclusive": 304,
    "max_hold_us": 312,
    "longest_park_us": 320,
    "memory_wanted": 328,
    "strict_key": 336,
    "settings_invalid": 368,
    "ready": 384,
    "front_end_pid": 512,
    "front_end_beat_ns": 520,
    "front_end_port": 528,
    "front_end_sessions": 536,
    "front_end_rtt_ns": 544,
    "front_end_rtt_count": 552,
    "front_end_counter_count": 560,
    "front_end_counter_names": 568,
    "front_end_counters": 2104,
    "landing_blocks": 2616,
    "landing_free": 2624,
    "landing_wanted": 2632,
    "mig_changing": 2688,
    "mig_done": 2696,
    "mig_changes": 2704,
    "mig_undone": 2712,
    "mig_layouts": 2720,
    "mig_problem": 3232,
}
HOLDER = {
    "holder_pid": 0,
    "holder_heartbeat_ns": 8,
    "hold_number": 16,
    "hold_since_ns": 24,
    "hold_progress_ns": 32,
    "hold_models": 40,
    "hold_slices": 56,
}
RUNNER = {
    "runner_pid": 0,
    "runner_heartbeat_ns": 8,
    "runner_slot": 16,
    "runner_class": 24,
    "runner_slices": 32,
    "runner_state": 104,
    "runner_since_ns": 112,
    "preemptions": 120,
    "parked_ns": 128,
    "yield_ns": 136,
    "yield_worst_ns": 144,
    "restore_ns": 152,
    "drops": 160,
    "batches": 168,
    "segments": 176,
    "segment_ns": 184,
    "solo_ns": 192,
    "solo_cpu_ns": 200,
    "solo_batch": 208,
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
    "last_change": 968,
    "default_version": 1224,
    "problem": 1352,
    "updated_ns": 1664,
    "arrivals": 1672,
    "queued": 1688,
    "oldest_arrival_ns": 1704,
    "answered": 1720,
    "answered_late": 1736,
    "expired": 1752,
    "rejected": 1768,
    "failed": 1784,
    "abandoned": 1800,
    "retried": 1816,
    "poisoned": 1824,
    "in_flight_requests": 1832,
    "in_flight_batches": 1840,
    "ready_workers": 1848,
    "busy_workers": 1856,
    "threshold_milli": 1864,
    "batches_by_size": 1872,
    "service_ns_by_size": 2000,
    "batch_requests": 2128,
    "good": 2136,
    "slo_met": 2152,
    "slo_late": 2168,
    "slo_rejected": 2184,
    "slo_failed": 2200,
    "slo_abandoned": 2216,
    "queue_ns": 2232,
    "service_ns": 2248,
    "latency_ns": 2264,
    "queue_times": 2280,
    "service_times": 2536,
    "latency_times": 2792,
    "strict_batches": 3048,
    "strict_batch_ns": 3176,
    "attainment": 3304,
    "change_request": 3328,
    "change_state": 3336,
    "group_ready": 3456,
    "group_busy": 3464,
    "group_batches": 3472,
    "group_requests": 3480,
    "group_cap": 3488,
    "group_threads": 3496,
    "group_fixed_ns": 3504,
    "group_per_request_ns": 3512,
    "group_error_ns": 3520,
    "group_fitted": 3528,
    "group_instances": 3536,
    "group_slices": 3544,
    "group_yields": 3616,
    "group_classes": 3624,
    "group_attainment": 3632,
    "group_device": 3648,
    "command_sequence": 5504,
    "alpha_millionths": 5512,
    "threshold_cap_milli": 5520,
    "threshold_fixed_milli": 5528,
    "max_wait_us": 5536,
    "mix_classes": 5544,
    "ageing_us": 5552,
    "ahead_batches": 5560,
    "latency_fixed_ns": 5568,
    "latency_per_request_ns": 5576,
    "admission": 5584,
    "margin_us": 5592,
    "wanted_request": 5600,
    "wanted_groups": 5608,
    "wanted_pin": 5616,
    "command_cap": 5632,
    "weight_milli": 5640,
    "preference": 5656,
    "wanted_instances": 5672,
    "wanted_threads": 5680,
    "wanted_batch": 5688,
    "wanted_cpus": 5696,
    "wanted_device": 5760,
    "network_workers": 7680,
    "network_entries": 7688,
    "network_free": 7696,
    "network_queued": 7704,
    "network_sessions": 7712,
    "network_credit": 7720,
    "network_needs_mb": 7728,
    "padding_known": 7808,
    "beside": 7816,
    "strict_claims": 7832,
    "network_arrivals": 7936,
    "network_answered": 7952,
    "network_expired": 7968,
    "network_rejected": 7984,
    "network_failed": 8000,
    "network_abandoned": 8016,
    "network_slo_met": 8032,
    "network_slo_late": 8048,
    "network_slo_rejected": 8064,
    "network_slo_failed": 8080,
    "network_slo_abandoned": 8096,
    "network_latency_ns": 8112,
    "network_latency_times": 8128,
    "network_batches_by_size": 8384,
    "network_batch_requests": 8512,
    "network_attainment_ppm": 8520,
}


def offsets(fields):
    return {name: placed.offset for name, placed in fields.items()}


def test_header_fields_stand_where_they_always_stood():
    assert offsets(layout.HEADER_FIELDS) == HEADER


def test_holder_fields_stand_where_they_always_stood():
    assert offsets(layout.HOLDER_FIELDS) == HOLDER


def test_runner_fields_stand_where_they_always_stood():
    assert offsets(layout.RUNNER_FIELDS) == RUNNER


def test_slot_fields_stand_where_they_always_stood():
    assert offsets(layout.SLOT_FIELDS) == SLOT


def test_sizes_are_what_other_programs_were_compiled_with():
    assert layout.LAYOUT_VERSION == 11
    assert layout.HEADER_SIZE == 3584
    assert layout.HOLDER_SIZE == 128
    assert layout.HOLDER_COUNT == 16
    assert layout.RUNNERS_OFFSET == 5632
    assert layout.RUNNER_SIZE == 256
    assert layout.RUNNER_COUNT == 64
    assert layout.SLOTS_OFFSET == 22016
    assert layout.SLOT_SIZE == 8576
    assert layout.SLOT_COUNT == 128
    assert layout.GROUP_COUNT == 8
    assert layout.GROUP_STRIDE == 256
    assert layout.PAGE_SIZE == 1119744
    assert (layout.CPU_SLICES, layout.DEVICE_COUNT, layout.DEVICE_SLICES) == (512, 8, 8)
    assert layout.SLICE_WORDS == 9
    assert (layout.COUNTER_COUNT, layout.COUNTER_NAME_BYTES) == (64, 24)


def test_the_magic_reads_as_text_in_memory():
    assert layout.MAGIC.to_bytes(8, "little") == b"SHUNTER\0"


def test_the_page_fits_a_small_container():
    assert layout.PAGE_SIZE < 2 << 20  # of the 64 MB of shared memory that one has by default


@pytest.mark.parametrize("sections", [layout.HEADER, layout.HOLDER, layout.RUNNER, layout.SLOT])
def test_writers_never_share_a_line(sections):
    fields, size = layout.place(sections)
    starts = {}
    for placed in fields.values():
        first = starts.setdefault(placed.section.name, placed.offset)
        assert first % LINE == 0
        assert placed.offset % 8 == 0
    assert len(starts) == len(sections)
    assert size % LINE == 0


def test_group_sections_have_one_stride():
    repeated = {p.section for p in layout.SLOT_FIELDS.values() if p.section.repeat > 1}
    assert {section.stride for section in repeated} == {layout.GROUP_STRIDE}
    assert {section.repeat for section in repeated} == {layout.GROUP_COUNT}


def test_the_seqlock_word_is_the_first_of_its_section():
    for section in layout.SLOT:
        if section.name in ("identity", "commands"):
            assert section.fields[0].name.endswith("_sequence")


def test_the_emitted_java_and_c_files_are_fresh():
    assert emit.main(["--check", "--root", str(CHECKOUT)]) == 0


def test_a_stale_emitted_file_is_found(tmp_path, capsys):
    for path in emit.emitted_files(CHECKOUT):  # it stands where it is wanted
        (tmp_path / "room" / "deep").mkdir(parents=True, exist_ok=True)
        (tmp_path / "room" / "deep" / path.name).touch()
    assert emit.main(["--root", str(tmp_path)]) == 0
    assert emit.main(["--root", str(tmp_path), "--check"]) == 0
    path = next(iter(emit.emitted_files(tmp_path)))
    path.write_text(path.read_text() + "\n")
    assert emit.main(["--root", str(tmp_path), "--check"]) == 1
    assert path.name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "bucket"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (32, 5), (33, 6), (10**9, 15)]
)
def test_batch_sizes_fall_into_powers_of_two(size, bucket):
    assert layout.size_bucket(size) == bucket
