"""What the soak counts as lost, how it judges memory, and what it says in the end."""

import math
import os
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


@pytest.mark.parametrize(
    ("code", "text", "changing", "end"),
    [
        ("NOT_FOUND", "anything", True, "absent"),
        ("UNAVAILABLE", "no worker", True, "absent"),
        ("INTERNAL", "Model not found: m", True, "absent"),
        ("INTERNAL", "Model version: null does not exist for model: m", True, "absent"),
        ("INTERNAL", "Model version: null does not exist for model: m", False, None),
        ("INTERNAL", "Model version: 2.0 does not exist for model: m", True, None),
        ("INTERNAL", "Worker died.", True, None),
        ("NOT_FOUND", "anything", False, None),
    ],
)
def test_grpc_is_believed_that_a_model_is_not_there_where_models_come_and_go(
    soaking, code, text, changing, end
):
    import grpc

    class Failure(grpc.RpcError):
        def code(self):
            return grpc.StatusCode[code]

        def details(self):
            return text

    def fail(*_, **__):
        raise Failure

    asker = object.__new__(soaking.askers.Grpc)
    asker._client = SimpleNamespace(predict=fail)
    target = SimpleNamespace(name="m", changing=changing)
    question = SimpleNamespace(key="data", body=b"")
    found = asker.ask(target, question, soaking.askers.Terms())
    assert found == (end or f"{code}: {text}")


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


def test_growth_is_that_of_processes_which_were_there_before(soaking):
    def samples(**sizes):
        for i in range(101):
            found = {pid: mb(i) for pid, (first, mb) in sizes.items() if i >= first}
            yield {"s": 36.0 * i, "private": {"workers": found}}

    def within(**sizes):
        return soaking.memory.within(list(samples(**sizes)), "workers")

    assert within(a=(0, lambda i: 300 + 0.01 * i), b=(0, lambda i: 40)) == 1
    # A new process warms up, an old one ends: neither is growth.
    assert within(a=(0, lambda i: 300), b=(50, lambda i: 200 + 9 * min(8, i - 50))) == 0
    assert within(a=(0, lambda i: 200 + i if i < 8 else 207)) == 0
    assert math.isnan(within(a=(95, lambda i: i)))
    assert math.isnan(soaking.memory.within([], "workers"))
    # Whose growth is not seen is taken to grow like the others.
    assert within(a=(0, lambda i: 300 + i), b=(97, lambda i: 300)) == pytest.approx(104, abs=0.1)
    assert soaking.memory.private({"pool": [os.getpid(), 1 << 30]})["pool"].keys() == {
        str(os.getpid())
    }


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
        "memory": {
            "rss_slopes": {"jvm": 2.0, "workers": -9.0, "pool": math.nan},
            "growth_within": {"jvm": 0.5, "workers": 1.0, "pool": math.nan},
        },
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
    assert (found["worst_growth_mb_per_hour"], found["jvm_growth_mb_per_hour"]) == (1.0, 0.5)
    assert (found["faults"], found["worst_until_ready_s"]) == (3, 3.5)
    assert found["live_heap_growth_mb"] == 1.5
