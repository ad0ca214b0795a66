import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.planning.latency_table import Memory
from shunter.allocator.planning.profile import (
    Cell,
    Profile,
    ProfileError,
    Provenance,
    SliceKind,
    batch_sizes,
    checked,
    read_profile,
    summary,
)
from shunter.allocator.planning.profile_table import (
    CAUTION,
    cautious,
    interpolate,
    latency_table,
    memory_of,
)

INF = math.inf
PART = SliceKind("gpu", "3g.40gb", 40)
HERE = Provenance(
    model="digits",
    model_hash="ab" * 32,
    cpu="A processor",
    cores=4,
    torch="2.9.0",
    sample_hash="cd" * 32,
    date="2025-01-01",
    shunter="0.1.0",
    python="3.11",
)


def profile_of(latencies, threads=4, batch=8, **more):
    cells = {(t, b): Cell(t, b, ms, ms, ms, runs=6) for (t, b), ms in latencies.items()}
    return Profile(HERE, threads, batch, "adaptive", cells, **more)


@st.composite
def cells(draw):
    low, ms, high = sorted(draw(st.lists(st.floats(1e-6, 1e9), min_size=3, max_size=3)))
    counts = [draw(st.integers(lowest, 10**12)) for lowest in (1, 0, 0)]
    return Cell(draw(st.integers(1, 512)), draw(st.integers(1, 4096)), ms, low, high, *counts)


PROFILES = st.builds(
    Profile,
    provenance=st.builds(Provenance, *[st.text()] * 3, st.integers(1, 512), *[st.text()] * 5),
    threads=st.integers(1, 512),
    batch=st.integers(1, 4096),
    mode=st.sampled_from(["adaptive", "exhaustive"]),
    cells=st.lists(cells(), max_size=8).map(lambda many: {(c.threads, c.batch): c for c in many}),
    seconds=st.floats(0, 1e9),
    complete=st.booleans(),
    alone=st.booleans(),
    error=st.none() | st.floats(0, 1),
)


def in_range(profile):
    cells = {
        key: cell
        for key, cell in profile.cells.items()
        if key[0] <= profile.threads and key[1] <= profile.batch
    }
    return replace(profile, cells=cells)


@given(PROFILES.map(in_range))
def test_what_is_written_reads_as_the_same(profile):
    assert read_profile(profile.to_json()) == profile


def test_why_a_cell_failed_is_not_kept():
    profile = profile_of({(1, 1): 5.0}, failed={(1, 2): "out of memory"})
    assert read_profile(profile.to_json()) == replace(profile, failed={})


def changed(**content):
    """A profile's text with other values; ... leaves a key out."""
    whole = json.loads(profile_of({(1, 1): 5.0}).to_json()) | content
    return json.dumps({key: value for key, value in whole.items() if value is not ...})


def on_slice(value):
    return changed(provenance=asdict(HERE) | {"slice": value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
        (b"\xff\xfe\xfd", "not JSON: "),
        ("[]", "not a profile of Shunter"),
        ("{}", "not a profile of Shunter"),
        (changed(format="other"), "not a profile of Shunter"),
        (changed(version=2), "version 2, this program knows 1: run `shunter profile` again"),
        (changed(version=...), "version None, this program knows 1: run `shunter profile` again"),
        ("[" * 100_000, "not JSON: maximum recursion depth"),
        (changed(threads=10**9), "damaged: threads 1000000000; allowed: a whole number from 1 to"),
        (changed(threads="2"), "damaged: threads '2'; allowed: a whole number from 1 to 1024"),
        (changed(batch=10**9), "damaged: batch 1000000000; allowed: a whole number from 1 to 4096"),
        (changed(cells=[asdict(Cell(9999, 1, 1, 1, 1, 1))]), "damaged: cells beyond"),
        (changed(cells=...), "damaged, or not complete: 'cells'"),
        (changed(mode=...), "damaged: mode is missing"),
        (changed(provenance={"model": "m"}), "damaged: model_hash is missing"),
        (changed(threads="4"), "damaged: threads '4'; allowed: a whole number from 1 to 1024"),
        (changed(threads=0), "damaged: threads 0; allowed: a whole number from 1 to 1024"),
        (changed(batch=1.5), "damaged: batch 1.5; allowed: a whole number from 1 to 4096"),
        (changed(batch=True), "damaged: batch True; allowed: a whole number from 1 to 4096"),
        (changed(seconds="x"), "damaged: seconds 'x'; allowed: a number from 0"),
        (changed(seconds=-1), "damaged: seconds -1; allowed: a number from 0"),
        (changed(seconds=10**400), "damaged: seconds 1000000000"),
        (changed(error="x"), "damaged: error 'x'; allowed: a number from 0"),
        (changed(error=math.nan), "damaged: error nan; allowed: a number from 0"),
        (changed(error=False), "damaged: error False; allowed: a number from 0"),
        (changed(complete=1), "damaged: complete 1; allowed: true or false"),
        (changed(alone="yes"), "damaged: alone 'yes'; allowed: true or false"),
        (changed(provenance=asdict(HERE) | {"date": 20250101}), "damaged: date 20250101"),
        (changed(provenance=asdict(HERE) | {"cpu": None}), "damaged: cpu None; allowed: a text"),
        (changed(provenance=asdict(HERE) | {"cores": "4"}), "damaged: cores '4'; allowed: a whole"),
        (changed(provenance=asdict(HERE) | {"cores": 10**12}), "damaged: cores 10000"),
        (on_slice("cpu"), "damaged, or not complete: "),
        (on_slice({"gpu": 1}), "damaged: slice gpu is unknown"),
        (on_slice({"kind": "tpu"}), "damaged: slice kind 'tpu'; allowed: cpu or gpu"),
        (on_slice({"kind": "gpu"}), "damaged: slice memory_gib 0; allowed: above 0 for a gpu"),
        (on_slice({"memory_gib": 40}), "damaged: slice memory_gib 40; allowed: above 0 for a gpu"),
        (on_slice({"profile": "1g.5gb"}), "damaged: slice profile '1g.5gb'; allowed: none for a"),
        (on_slice({"profile": 1}), "damaged: slice profile 1; allowed: a text"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text, message):
    with pytest.raises(ProfileError) as error:
        read_profile(text)
    assert str(error.value).startswith(message)


def test_a_profile_that_does_not_say_so_was_not_measured_alone_nor_on_a_busy_host():
    assert read_profile(changed(alone=..., busy=...)) == profile_of({(1, 1): 5.0})


@pytest.mark.parametrize(("busy", "doubt"), [(0.1, ""), (2.0, "something else used 2.0 CPUs")])
def test_a_profile_that_was_measured_on_a_busy_host_says_so(busy, doubt):
    profile = read_profile(profile_of({(1, 1): 5.0}, busy=busy).to_json())
    assert profile.busy == busy
    assert doubt in profile.doubt and bool(profile.doubt) == bool(doubt)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"threads": 1025}, "threads 1025; allowed: a whole number from 1 to 1024"),
        ({"batch": 4097}, "batch 4097; allowed: a whole number from 1 to 4096"),
        ({"batch": 0}, "batch 0; allowed: a whole number from 1 to 4096"),
    ],
)
def test_a_profile_that_nobody_could_read_is_not_made(size, message):
    good = {"provenance": HERE, "mode": "adaptive", "threads": 1, "batch": 1}
    assert checked(Profile, good).batch == 1
    with pytest.raises(ProfileError, match=message):
        checked(Profile, good | size)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"ms": math.nan}, "damaged: cell 1x1: ms nan; allowed: a number above 0"),
        ({"ms": INF, "high_ms": INF}, "damaged: cell 1x1: ms inf; allowed: a number above 0"),
        ({"low_ms": -1.0}, "damaged: cell 1x1: low_ms -1.0; allowed: a number above 0"),
        ({"low_ms": 0.0}, "damaged: cell 1x1: low_ms 0.0; allowed: a number above 0"),
        ({"high_ms": 4.0}, "damaged: cell 1x1: the median lies in its interval"),
        ({"ms": "5"}, "damaged: cell 1x1: ms '5'; allowed: a number above 0"),
        ({"ms": 10**400}, "damaged: cell 1x1: ms 10000"),
        ({"threads": 0}, "damaged: cell 0x1: threads 0; allowed: a whole number from 1"),
        ({"batch": 1.5}, "damaged: cell 1x1.5: batch 1.5; allowed: a whole number from 1"),
        ({"runs": "6"}, "damaged: cell 1x1: runs '6'; allowed: a whole number from 1"),
        ({"outliers": -1}, "damaged: cell 1x1: outliers -1; allowed: a whole number from 0"),
        ({"peak_bytes": "9"}, "damaged: cell 1x1: peak_bytes '9'; allowed: a whole number from 0"),
        ({"colour": 1}, "damaged: cell 1x1: colour is unknown"),
    ],
)
def test_a_damaged_cell_is_refused(damage, message):
    cell = asdict(Cell(1, 1, 5.0, 5.0, 5.0, runs=6)) | damage
    with pytest.raises(ProfileError) as error:
        read_profile(changed(cells=[cell]))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"model_hash": "ef" * 32}, f"model '{'ab' * 20}', here '{'ef' * 20}'"),
        ({"cpu": "Another"}, "processor 'A processor', here 'Another'"),
        ({"cores": 8}, "4 cores, here 8"),
        ({"torch": "2.13.0"}, "torch '2.9.0', here '2.13.0'"),
        ({"cores": 8, "torch": "3"}, "4 cores, here 8; torch '2.9.0', here '3'"),
        ({"slice": PART}, "CPU cores, here 3g.40gb with 40 GiB"),
        ({"slice": SliceKind("gpu", "", 80)}, "CPU cores, here a whole GPU with 80 GiB"),
    ],
)
def test_a_profile_from_elsewhere_is_refused_with_what_differs(other, what):
    with pytest.raises(ProfileError) as error:
        profile_of({}).check_usable(replace(HERE, **other))
    assert str(error.value) == (
        f"the profile of digits was measured with {what}: run `shunter profile` again"
    )


def test_a_profile_says_on_which_kind_of_slice_it_was_measured():
    of_part = replace(profile_of({(1, 1): 5.0}), provenance=replace(HERE, slice=PART))
    again = read_profile(of_part.to_json())
    assert again == of_part
    again.check_usable(replace(HERE, slice=PART))
    with pytest.raises(ProfileError, match=r"3g\.40gb with 40 GiB, here CPU cores"):
        again.check_usable(HERE)


def test_a_file_that_says_no_kind_of_slice_is_of_cpu_cores():
    old = asdict(HERE)
    del old["slice"]
    assert read_profile(changed(provenance=old)) == profile_of({(1, 1): 5.0})


def test_another_day_another_name_and_another_python_do_no_harm():
    here = replace(HERE, date="", model="d", python="3.13", shunter="9", sample_hash="")
    profile_of({}).check_usable(here)


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_powers_of_two_and_the_largest_batch_are_measured(largest, sizes):
    assert batch_sizes(largest) == sizes


@pytest.mark.parametrize(
    ("measured", "threads", "expected"),
    [
        # Straight lines between batch sizes, nothing beyond the largest.
        ({(1, 1): 2, (1, 2): 4, (1, 4): 10}, 1, [[2, 4, 7, 10, INF]]),
        # Below the smallest batch size what that takes.
        ({(1, 2): 4, (1, 4): 6}, 1, [[4, 4, 5, 6, INF]]),
        # 1 + 8 / threads, and no faster with more threads than were tried.
        ({(1, 1): 9, (4, 1): 3}, 5, [[9], [5], [1 + 8 / 3], [3], [3]]),
        # Slower with more threads.
        ({(1, 1): 4, (4, 1): 7}, 4, [[4], [6], [8 - 4 / 3], [7]]),
        # With fewer threads than were tried nothing is known.
        ({(2, 1): 5, (2, 2): 6}, 2, [[INF, INF], [5, 6]]),
        # A row never falls with the batch size.
        ({(1, 1): 5, (1, 2): 4, (1, 4): 6}, 1, [[5, 5, 5.5, 6]]),
        # A single cell of a row does not hide what its neighbours say of the others.
        (
            {(1, 1): 8, (1, 4): 20, (2, 4): 15, (4, 1): 2, (4, 4): 5},
            4,
            [[8, 12, 16, 20], [4, 23 / 3, 34 / 3, 15], None, [2, 3, 4, 5]],
        ),
        # Where only fewer threads were tried, more are as fast at best.
        ({(1, 1): 8, (1, 2): 9, (2, 1): 4}, 2, [[8, 9], [4, 9]]),
        ({}, 2, [[INF], [INF]]),
    ],
)
def test_what_was_not_measured_follows_from_its_neighbours(measured, threads, expected):
    batch = len(expected[0])
    found = interpolate(measured, threads, batch)
    assert found.shape == (threads, batch)
    for row, wanted in zip(found, expected, strict=True):
        if wanted is not None:
            assert row == pytest.approx(np.array(wanted, dtype=float))


CELLS = st.dictionaries(
    st.tuples(st.integers(1, 6), st.sampled_from(batch_sizes(12))), st.floats(0.1, 1e3)
)


@given(CELLS)
def test_rows_never_fall_and_no_latency_is_made_up_beyond_the_measured(measured):
    for rows in (interpolate(measured, 6, 12), cautious(measured, 6, 12)):
        assert not (rows[:, 1:] < rows[:, :-1]).any()
        largest = max((b for _, b in measured), default=0)
        assert np.isinf(rows[:, largest:]).all()
        fewest = min((t for t, _ in measured), default=7)
        assert np.isinf(rows[: fewest - 1]).all()


@given(CELLS, st.sampled_from([1.5, 10.0]))
def test_a_cell_that_was_measured_is_at_least_as_slow_as_measured(measured, factor):
    for (t, b), ms in measured.items():
        assert interpolate(measured, 6, 12)[t - 1, b - 1] >= ms
    slower = {cell: ms * factor for cell, ms in measured.items()}
    assert (interpolate(slower, 6, 12) >= interpolate(measured, 6, 12)).all()


def test_a_table_takes_measured_rows_as_they_are_and_guesses_with_a_surcharge():
    table = latency_table(profile_of({(1, 1): 9.0, (1, 8): 16.0, (4, 1): 3.0}))
    assert table.ms[0].tolist() == [9, 10, 11, 12, 13, 14, 15, 16]
    assert table.of(4, 1) == 3.0
    assert table.of(2, 1) == pytest.approx(5.0 * (1 + CAUTION))
    assert (table.threads, table.batch) == (4, 8)


def test_an_exhaustive_profile_has_no_surcharge_at_measured_cells():
    latencies = {(t, b): 1.0 + b / t for t in range(1, 5) for b in batch_sizes(8)}
    table = latency_table(profile_of(latencies))
    assert {(t, b): table.of(t, b) for t, b in latencies} == latencies


def cell(batch, peak_bytes):
    return Cell(1, batch, 1.0, 1.0, 1.0, runs=6, peak_bytes=peak_bytes)


def test_memory_is_a_line_through_the_resident_sizes():
    found = memory_of([cell(1, 110), cell(2, 120), cell(4, 140)], budget=1000)
    assert found.instance == pytest.approx(100)
    assert found.request == pytest.approx(10)
    assert found.budget == 1000


@pytest.mark.parametrize(
    ("cells", "memory"),
    [
        ([], Memory()),
        ([cell(1, 0), cell(8, 0)], Memory()),  # not known
        ([cell(4, 100)], Memory(instance=100)),
        ([cell(4, 100), cell(4, 120)], Memory(instance=120)),
        ([cell(1, 200), cell(8, 100)], Memory(instance=200)),  # the peak of an earlier batch
    ],
)
def test_memory_does_not_grow_with_the_batch_where_nothing_says_so(cells, memory):
    assert memory_of(cells) == memory


@given(st.lists(st.tuples(st.sampled_from(batch_sizes(64)), st.integers(1, 10**12)), min_size=1))
def test_memory_is_never_less_than_a_cell_took(sizes):
    found = memory_of([cell(b, peak) for b, peak in sizes])
    assert found.instance >= 0
    for b, peak in sizes:
        assert found.instance + b * found.request >= peak * (1 - 1e-9)


def test_a_profile_grows_cell_by_cell_until_it_is_finished():
    profile = profile_of({})
    first, again = Cell(1, 1, 5.0, 4.0, 6.0, 6), Cell(1, 1, 3.0, 3.0, 3.0, 9)
    grown = profile.with_cells([first], 2.0).with_cells([again], 1.0)
    grown = grown.finished(error=0.01)
    assert grown.cells == {(1, 1): again}
    assert summary(grown) == {
        "cells": 1,
        "of": 16,
        "seconds": 3.0,
        "complete": True,
        "error": 0.01,
        "busy": 0.0,
    }
    assert profile.cells == {}


def test_cells_of_an_earlier_largest_batch_count_too():
    profile = profile_of({(1, 1): 5.0, (1, 6): 7.0}, threads=1, batch=8)
    assert (summary(profile)["cells"], summary(profile)["of"]) == (2, 5)
