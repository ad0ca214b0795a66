"""Plots: the numbers that are drawn, and files that can be read."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from shunter.allocator.planning.profile import Cell, Profile, Provenance, batch_sizes
from shunter.plugins.cli import main as cli
from shunter.plugins.errors import UserError
from shunter.plugins.view import plot_data, plots

DPI = plots.DPI


def profile_of(model="resnet", threads=4, batch=8, without=()):
    cells = {
        (t, b): Cell(t, b, 1 + 2 * b / t, 1 + 2 * b / t, 1 + 2 * b / t, 6)
        for t in range(1, threads + 1)
        for b in batch_sizes(batch)
        if (t, b) not in without
    }
    where = Provenance(model, "ab12", "a processor", 4, "2.13.0", "cd34")
    return Profile(where, threads, batch, "adaptive", cells, complete=True)


@pytest.fixture
def written(tmp_path):
    """Writes a value as JSON, or a profile; returns the file."""

    def written(name, content):
        path = tmp_path / name
        text = content.to_json() if isinstance(content, Profile) else json.dumps(content)
        path.write_text(text)
        return path

    return written


@pytest.fixture
def draw(capsys):
    """Runs ``shunter plot``; returns the picture that it says it wrote."""

    def draw(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(["plot", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (ended.value.code or 0, err) == (0, "")
        return Image.open(out.strip())

    return draw


@pytest.fixture
def refused(capsys):
    """Runs ``shunter plot``, which must fail; returns what it says."""

    def refused(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(["plot", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (ended.value.code, out, len(err.splitlines())) == (2, "", 1)
        return err

    return refused


def shows_something(picture):
    """Whether the picture has colours, not only the grey of frames and letters."""
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    return np.ptp(pixels, axis=2).max() > 100


# ---- numbers


def test_a_plot_of_speedups_lies_beside_its_profile_as_one_of_the_profile_does(draw, written):
    first, second = (written(f"{n}.profile.json", profile_of(n)) for n in ("a", "b"))
    draw("speedup", first).close()
    assert first.with_name("a.speedup.png").exists()
    draw("speedup", first, second).close()
    assert first.with_name("speedup.png").exists()


def test_a_heat_map_tells_measured_cells_from_interpolated_and_unknown_ones():
    found = plot_data.heat_map(profile_of(without={(2, 1), (2, 2), (2, 4), (2, 8), (1, 8)}))
    assert (found.threads, found.batches) == ((1, 2, 3, 4), (1, 2, 4, 8))
    assert found.measured.tolist() == [[True] * 3 + [False], [False] * 4, [True] * 4, [True] * 4]
    assert found.ms[0, 0] == 3
    assert found.ms[2, 1] <= found.ms[1, 1] <= found.ms[0, 1]
    assert np.isinf(found.ms[:, 3]).tolist() == [True, True, False, False]


def test_a_heat_map_shows_what_was_measured_even_where_latency_falls():
    profile = profile_of(threads=1, batch=2)
    faster = profile.with_cells([Cell(1, 2, 2.5, 2.5, 2.5, 6)], 0)
    assert plot_data.heat_map(faster).ms.tolist() == [[3.0, 2.5]]


def test_a_heat_map_has_the_cells_of_an_earlier_largest_batch():
    profile = profile_of(threads=1).with_cells([Cell(1, 6, 13, 13, 13, 6)], 0)
    found = plot_data.heat_map(profile)
    assert found.batches == (1, 2, 4, 6, 8)
    assert found.measured.all()


def test_a_heat_map_of_many_threads_has_only_measured_rows():
    every = range(1, 33)
    without = {(t, b) for t in every for b in (1, 2) if t not in (1, 8, 32)}
    found = plot_data.heat_map(profile_of(threads=32, batch=2, without=without))
    assert found.threads == (1, 8, 32)


def test_expected_speed_ups_are_those_of_the_plan():
    [found] = plot_data.speedup_series([profile_of()], 4)
    assert found.batches == [1, 2, 4, 8]
    assert found.expected["one per core"][1] == pytest.approx(3 / 1.5)
    assert all(speedup >= 1 for values in found.expected.values() for speedup in values.values())


def test_speed_ups_are_on_the_cores_of_the_profile_unless_told():
    assert [each.threads for each in plot_data.speedup_series([profile_of()], None)] == [4]


def bar(model, batch=8, over="fat", speedup=1.5):
    return plot_data.Bar(model, batch, over, speedup, speedup, speedup)


def test_measured_speed_ups_go_to_the_profile_of_their_model():
    bars = [bar("resnet", speedup=1.5), bar("bert", over="one per core")]
    found = plot_data.speedup_series([profile_of("bert"), profile_of("resnet")], 4, bars)
    assert [each.measured["fat"] for each in found] == [[], [bars[0]]]
    assert [each.measured["one per core"] for each in found] == [[bars[1]], []]


def test_a_batch_that_was_only_measured_has_its_place():
    [found] = plot_data.speedup_series([profile_of()], 4, [bar("resnet", batch=6)])
    assert found.batches == [1, 2, 4, 6, 8]


def test_measured_rows_of_other_models_only_are_refused():
    with pytest.raises(UserError, match="no row of these profiles, only of bert, gpt"):
        plot_data.speedup_series([profile_of()], 4, [bar("gpt"), bar("bert")])


def test_the_mean_of_speed_ups_is_geometric():
    assert plot_data.mean_speedup([0.5, 2.0]) == pytest.approx(1)
    assert np.isnan(plot_data.mean_speedup([]))


ROW = {"model": "resnet", "batch": 8, "chosen": {"ms": 4}, "fat": {"ms": 6}}
MEAN = {"model": "resnet", "mean_speedup": 1.5}


@pytest.mark.parametrize("content", [[ROW], {"name": "packrat_micro", "rows": [ROW, MEAN]}])
def test_a_benchmarks_rows_become_speed_ups(written, content):
    assert plot_data.measured_bars(written("m.json", content)) == [bar("resnet")]


def test_paired_ratios_of_a_row_go_before_the_ratio_of_its_medians(written):
    rows = [{**ROW, "vs_fat": {"median": 1.4, "low": 1.2, "high": 1.7}}]
    assert plot_data.measured_bars(written("m.json", rows)) == [
        plot_data.Bar("resnet", 8, "fat", 1.4, 1.2, 1.7)
    ]


def test_rows_may_lack_a_baseline(written):
    rows = [{**ROW, "fat": None, "one_per_core": {"ms": 5}}]
    assert plot_data.measured_bars(written("m.json", rows)) == [
        bar("resnet", over="one per core", speedup=1.25)
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "no result of bench/packrat_micro.py"),
        ({"rows": 1}, "no result of bench/packrat_micro.py"),
        ([{"chosen": {"ms": 1}, "fat": {"ms": 2}}], "'model'"),
        ([{**ROW, "chosen": {"ms": 0}}], "division by zero"),
        ([MEAN], "has no rows with model, batch, chosen and fat"),
        (["x"], "has no rows"),
    ],
)
def test_what_holds_no_rows_is_refused(written, content, said):
    with pytest.raises(UserError, match=said):
        plot_data.measured_bars(written("m.json", content))


def series(t_s, latency_ms):
    return plot_data.Series("a", np.array(t_s, dtype=float), np.array(latency_ms, dtype=float))


def test_percentiles_of_a_window_are_values_that_were_measured():
    steps = np.arange(100)
    middles, (half, most) = plot_data.windows(series(steps / 1000, steps + 1), 0.1)
    assert (middles.tolist(), half.tolist(), most.tolist()) == ([0.05], [50], [99])


def test_a_window_without_a_request_has_no_percentile():
    middles, (half, _) = plot_data.windows(series([0.25, 0.26, 1.1], [3, 5, 7]), 0.25)
    assert middles.tolist() == [0.375, 0.625, 0.875, 1.125]
    assert half.tolist()[::3] == [3, 7]
    assert np.isnan(half[1:3]).all()


def test_times_by_different_clocks_are_refused_before_they_fill_the_memory():
    with pytest.raises(UserError, match=r"a: from 0 to 1\.7e\+09 s are 1\.7e\+10 windows, allowed"):
        plot_data.windows(series([0, 1, 1.7e9], [1, 2, 3]), 0.1)


def test_a_timeline_is_in_the_order_of_time(written):
    content = {"series": [{"name": "a", "t_s": [2, 1], "latency_ms": [20, 10]}]}
    found = plot_data.read_timeline(written("t.json", content))
    assert found.series[0].latency_ms.tolist() == [10, 20]
    assert found.events == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "'series'"),
        ([], "is not a timeline"),
        ({"series": []}, "has no series"),
        ({"series": [{"name": "a", "t_s": [1], "latency_ms": [1, 2]}]}, "a: t_s and latency_ms"),
        ({"series": [{"name": "a", "t_s": [], "latency_ms": []}]}, "not empty"),
        ({"series": [{"name": "a", "t_s": [1], "latency_ms": [0]}]}, "latencies above 0"),
        ({"series": [{"name": "a", "t_s": ["x"], "latency_ms": [1]}]}, "could not convert"),
        ({"series": [{"name": "a", "t_s": [1], "latency_ms": [1]}], "events": [{}]}, "'t_s'"),
    ],
)
def test_what_is_no_timeline_is_refused(written, content, said):
    with pytest.raises(UserError, match=said):
        plot_data.read_timeline(written("t.json", content))


def test_labels_of_near_events_stand_above_each_other():
    events = [plot_data.Event(t, "four") for t in (9, 1, 2, 3)]
    placed = [(event.t_s, row) for event, row in plot_data.label_rows(events, 0.5)]
    assert placed == [(1, 0), (2, 1), (3, 2), (9, 0)]


def test_labels_with_room_between_them_share_a_row():
    events = [plot_data.Event(t, "four") for t in (0, 3, 6)]
    assert [row for _, row in plot_data.label_rows(events, 0.5)] == [0, 0, 0]


# ---- pictures


def test_a_profile_is_drawn_beside_its_file(draw, written, tmp_path):
    path = written("resnet.profile.json", profile_of(without={(2, 1), (2, 2), (2, 4), (2, 8)}))
    with draw("profile", path) as picture:
        assert (picture.format, picture.filename) == ("PNG", str(tmp_path / "resnet.profile.png"))
        assert picture.size == (int(6.5 * DPI), int(3.88 * DPI))
        assert shows_something(picture)


def test_a_profile_of_one_cell_is_drawn(draw, written, tmp_path):
    path = written("one.profile.json", profile_of(threads=1, batch=1))
    with draw("profile", path, "-o", tmp_path / "a.png") as picture:
        assert shows_something(picture)


def test_speed_ups_have_a_picture_for_each_model(draw, written, tmp_path):
    files = [written(f"{name}.profile.json", profile_of(name)) for name in ("bert", "resnet")]
    measured = written("m.json", [ROW])
    with draw("speedup", *files, "--measured", measured, "-o", tmp_path / "a.png") as picture:
        assert picture.size == (int(13.2 * DPI), int(4.4 * DPI))
        assert shows_something(picture)


def test_a_timeline_is_drawn_beside_its_file(draw, written, tmp_path):
    t_s = [0.01 * k for k in range(300)]
    one = {"name": "a", "t_s": t_s, "latency_ms": [5 + k % 7 for k in range(300)]}
    other = {"name": "b", "t_s": t_s, "latency_ms": [900] * 300}
    content = {"series": [one, other], "events": [{"t_s": 1, "label": "change"}]}
    with draw("timeline", written("change.json", content), "--window-ms", 50) as picture:
        assert picture.filename == str(tmp_path / "change.png")
        assert picture.size == (10 * DPI, int(4.8 * DPI))
        assert shows_something(picture)


def test_events_are_verticals_over_the_whole_height():
    timeline = plot_data.Timeline((series([0, 4], [1, 2]),), (plot_data.Event(3, "here"),))
    [axes] = plots.draw_timeline(timeline, 0.1).axes
    assert [line.get_xdata() for line in axes.lines if line.get_linestyle() == ":"] == [[3, 3]]
    assert [text.get_text() for text in axes.texts] == ["here"]


@pytest.mark.parametrize(("slow", "scale"), [(15, "linear"), (50, "log")])
def test_latencies_far_apart_get_a_logarithmic_axis(slow, scale):
    timeline = plot_data.Timeline((series([0, 1, 2], [1, 1, slow]),), ())
    [axes] = plots.draw_timeline(timeline, 0.1).axes
    assert axes.get_yscale() == scale


def test_axes_name_their_units():
    heat, _ = plots.draw_profile(profile_of()).axes
    timeline = plot_data.Timeline((series([0, 1], [1, 2]),), ())
    [line] = plots.draw_timeline(timeline, 0.1).axes
    assert (heat.get_xlabel(), heat.get_ylabel()) == ("batch size", "threads of the instance")
    assert (line.get_xlabel(), line.get_ylabel()) == ("time (s)", "latency (ms)")


def test_measured_cells_carry_their_latency():
    heat, _ = plots.draw_profile(profile_of(threads=1, batch=2, without={(1, 2)})).axes
    assert [text.get_text() for text in heat.texts] == ["3.00"]


def test_interpolated_cells_are_pale_and_unknown_ones_white():
    profile = profile_of(threads=3, without={(2, 1), (2, 2), (2, 4), (2, 8), (1, 8)})
    heat, _ = plots.draw_profile(profile).axes
    colours = heat.images[0].get_array()[..., :3]
    assert colours[1, 1].min() >= 0.7
    assert colours[0, 1].min() < 0.7
    assert colours[0, 3].tolist() == [1, 1, 1]


# ---- refusals


def test_a_missing_matplotlib_names_the_extra(refused, written, monkeypatch):
    for name in [each for each in sys.modules if each.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refused("profile", written("a.profile.json", profile_of()))
    assert "pip install 'shunter[plot]'" in said


def test_a_picture_that_cannot_be_written_is_one_sentence(refused, written, tmp_path):
    path = written("a.profile.json", profile_of())
    said = refused("profile", path, "-o", tmp_path / "nowhere/a.png")
    assert "nowhere/a.png cannot be written" in said


def test_a_file_that_is_no_profile_is_refused(refused, written):
    assert "not a profile of Shunter" in refused("profile", written("a.json", {}))
    assert "cannot be read" in refused("speedup", "nowhere.json")


def test_a_profile_without_a_cell_is_not_drawn(refused, written):
    empty = profile_of(without={(t, b) for t in range(1, 5) for b in batch_sizes(8)})
    assert "has no cells yet" in refused("profile", written("a.profile.json", empty))


def test_a_timeline_of_too_many_windows_and_a_window_of_no_length_are_refused(refused, written):
    one = {"name": "a", "t_s": [0, 1.7e9], "latency_ms": [1, 2]}
    path = written("a.json", {"series": [one]})
    assert "take a larger --window-ms, or give all times by one clock" in refused("timeline", path)
    said = refused("timeline", path, "--window-ms", "inf")
    assert "--window-ms inf: allowed: a finite number" in said


def test_a_timeline_that_is_no_json_is_refused(refused, tmp_path):
    (tmp_path / "a.json").write_text("{")
    assert "a.json is not JSON" in refused("timeline", tmp_path / "a.json")
