"""A new configuration takes over without anyone noticing, or leaves no trace."""

import contextlib

import psutil
import pytest

from shunter.plugins.gentle_start import starter

pytestmark = pytest.mark.e2e


@pytest.mark.both_servers
def test_a_new_configuration_takes_over_under_load(site, serve, load, pings, wait_until):
    model = serve(batch_size=8)
    old = model.pids()
    with pings(site), load(model, clients=8, sleep_ms=2) as clients:
        wait_until("load", lambda: len(clients.answers) > 50)
        model.begin_change("2x1x8")
        assert model.changed()["generation"] == 2
        enough = len(clients.answers) + 100
        wait_until("load", lambda: len(clients.answers) > enough)
    new = model.pids()
    assert len(new) == 2 and not set(new) & set(old)
    # Those that came beside others began with a small share, where they could, and have all now.
    begin = "early" if starter({"SHUNTER_GENTLE": "1"}) else "1"
    assert [psutil.Process(pid).environ()["SHUNTER_GENTLE"] for pid in new] == [begin] * 2
    assert {psutil.Process(pid).nice() for pid in new} == {psutil.Process().nice()}
    wait_until("the old ones ended", lambda: not any(map(psutil.pid_exists, old)))
    assert {a["pid"] for a in clients.answers} == {*old, *new}
    assert {a["threads"] for a in clients.answers if a["pid"] in new} == {"1"}
    if model.tells_more:
        described = model.describe()
        assert (described["minWorkers"], described["maxWorkers"]) == (2, 2)
    assert model.state()["configuration"] == "2x1x8"


@pytest.mark.both_servers
def test_the_old_generation_finishes_what_it_runs(serve, wait_until):
    model = serve(batch_size=4)
    old = model.pids()
    gate, held = model.hold()
    model.begin_change("1x1x4")
    [new] = wait_until("it serves", lambda: set(model.pids()) - set(old))
    assert model.ask("during")["pid"] == new
    assert set(model.pids()) == {*old, new}
    gate.open()
    assert held[0].result()["pid"] in old
    assert model.order() == ["held", "during"]
    wait_until("it ends", lambda: model.pids() == [new])


def test_numbers_alone_change_in_place(serve, wait_until):
    model = serve("ordered", batch_size=8, initial_workers=2)
    before = model.pids()
    assert model.configure(configuration="3x0x2").status == 202
    model.changed()
    assert _ready(model) == 3
    assert set(before) < set(model.pids()) and model.state()["generation"] == 1
    model.configure(configuration="1x0x2")
    wait_until("one worker", lambda: len(model.pids()) == 1)
    assert model.pids()[0] in before
    gate, _ = model.hold()
    waiting = [model.queue(f"q{i}") for i in range(4)]
    gate.open()
    assert [future.result()["batch"] for future in waiting] == [2] * 4


@pytest.mark.support("`minWorkers`")
def test_numbers_that_cannot_all_be_had_leave_everything_as_it_was(serve, load, wait_until):
    given = "2x1x8,2x2x8"
    model = serve(batch_size=8, config={"shunter": {"configuration": given}})
    before = sorted(model.pids())
    model.no_load.touch()
    with load(model, clients=4, sleep_ms=5):
        assert model.configure(configuration="4x1x4,1x2x2").status == 202
        state = model.changed()
    assert "was undone" in state["last_change"] and "told to fail" in state["last_change"]
    assert (state["configuration"], state["generation"]) == (given, 1)
    wait_until("no other is left", lambda: sorted(model.pids()) == before)
    assert (model.describe()["minWorkers"], model.describe()["maxWorkers"]) == (4, 4)
    model.no_load.unlink()
    model.configure(configuration="3x1x4,1x2x2")
    assert model.changed()["configuration"] == "3x1x4,1x2x2"
    wait_until("the surplus ended", lambda: len(model.pids()) == 4)
    assert len(set(model.pids()) & set(before)) == 3


def test_a_scale_call_while_workers_are_added_counts_after_that(serve, pings, site, wait_until):
    model = serve(batch_size=4)
    with pings(site):
        model.slow_load.touch()
        assert model.configure(configuration="2x0x2").status == 202
        model.wait_slow_load()
        state = model.configuration()
        assert (state["state"], state["configuration"]) == ("changing", "1x0x4")
        second = model.configure(configuration="1x0x1")
        assert second.status == 400 and "under way" in second["message"]
        assert model.ask().status == 200
        assert model.scale(3, wait=False).status == 202
        model.slow_load.unlink()
        wait_until("three workers", lambda: _ready(model) == 3)
    assert model.state()["configuration"] == "3x0x2"
    assert (model.describe()["minWorkers"], model.describe()["maxWorkers"]) == (3, 3)


@pytest.mark.both_servers
def test_an_old_worker_that_hangs_is_ended_and_an_idempotent_request_runs_again(serve, wait_until):
    model = serve(config={"responseTimeout": 4})
    gate, held = model.hold(headers={"x-shunter-idempotent": "true"})
    [old] = model.pids()
    model.begin_change()
    wait_until("the old one is ended", lambda: model.pids() and old not in model.pids())
    gate.open()
    assert [held[0].result()["pid"]] == model.pids()
    assert model.order() == ["held", "held"]


def _ready(model):
    workers = model.state()["groups"][0]["workers"]
    return sum(worker["state"] == "READY" for worker in workers)


@pytest.mark.both_servers
def test_several_groups_serve_with_their_own_threads_and_batches(serve, wait_until):
    model = serve("ordered", batch_size=8, config={"shunter": {"configuration": "1x1x8,1x2x2"}})
    assert len(model.pids()) == 2
    gate, _ = model.hold("a", "b")
    # Long enough for the second worker to get free while the first one runs its eight.
    waiting = [model.queue(f"q{i}", sleep_ms=300) for i in range(10)]
    gate.open()
    batches = {(f.result()["threads"], f.result()["batch"]) for f in waiting}
    assert {batch for threads, batch in batches if threads == "2"} <= {1, 2}
    assert {threads for threads, _ in batches} == {"1", "2"}


@pytest.mark.both_servers
def test_a_restart_replaces_the_processes_and_keeps_the_configuration(serve):
    model = serve(batch_size=4)
    before, configuration = model.pids(), model.state()["configuration"]
    model.begin_change()
    assert model.changed()["generation"] == 2
    assert model.state()["configuration"] == configuration
    answer = model.ask()
    assert answer.status == 200 and answer["pid"] not in before


@pytest.mark.both_servers
def test_a_configuration_whose_workers_do_not_load_is_undone(site, serve, load, pings, wait_until):
    model = serve(batch_size=4)
    before, configuration = model.pids(), model.state()["configuration"]
    model.no_load.touch()
    with pings(site), load(model, clients=4, sleep_ms=5) as clients:
        model.begin_change("1x2x4")
        state = model.changed()
        enough = len(clients.answers) + 100
        wait_until("load", lambda: len(clients.answers) > enough)
    assert "undone" in state["last_change"]
    assert (state["generation"], state["configuration"]) == (1, configuration)
    assert model.pids() == before
    wait_until("no other is left", lambda: [p.pid for p in _processes(model)] == before)
    assert {answer["pid"] for answer in clients.answers} == set(before)
    model.no_load.unlink()
    model.begin_change("1x2x4")
    assert model.changed()["configuration"] == "1x2x4"
    assert model.ask()["threads"] == "2"
    wait_until("one is left", lambda: [p.pid for p in _processes(model)] == model.pids())


def test_a_bad_configuration_is_answered_400_and_changes_nothing(site, serve):
    model = serve(batch_size=4)
    before = model.state()
    for text in ("2by1", "0x1x4", "1x1x0", "1x1", "1x1x4,", "x".join("999999")):
        answer = model.configure(configuration=text)
        assert answer.status == 400, answer
        assert "configuration" in answer["message"] and "1x8x32,2x4x16" in answer["message"]
    assert model.configure().status == 400
    assert model.configure(configuration="1x1x4", restart="yes").status == 400
    path = "/shunter/models/nobody/configuration"
    assert site.management("PUT", path, configuration="1x1x1").status == 404
    after = model.state()
    assert (after["configuration"], after["generation"]) == (before["configuration"], 1)
    assert model.pids() == [worker["pid"] for worker in before["groups"][0]["workers"]]


def test_one_change_at_a_time(serve):
    model = serve(batch_size=4)
    model.slow_load.touch()
    assert model.configure(configuration="1x1x4").status == 202
    second = model.configure(configuration="1x2x4")
    assert second.status == 400 and "under way" in second["message"]
    assert model.ask().status == 200  # the old generation serves meanwhile
    model.slow_load.unlink()
    assert model.changed()["configuration"] == "1x1x4"


def test_a_scale_call_during_a_change_is_not_forgotten(serve, wait_until):
    model = serve(batch_size=4)
    model.slow_load.touch()
    model.configure(configuration="1x1x4")
    model.wait_slow_load()
    assert model.scale(2, wait=False).status == 202
    model.slow_load.unlink()
    model.changed()
    # The call was only accepted (202): it may come after the change.
    wait_until("the call", lambda: model.describe()["minWorkers"] == 2)
    wait_until("two workers", lambda: len(model.pids()) == 2)


def test_unregistering_during_a_change_ends_both_generations(site, serve, wait_until):
    model = serve(batch_size=4)
    model.slow_load.touch()
    model.configure(configuration="1x1x4")
    model.wait_slow_load()
    assert len(_processes(model)) == 2
    assert site.management("DELETE", f"/models/{model.name}").status == 200
    wait_until("all ended", lambda: not _processes(model))


def _processes(model):
    """Its workers of any generation."""
    found = []
    for process in psutil.Process(model.site.parent).children():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ECHO_RECORD") == str(model.record):
                found.append(process)
    return found
