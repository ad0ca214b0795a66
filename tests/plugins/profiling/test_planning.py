"""What a profile leads to, beside what people set without one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shunter.allocator.planning.configuration import format_configuration
from shunter.allocator.planning.profile import Cell, Profile, Provenance, batch_sizes
from shunter.plugins.errors import UserError
from shunter.plugins.profiling.planning import plan, plan_each
from shunter.plugins.view.plan_view import (
    cell_table,
    render,
    render_each,
    stated_error,
    three_digits,
)

WHERE = Provenance("resnet", "ab12", "a processor", 16, "2.13.0", "cd34", "2026-01-02T03:04:05")
MIB = 2**20


def latency(threads, batch):
    """1 ms, 2 ms of work for each request, of which a tenth is not shared by the threads."""
    return 1 + 2 * batch * (0.1 + 0.9 / threads)


def profile_of(threads=4, batch=8, without=(), ms=latency, **more):
    cells = {
        (t, b): Cell(t, b, ms(t, b), ms(t, b), ms(t, b), 6, peak_bytes=100 * MIB)
        for t in range(1, threads + 1)
        for b in batch_sizes(batch)
        if (t, b) not in without
    }
    return Profile(WHERE, threads, batch, "adaptive", cells, **{"complete": True} | more)


def configurations(found):
    return {row.name: format_configuration(row.configuration) for row in found.rows}


def text_of(renderable):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 2))
def test_the_choice_is_never_slower_than_the_usual_ways(cores, batch, nodes):
    found = plan(profile_of(), [cores] * nodes, batch)
    assert all(row.latency_ms >= found.chosen.latency_ms for row in found.rows)
    assert sum(g.instances * g.threads for g in found.chosen.configuration) <= cores * nodes


def test_fat_is_all_threads_of_a_node_and_one_per_core_one_of_each():
    found = plan(profile_of(), [4], 8)
    assert configurations(found) == {"chosen": "4x1x2", "fat": "1x4x8", "one per core": "4x1x2"}
    assert found.row("fat").latency_ms == pytest.approx(latency(4, 8))


def test_fat_has_an_instance_on_each_node():
    assert configurations(plan(profile_of(), [4, 0, 4], 8))["fat"] == "2x4x4"


def test_fat_has_no_more_threads_than_were_profiled():
    assert configurations(plan(profile_of(threads=2), [16], 8))["fat"] == "1x2x8"


def test_one_per_core_has_no_more_instances_than_requests():
    assert configurations(plan(profile_of(), [4], 2))["one per core"] == "2x1x1"


def test_the_cost_of_a_request_counts_all_cores_until_the_batch_is_done():
    row = plan(profile_of(), [4], 8).row("fat")
    assert row.core_ms == pytest.approx(4 * latency(4, 8) / 8)


def test_a_usual_way_that_was_not_profiled_so_far_is_left_out_with_the_reason():
    missing = {(1, 4), (1, 8)}
    found = plan(profile_of(threads=2, without=missing), [2], 8)
    assert found.row("one per core") is None
    assert found.impossible == ("one per core: its batches are at most 4 in all",)
    assert "not possible: one per core" in text_of(render(found))


def test_an_slo_gives_the_highest_rate_of_batches_within_it():
    found = plan(profile_of(), [4], slo_ms=10)
    assert configurations(found)["one per core"] == "4x1x4"
    assert all(row.latency_ms <= 10 for row in found.rows)
    assert all(row.rate <= found.chosen.rate for row in found.rows)
    assert found.batch == 16
    assert "batches within 10 ms" in text_of(render(found))


def test_a_usual_way_that_misses_the_slo_is_left_out_with_the_reason():
    found = plan(profile_of(), [4], slo_ms=2.5)
    assert found.impossible == ("one per core: one request on 1 threads takes 3.00 ms",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": [4], "slo_ms": 0.5}, "no batch is done within 0.5 ms"),
        ({"nodes": [4], "batch": 33}, "do not hold a batch of 33"),
        ({"nodes": [4], "budget_bytes": 50 * MIB}, "needs 100 MiB, 50 MiB are free"),
        ({"nodes": []}, "no core is free"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_is_short(options, said):
    with pytest.raises(UserError, match=said):
        plan(profile_of(), **options)


def test_memory_bounds_the_instances_of_the_choice_and_of_the_usual_ways():
    found = plan(profile_of(), [4], 8, budget_bytes=350 * MIB)
    assert sum(group.instances for group in found.chosen.configuration) <= 3
    assert found.impossible == ("one per core: 4 instances do not fit into the memory",)


def test_instances_that_would_have_no_request_need_no_memory():
    found = plan(profile_of(), [4], 2, budget_bytes=250 * MIB)
    assert configurations(found)["one per core"] == "2x1x1"


def test_cells_that_were_interpolated_are_named():
    found = plan(profile_of(without={(2, b) for b in batch_sizes(8)}), [2], 1)
    assert configurations(found)["chosen"] == "1x2x1"
    assert found.rests_on == ((2, 1),)
    assert "threads x batch 2x1" in text_of(render(found))


def test_a_batch_between_two_measured_ones_rests_on_both():
    found = plan(profile_of(without={(4, 4)}, ms=lambda t, b: 9 + b / t), [4], 5)
    assert configurations(found)["chosen"] == "1x4x5"
    assert found.rests_on == ((4, 4),)


def test_a_cell_of_an_earlier_largest_batch_is_rested_on():
    profile = profile_of(without={(4, 8)}, ms=lambda t, b: 9 + b / t)
    found = plan(profile.with_cells([Cell(4, 6, 10.5, 10.5, 10.5, 6)], 0), [4], 5)
    assert configurations(found)["chosen"] == "1x4x5"
    assert found.rests_on == ()


def test_without_a_batch_there_is_a_plan_for_each_power_of_two():
    assert [each.batch for each in plan_each(profile_of(), [4])] == [1, 2, 4, 8, 16, 32]


def test_the_cap_bounds_each_instance_and_not_the_sum():
    found = plan(profile_of(threads=16), [16], 64, cap=8)
    assert configurations(found)["chosen"] == "16x1x4"
    assert found.chosen.latency_ms < latency(2, 8)  # 8x2x8, what 8 in all would lead to
    assert configurations(plan(profile_of(), [4], 4, cap=1))["chosen"] == "4x1x1"
    sizes = [each.batch for each in plan_each(profile_of(batch=64), [4], cap=1)]
    assert sizes == [1, 2, 4]


def test_plans_end_at_the_batch_that_does_not_fit_any_more():
    short = profile_of(threads=1, without={(1, 4), (1, 8)})
    assert [each.batch for each in plan_each(short, [1])] == [1, 2]
    with pytest.raises(UserError, match="no core is free"):
        plan_each(short, [])


def test_a_profile_without_a_cell_leads_to_nothing():
    with pytest.raises(UserError, match="no cells yet"):
        plan_each(Profile(WHERE, 4, 8, "adaptive"), [4])


def test_the_lines_of_all_batches_compare_with_both_usual_ways():
    lines = text_of(render_each(plan_each(profile_of(), [4]))).splitlines()
    [line] = [line.split() for line in lines if line.split()[:1] == ["8"]]
    assert line[:4] == ["8", "4x1x2", "5.00", "ms"]
    assert line[-8:] == ["6.20", "ms", "(1.24", "x)", "5.00", "ms", "(1.00", "x)"]


def test_the_table_says_what_was_profiled_and_how_much_slower_the_others_are():
    text = text_of(render(plan(profile_of(), [4, 2], 8)))
    assert "resnet: batch 8 on 4 + 2 cores" in text
    assert "16 of 16 cells, adaptive, 2026-01-02, torch 2.13.0" in text
    alone = text_of(render(plan(profile_of(alone=True), [4], 8)))
    assert "16 of 16 cells, adaptive, one instance at a time, 2026-01-02" in alone
    assert "1 x 4 threads, 5 each" in text
    assert "x as long" in text


def test_equal_configurations_are_called_the_same():
    lines = text_of(render(plan(profile_of(), [4], 8))).splitlines()
    [line] = [line for line in lines if line.startswith("one per core")]
    assert line.rstrip().endswith("the same")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"error": 0.0123}, "up to 1.2% faster"),
        ({"error": 1e-5}, "no faster choice"),
        ({"busy": 2.0}, "something else used 2.0 CPUs, so its latencies are too high"),
        ({"complete": False}, "run `shunter profile` again to finish it"),
    ],
)
def test_doubts_about_the_profile_stand_below_the_plan(more, said):
    profile = profile_of(**more)
    assert said in text_of(render(plan(profile, [4], 8)))
    assert said in text_of(render_each(plan_each(profile, [4])))


def test_an_exhaustive_profile_has_no_doubts():
    assert stated_error(profile_of()) == ""


def test_the_request_that_applies_a_plan_names_model_and_configuration():
    path = "/shunter/models/resnet/configuration?configuration=4x1x2&cores=auto"
    assert plan(profile_of(), [4], 8).request() == f'curl -X PUT "http://127.0.0.1:8081{path}"'


def test_a_name_with_other_letters_is_escaped_in_the_request():
    profile = replace(profile_of(), provenance=replace(WHERE, model='a "b"/c'))
    assert "/shunter/models/a%20%22b%22%2Fc/configuration?" in plan(profile, [4], 8).request()


def test_json_has_every_row_with_its_numbers():
    found = plan(profile_of(), [4], 8).as_json()
    assert (found["batch"], found["slo_ms"], found["interpolated"]) == (8, None, [])
    assert [row["name"] for row in found["rows"]] == ["chosen", "fat", "one per core"]
    assert found["rows"][1] == {
        "name": "fat",
        "configuration": "1x4x8",
        "latency_ms": 6.2,
        "requests_per_s": pytest.approx(8 / 6.2e-3, abs=0.1),
        "core_ms_per_request": 3.1,
    }


def test_the_table_of_latencies_marks_what_was_not_measured():
    lines = text_of(cell_table(profile_of(threads=2, without={(1, 4)}))).splitlines()
    assert lines[2].split() == ["1", "3.00", "5.00", "·", "17.0"]
    assert lines[3].split() == ["2", "2.10", "3.20", "5.40", "9.80"]


def test_the_table_of_many_threads_has_the_powers_of_two_and_the_most():
    lines = text_of(cell_table(profile_of(threads=20, batch=1))).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "4", "8", "16", "20"]


@pytest.mark.parametrize(
    ("number", "text"), [(1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1234")]
)
def test_latencies_have_about_three_digits(number, text):
    assert three_digits(number) == text
