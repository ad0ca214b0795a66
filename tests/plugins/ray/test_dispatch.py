"""A gateway's copy of the directory, and what it chooses by it."""

import random

import pytest

from shunter.allocator.cluster.load import Fit, ModelState
from shunter.plugins.ray.gateway.dispatch import AVOID_S, Chosen, Dispatch, Nowhere
from shunter.plugins.ray.gateway.forwarding import Terms
from shunter.plugins.ray.records.directory import Directory, Entry, Report, add, told
from shunter.plugins.ray.records.loads import Work

FAR = float("inf")


def work(name="m", strict=0):
    state = ModelState(Fit(0.01, 0.0))
    return Work(name, "1.0", True, True, state, 1, strict, 0, False, (0, 0))


def entry(name, state="serving", *, pid=1, works=None):
    works = (work(),) if works is None else works
    return Entry(name, f"id of {name}", Report(state, f"http://{name}", works, pid=pid))


def directory(number, *entries, **more):
    return Directory(number, {each.name: each for each in entries}, **more)


@pytest.fixture
def dispatch():
    return Dispatch(random.Random(1))


def choose(dispatch, model="m", *, left_s=FAR, tried=(), now=0.0):
    return dispatch.choose(Terms(model), left_s, frozenset(tried), now)


def test_a_request_goes_where_its_model_is(dispatch):
    dispatch.learn(directory(1, entry("a"), entry("b", works=(work("other"),))))
    assert choose(dispatch) == Chosen("a", "http://a")
    assert choose(dispatch, "m/1.0") == Chosen("a", "http://a")
    assert choose(dispatch, "other") == Chosen("b", "http://b")


@pytest.mark.parametrize(("model", "is_unknown"), [("x", True), ("m/2.0", True), ("m", False)])
def test_no_machine(dispatch, model, is_unknown):
    dispatch.learn(directory(1, entry("a")))
    found = choose(dispatch, model, tried=("a",))
    assert isinstance(found, Nowhere)
    assert found.is_unknown is is_unknown


def test_nothing_is_called_unknown_before_a_machine_serves(dispatch):
    dispatch.learn(directory(1, entry("a", "starting", works=())))
    assert not choose(dispatch, "x").is_unknown


def test_no_request_is_refused_because_it_may_be_late(dispatch):
    dispatch.learn(directory(1, entry("a", works=(work(strict=1000),))))
    assert choose(dispatch, left_s=0.001) == Chosen("a", "http://a")


@pytest.mark.parametrize("state", ["draining", "released", "lost", "starting"])
def test_only_a_machine_that_serves_gets_requests(dispatch, state):
    dispatch.learn(directory(1, entry("a"), entry("b")))
    dispatch.learn(directory(2, entry("a", state), entry("b")))
    assert {choose(dispatch).machine for _ in range(20)} == {"b"}


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        (entry("a"), set()),
        (entry("a", "draining"), set()),
        (entry("a", pid=2), {"a"}),
        (entry("a", "lost", pid=0), {"a"}),
        (entry("b"), {"a"}),
    ],
)
def test_what_a_machine_held_is_lost_with_its_server(dispatch, after, lost):
    dispatch.learn(directory(1, entry("a")))
    assert dispatch.learn(directory(2, after)) == lost


def test_an_older_directory_changes_nothing(dispatch):
    dispatch.learn(directory(5, entry("a")))
    assert dispatch.learn(directory(4)) == set()
    assert choose(dispatch) == Chosen("a", "http://a")


def test_a_machine_that_did_not_answer_is_avoided_for_a_while(dispatch):
    dispatch.learn(directory(1, entry("a"), entry("b")))
    dispatch.avoid("a", 10.0)
    assert {choose(dispatch, now=10.5).machine for _ in range(20)} == {"b"}
    assert {choose(dispatch, now=10.0 + AVOID_S).machine for _ in range(40)} == {"a", "b"}
    dispatch.avoid("a", 20.0)
    dispatch.learn(directory(2, entry("a"), entry("b")))
    assert {choose(dispatch, now=20.0).machine for _ in range(40)} == {"a", "b"}


@pytest.mark.parametrize(
    ("said", "setting", "may_repeat"),
    [(None, {}, True), (None, {"m": False}, False), (True, {"m": False}, True), (False, {}, False)],
)
def test_what_may_run_twice(dispatch, said, setting, may_repeat):
    dispatch.learn(directory(1, entry("a"), idempotent=setting))
    assert dispatch.may_repeat(Terms("m/1.0", may_repeat=said)) is may_repeat


def test_the_directory_as_json():
    (row,) = told(directory(1, entry("a")))
    assert (row["name"], row["state"], row["models"][0]["name"]) == ("a", "serving", "m")


@pytest.mark.parametrize(
    ("states", "names"),
    [
        (["serving", "serving"], {"a": "0000000", "a@111111": "1111111"}),
        (["starting", "draining"], {"a": "0000000", "a@111111": "1111111"}),
        (["lost", "serving"], {"a": "1111111"}),  # it came back
        (["serving", "lost"], {"a": "0000000"}),
        (["lost", "lost"], {"a": "1111111"}),
    ],
)
def test_of_two_machines_of_one_name_both_are_seen_that_live(states, names):
    entries = {}
    for node, state in enumerate(states):
        add(Entry("a", str(node) * 7, Report(state)), entries)
    assert {name: each.node_id for name, each in entries.items()} == names
    for name, each in entries.items():
        assert ("--cluster-name" in each.report.problem) == ("@" in name)
