"""What a status says of a machine's load."""

import copy

import pytest

from shunter.allocator.cluster.load import Fit
from shunter.plugins.ray.records import loads

MODEL = {
    "name": "m",
    "version": "1.0",
    "default": True,
    "class": "strict",
    "preemption": None,
    "batch_size": 8,
    "queue": {"strict": 2, "best_effort": 4},
    "in_flight": {"requests": 1, "batches": 1},
    "counters": {"arrivals": {"strict": 5, "best_effort": 6}},
    "batches": {"1": 2, "4": 2},
    "mean_service_ms": 30.0,
    "groups": [
        {
            "state": "serving",
            "slice": "all cores",
            "latency": {"fixed_ms": 5.0, "per_request_ms": 2.0, "error_ms": 1.0},
            "workers": [{"state": "READY"}, {"state": "READY"}, {"state": "STARTING"}],
        },
        {"state": "retiring", "slice": "old", "latency": None, "workers": [{"state": "READY"}]},
    ],
}
TRITON = {
    "name": "m",
    "version": "1.0",
    "ready": 2,
    "batches": 3,
    "answered": 6,
    "requests": 7,
    "waiting": [1, 2],
    "running": 3,
    "configuration": "1x1x4,1x2x16",
    "fixed_ns": 4_000_000,
    "per_request_ns": 1_000_000,
    "error_ns": 0,
}


def changed(path, value):
    model = copy.deepcopy(MODEL)
    at = model
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return model


def test_a_models_load():
    (work,) = loads.parse({"models": [MODEL], "pools": []})
    assert work.state.fit == Fit(0.005, 0.002, 0.001)
    assert work.state.batch == 2.5
    assert (work.workers, work.strict, work.best_effort, work.arrivals) == (2, 3, 4, (5, 6))
    assert work.largest == 8
    assert work.slices == ("all cores",)


def test_the_machine_of_it():
    works = loads.parse({"models": [MODEL], "pools": []})
    machine = loads.machine("node-1", works, order=3, is_draining=True)
    assert set(machine.models) == {"m", "m/1.0"}
    assert (machine.order, machine.is_draining) == (3, True)
    (at,) = machine.slices
    each_s = (0.005 + 2.5 * 0.002) / 2.5 / 2
    assert at.strict_s == pytest.approx(3 * each_s)
    assert at.best_effort_s == pytest.approx(4 * each_s)
    assert at.gives_way_s == pytest.approx(0.005 + 2.5 * 0.002)


def test_best_effort_that_gives_way_costs_strict_work_nothing():
    works = loads.parse({"models": [changed(["preemption"], {"runners": []})]})
    assert loads.machine("a", works, order=0, is_draining=False).slices[0].gives_way_s == 0


def test_the_other_server():
    (work,) = loads.parse({"server": "other", "models": [TRITON]})
    assert work.state.fit == Fit(0.004, 0.001)
    assert (work.state.batch, work.workers, work.strict, work.best_effort) == (2.0, 2, 4, 2)
    assert (work.largest, work.arrivals) == (16, (7, 0))


def test_a_model_that_was_retired_there_is_none():
    retired = TRITON | {"configuration": "", "ready": 0}
    (work,) = loads.parse({"server": "other", "models": [retired, TRITON]})
    assert work.workers == 2


@pytest.mark.parametrize(
    ("pools", "swap_s"),
    [
        ([], 0.0),
        ([{"models": ["other/1.0"], "hot": []}], 0.0),
        ([{"models": ["m/1.0"], "hot": ["m/1.0"], "misses": 2, "swap_ms": 50.0}], 0.0),
        ([{"models": ["m/1.0"], "hot": [], "misses": 2, "swap_ms": 50.0}], 0.025),
        ([{"models": ["m/1.0"], "hot": []}], loads.SWAP_GUESS_S),
    ],
)
def test_cold_weights_take_time(pools, swap_s):
    (work,) = loads.parse({"models": [MODEL], "pools": pools})
    assert work.state.swap_s == swap_s


def test_a_model_without_a_fit_is_taken_by_its_mean_or_guessed():
    no_fit = {"fixed_ms": None, "per_request_ms": None, "error_ms": None}
    model = changed(["groups", 0, "latency"], no_fit)
    assert loads.parse({"models": [model]})[0].state.fit == Fit(0.03, 0.0)
    model["mean_service_ms"] = None
    assert loads.parse({"models": [model]})[0].state.fit == Fit(loads.GUESS_S, 0.0)


@pytest.mark.parametrize(
    "model",
    [
        None,
        [],
        {},
        changed(["name"], 3),
        changed(["groups"], None),
        changed(["groups", 0, "workers"], []),
        changed(["groups", 0, "latency", "fixed_ms"], -1),
        changed(["groups", 0, "latency", "fixed_ms"], float("nan")),
        changed(["queue", "strict"], "many"),
        changed(["queue", "strict"], float("inf")),
        changed(["batches"], {"x": 1}),
        changed(["counters"], None),
    ],
)
def test_what_is_wrong_makes_only_that_model_unknown(model):
    assert [each.name for each in loads.parse({"models": [model, MODEL], "pools": []})] == ["m"]


@pytest.mark.parametrize("status", [None, [], {}, {"models": 3}])
def test_no_status_is_no_load(status):
    assert loads.parse(status) == []


@pytest.mark.parametrize(
    ("status", "is_changing"),
    [
        (None, False),
        ({"devices": None}, False),
        ({"devices": {"changing": []}}, False),
        ({"devices": {"changing": [0]}}, True),
    ],
)
def test_a_machine_whose_instances_change(status, is_changing):
    assert loads.is_changing(status) is is_changing
