"""What the soak counts as lost, how it judges memory, and what it says in the end."""

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")


@pytest.fixture
def soaking(script):
    names = ("askers", "events", "memory", "targets", "traffic")
    return SimpleNamespace(**{name: script(f"soaking.{name}") for name in names})


def test_a_refusal_is_excused_only_by_the_requests_own_deadline_and_the_documented_text(soaking):
    text = "The deadline cannot be met: waited 9 ms in the queue of m"
    with_deadline, without = soaking.askers.Terms(deadline_ms=5), soaking.askers.Terms()
    assert with_deadline.is_refusal(504, 504, text)
    assert not with_deadline.is_refusal(503, 504, text)
    assert not with_deadline.is_refusal(504, 504, "Worker died")
    assert not without.is_refusal(504, 504, text)
    assert with_deadline.headers()["x-shunter-idempotent"] == "true"


def test_what_is_neither_right_nor_excused_is_lost_and_told(soaking):
    tally = soaking.traffic.Tally()
    target = SimpleNamespace(name="m")
    ends = ["right", "wrong", "too late", "absent", "absent", "status 500: a", "status 500: b"]
    for place, end in enumerate(ends):
        tally.add("rest", target, end, 1.0, is_gone=place == 3)
    assert (tally.lost, tally.ends.wrong, tally.too_late, tally.gone) == (3, 1, 1, 1)
    assert tally.ends.counts["status 500"] == 2
    assert len(tally.examples) == 4
    assert tally.row()["requests"] == 7


def test_memory_is_judged_by_quiet_samples_of_the_second_half(soaking):
    samples = [{"s": 36 * i, "x": 5 + i, "quiet": True} for i in range(8)]
    assert soaking.memory.growth(samples, "x") == 100
    noisy = [{**each, "x": 999, "quiet": False} for each in samples]
    early = [{"s": 1, "x": 5000, "quiet": True}]
    assert soaking.memory.growth([*early, *noisy, *samples], "x") == 100
    assert math.isnan(soaking.memory.growth(samples[:2], "x"))
    assert math.isnan(soaking.memory.growth([], "x"))


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["python", "-P", "-m", "shunter.plugins.control.controller"], "controller"),
        (["python", "-P", "-m", "shunter.plugins.cli.main", "nic", "--runtime"], "front_end"),
        (["python", "torchserve", "--start"], "others"),
        ([], "others"),
    ],
)
def test_a_process_is_known_by_its_arguments(soaking, command, role):
    assert soaking.memory.role_of([each.encode() for each in command]) == role


def test_every_fault_comes_before_one_comes_again(soaking):
    import random

    events = soaking.events.Events(None, None, random.Random(1))
    count = len(soaking.events.FAULTS)
    found = [events.next() for _ in range(2 * count)]
    assert set(found[:count]) == set(found[count:]) == set(soaking.events.FAULTS)


def test_numbers_are_right_within_the_tolerance_and_of_the_same_length(soaking):
    import numpy as np

    right = np.array([0.25, 0.5], np.float32)
    is_near = soaking.targets._is_near
    assert is_near(right, (right + 5e-4).astype(np.float32).tobytes())
    assert not is_near(right, (right + 5e-3).astype(np.float32).tobytes())
    assert not is_near(right, right[:1].tobytes())
    assert not is_near(right, (right + np.nan).astype(np.float32).tobytes())


def test_the_headline_names_the_kind_that_grows_fastest(script):
    row = {
        "memory": {"rss_slopes": {"jvm": 2.0, "workers": -9.0, "pool": math.nan}},
        "lost": 1,
        "wrong": 0,
        "requests": 9,
        "too_late": 2,
        "idle_cores": {"jvm": 0.01, "workers": 0.02},
        "live_heap_mb": [40.0, 41.5],
        "faults": {"a": 2, "b": 1},
        "worst_until_ready_s": {"a": 3.5},
    }
    found = script("soak").headline(row)
    assert (found["worst_rss_slope_mb_per_hour"], found["idle_cpu_share"]) == (2.0, 0.03)
    assert (found["faults"], found["worst_until_ready_s"]) == (3, 3.5)
    assert found["live_heap_growth_mb"] == 1.5
