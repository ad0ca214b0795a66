"""Send times: rates, shapes, files and what is said of bad ones."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def arrivals(script):
    return script("arrivals")


def write(folder, text, name="trace"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def assert_times(times, seconds):
    assert times.dtype == float
    assert np.all(np.diff(times) >= 0)
    assert len(times) == 0 or (times[0] >= 0 and times[-1] < seconds)


def test_poisson_has_its_rate_and_the_spread_of_a_poisson_process(arrivals):
    times = arrivals.poisson(200, 100, seed=1)
    assert_times(times, 100)
    assert len(times) == pytest.approx(20_000, abs=4 * 20_000**0.5)
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_uniform_has_equal_distances(arrivals):
    times = arrivals.periodic(10, 2, offset_s=0.05)
    assert len(times) == 20
    assert np.diff(times) == pytest.approx(0.1)
    assert times[0] == 0.05
    assert len(arrivals.periodic(0.3, 10)) == 3
    assert len(arrivals.periodic(0, 10)) == 0


def test_steps_change_the_rate_when_they_should(arrivals):
    times = arrivals.steps([(0, 1), (1000, 2), (100, 3)], seed=2)
    assert_times(times, 6)
    counts = np.histogram(times, bins=[0, 1, 3, 6])[0]
    assert counts[0] == 0
    assert counts[1:] == pytest.approx([2000, 300], rel=0.2)


@pytest.mark.parametrize("name", ["wikipedia", "twitter"])
@pytest.mark.parametrize("seconds", [10, 60, 601])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_preset_has_the_mean_and_the_ratio_of_its_trace(arrivals, name, seconds, seed):
    peak, mean = arrivals.PRESETS[name]
    rates = arrivals.preset(name, seconds, seed, mean=500)
    assert len(rates) == seconds
    assert rates.min() >= 0
    assert rates.mean() == pytest.approx(500)
    assert rates.max() / rates.mean() == pytest.approx(peak / mean)


def test_the_presets_are_what_they_are_called_after(arrivals):
    assert arrivals.PRESETS == {"wikipedia": (316, 303), "twitter": (4561, 2969)}
    flat, erratic = (arrivals.preset(name, 300, seed=1, mean=100) for name in arrivals.PRESETS)
    assert np.abs(np.diff(flat)).max() < 1 < np.abs(np.diff(erratic)).max()


@given(
    ratio=st.floats(1, 20),
    seconds=st.integers(60, 300),
    seed=st.integers(0, 1000),
    bursts=st.floats(0, 30),
)
def test_any_diurnal_load_has_the_mean_and_the_ratio_asked_for(
    arrivals, ratio, seconds, seed, bursts
):
    rates = arrivals.diurnal(50, ratio, seconds, seed, bursts)
    assert rates.min() >= 0
    assert rates.mean() == pytest.approx(50)
    assert rates.max() == pytest.approx(50 * ratio)


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "poisson", "rate": 50, "seconds": 3},
        {"kind": "steps", "levels": [[50, 1], [10, 2]]},
        {"kind": "preset", "name": "twitter", "seconds": 20, "mean": 40},
        {"kind": "diurnal", "mean": 40, "peak_to_mean": 3, "seconds": 20, "bursts_per_minute": 9},
        {"kind": "uniform", "rate": 50, "seconds": 3, "rate_scale": 0.5},
    ],
)
def test_the_same_seed_gives_the_same_times_and_another_others(arrivals, spec):
    first, again, other = (arrivals.make({**spec, "seed": seed}).times for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert_times(first, arrivals.make(spec).seconds)


def test_time_scale_stretches_and_rate_scale_multiplies(arrivals):
    spec = {"kind": "poisson", "rate": 100, "seconds": 50, "seed": 1}
    plain = arrivals.make(spec)
    slow = arrivals.make({**spec, "time_scale": 2})
    assert slow.seconds == 100
    assert slow.times == pytest.approx(plain.times * 2)
    for rate in (0.25, 1.5, 3):
        scaled = arrivals.make({**spec, "rate_scale": rate})
        assert_times(scaled.times, 50)
        assert len(scaled.times) == pytest.approx(len(plain.times) * rate, rel=0.06)


def test_more_requests_keep_the_bursts_and_the_pauses(arrivals):
    times = np.array([0.0, 0.1, 0.2, 5.0, 5.1])
    scaled = arrivals.scaled(times, rate=10)
    assert len(scaled) == 50
    assert set(times) <= set(scaled)
    assert np.histogram(scaled, bins=[0, 0.2, 5, 6])[0].tolist() == [20, 10, 20]


def test_fewer_requests_are_some_of_those_there_were(arrivals):
    times = np.arange(1000.0)
    assert set(arrivals.scaled(times, rate=0.3)) < set(times)


def test_a_limit_cuts_off_the_rest(arrivals):
    cut = arrivals.make({"kind": "uniform", "rate": 10, "seconds": 9, "limit_s": 2})
    assert (len(cut.times), cut.seconds) == (20, 2)


def disb_file(folder, **loads):
    tasks = [
        {"id": name, "load": load, "client": {"model_name": "vgg"}} for name, load in loads.items()
    ]
    return write(folder, json.dumps({"time": 10, "tasks": tasks}))


def test_a_disb_file_gives_classes_and_times_and_closed_loops(arrivals, tmp_path):
    path = disb_file(
        tmp_path,
        a_rt={"type": "trace", "trace": [0, 9_999, 150, 10_001]},
        b_rt={"type": "periodic", "frequency": 5, "priority": 0},
        c_rt={"type": "poisson", "frequency": 50},
        d_be={"type": "continuous"},
    )
    tasks = {task.id: task for task in arrivals.disb(path, seed=3)}
    assert tasks["a_rt"].times.tolist() == [0, 0.15, 9.999]
    assert len(tasks["b_rt"].times) == 50
    assert len(tasks["c_rt"].times) == pytest.approx(500, rel=0.2)
    assert tasks["d_be"].times is None
    assert [task.request_class for task in tasks.values()] == ["strict"] * 3 + ["best_effort"]
    one = arrivals.make({"kind": "trace", "path": str(path), "task": "b_rt"})
    assert (len(one.times), one.seconds) == (50, 10)
    assert len(arrivals.from_file(path, seed=3).times) == 53 + len(tasks["c_rt"].times)


def test_an_azure_llm_trace_starts_with_its_first_row(arrivals, tmp_path):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    path = write(tmp_path, text + "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:18:04,1,1")
    schedule = arrivals.from_file(path)
    assert schedule.times == pytest.approx([0, 0.052, 60.02004], abs=1e-6)
    assert schedule.seconds == 61


def test_an_azure_llm_trace_may_name_its_zone(arrivals, tmp_path):
    text = "TIMESTAMP,A\n2024-05-10 00:00:00.009930+00:00,1\n2024-05-10 00:00:01.009930+00:00,1\n"
    assert arrivals.from_file(write(tmp_path, text)).times == pytest.approx([0, 1], abs=1e-6)


def test_an_azure_functions_trace_counts_from_starts(arrivals, tmp_path):
    text = "app,func,end_timestamp,duration\na,f,5.5,0.5\na,f,1.078,1.079\na,g,2,0"
    times = arrivals.from_file(write(tmp_path, text)).times
    assert times == pytest.approx([0, 2, 5])


@pytest.mark.parametrize(
    "text", ["100\n0\n300\n", "second,count\n0,100\n1,0\n2,300\n", "# a comment\n100\n\n0\n300"]
)
def test_counts_per_second_become_poisson_arrivals(arrivals, tmp_path, text):
    schedule = arrivals.from_file(write(tmp_path, text), seed=4)
    found = np.histogram(schedule.times, bins=[0, 1, 2, 3])[0]
    assert found[1] == 0
    assert found == pytest.approx([100, 0, 300], rel=0.4)
    assert schedule.seconds == 3


def test_counts_may_be_per_minute(arrivals, tmp_path):
    schedule = arrivals.from_file(write(tmp_path, "600\n1200\n"), width_s=60)
    assert schedule.seconds == 120
    assert np.histogram(schedule.times, bins=[0, 60, 120])[0] == pytest.approx([600, 1200], rel=0.2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("{not json", "no DISB workload"),
        ('{"time": 3}', "'tasks' is missing"),
        ('{"time": 3, "tasks": [{"id": "a", "load": {"type": "dependent"}}]}', "dependent"),
        ('{"time": 3, "tasks": [{"id": "a", "load": {"type": "continuous"}}]}', "closed-loop"),
        ("TIMESTAMP,ContextTokens\nyesterday,1", "no time: 'yesterday'"),
        ("TIMESTAMP,ContextTokens\n", "no rows"),
        ("app,func,end_timestamp\n1,2,3", "no column duration"),
        ("app,func,end_timestamp,duration\na,f,x,1", "no number: 'x'"),
        ("1\n2\nthree\n", "no number: 'three'"),
        ("1\n-2\n", "counts"),
        ("count\n", "counts"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(arrivals, tmp_path, text, said):
    path = write(tmp_path, text, "bad.trace")
    with pytest.raises(arrivals.BadArrivals, match=r"bad\.trace: .*") as caught:
        arrivals.from_file(path)
    assert said in str(caught.value)


def test_a_missing_file_and_binary_are_told(arrivals, tmp_path):
    with pytest.raises(arrivals.BadArrivals, match="No such file"):
        arrivals.from_file(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(arrivals.BadArrivals, match="binary: "):
        arrivals.from_file(tmp_path / "binary")


def test_an_unknown_task_is_told_with_those_there_are(arrivals, tmp_path):
    path = disb_file(tmp_path, a_rt={"type": "periodic", "frequency": 5})
    with pytest.raises(arrivals.BadArrivals, match=r"no task 'b'; there are \['a_rt'\]"):
        arrivals.from_file(path, task="b")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"kind": "bursty"},
        {"kind": "poisson", "seconds": 3},
        {"kind": "poisson", "rate": -1, "seconds": 3},
        {"kind": "poisson", "rate": 1, "seconds": 0},
        {"kind": "poisson", "rate": 1, "seconds": 3, "colour": "red"},
        {"kind": "uniform", "rate": 1, "seconds": 3, "rate_scale": 0},
        {"kind": "preset", "name": "facebook", "seconds": 3},
        {"kind": "diurnal", "mean": 1, "peak_to_mean": 0.5, "seconds": 9},
        {"kind": "diurnal", "mean": 1, "peak_to_mean": 2, "seconds": 9.5},
        {"kind": "diurnal", "mean": 1, "peak_to_mean": 50, "seconds": 9},
    ],
)
def test_a_bad_description_is_refused(arrivals, spec):
    with pytest.raises(arrivals.BadArrivals):
        arrivals.make(spec)


def test_the_published_traces_are_read(arrivals):
    folder = os.environ.get("SHUNTER_TRACES")
    if folder is None:
        pytest.skip("SHUNTER_TRACES names no folder")
    root = Path(folder)
    llm = arrivals.from_file(root / "azure/AzureLLMInferenceTrace_code.csv")
    assert len(llm.times) == 8819
    assert llm.seconds == pytest.approx(3436, abs=2)
    functions = arrivals.from_file(root / "azure/Azure2021_200.csv")
    assert len(functions.times) == 199
    real = arrivals.disb(root / "disb/REAL.json")
    assert sum(task.times is None for task in real) == 5
    assert 1600 < sum(len(task.times) for task in real if task.times is not None) <= 1684
    assert len(arrivals.from_file(root / "disb/D.json").times) == pytest.approx(6000, abs=5)
    for letter in "ABCDE":
        assert arrivals.disb(root / f"disb/{letter}.json")
