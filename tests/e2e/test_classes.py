"""Who goes first: strict requests, earlier deadlines, and best effort when it has waited long."""

import pytest

pytestmark = pytest.mark.e2e

STRICT = {"x-shunter-class": "strict"}
BEST_EFFORT = {"x-shunter-class": "best-effort"}


def _results(futures):
    answers = [future.result() for future in futures]
    assert [answer.status for answer in answers] == [200] * len(answers), answers


@pytest.mark.both_servers
def test_strict_requests_run_before_best_effort_ones_that_came_earlier(serve):
    model = serve("ordered", batch_size=2)
    gate, futures = model.hold()
    futures += [model.queue(f"b{i}", headers=BEST_EFFORT) for i in range(3)]
    futures += [model.queue(f"s{i}", headers=STRICT) for i in range(3)]
    gate.open()
    _results(futures)
    assert model.order() == ["held", "s0", "s1", "s2", "b0", "b1", "b2"]
    # No batch holds both classes: s2 runs alone although there was room for b0.
    assert [row["batch"] for row in model.ran()] == [1, 2, 2, 1, 2, 2, 1]


@pytest.mark.both_servers
def test_in_a_class_the_earliest_deadline_runs_first(serve):
    model = serve("ordered")

    def queue(request, request_class, deadline_s):
        headers = {"X-Shunter-Class": request_class}
        if deadline_s:
            headers["X-SHUNTER-DEADLINE-MS"] = str(deadline_s * 1000)
        return model.queue(request, headers=headers)

    for request_class in ("strict", "best-effort"):
        gate, futures = model.hold(headers={"x-shunter-class": request_class})
        for request, deadline_s in (("a", 0), ("b", 900), ("c", 600), ("d", 700), ("e", 0)):
            futures.append(queue(request, request_class, deadline_s))
        gate.open()
        _results(futures)
        assert model.order()[-6:] == ["held", "c", "d", "b", "a", "e"]


@pytest.mark.both_servers
def test_the_archive_gives_the_class_of_requests_that_state_none(serve):
    model = serve("ordered", config={"shunter": {"class": "best_effort"}})
    gate, futures = model.hold()
    futures += [model.queue("default"), model.queue("stated", headers=STRICT)]
    gate.open()
    _results(futures)
    assert model.order() == ["held", "stated", "default"]
    if model.tells_more:
        assert model.state()["counters"]["arrivals"] == {"strict": 1, "best_effort": 2}


def test_class_and_deadline_in_a_grpc_input_count_and_are_not_seen_by_the_handler(
    serve, grpc_client
):
    model = serve()
    marks = {"x-shunter-class": b"best-effort", "x-shunter-deadline-ms": b"50000"}
    answer = grpc_client.predict(model.name, {"data": b'{"id": "g"}', **marks})
    assert b"x-shunter" not in answer and b'"data"' in answer
    assert model.state()["counters"]["arrivals"] == {"strict": 0, "best_effort": 1}


def test_a_class_in_the_header_of_a_kserve_request_counts(serve):
    model = serve()
    model.ask(path=f"/v2/models/{model.name}/infer", headers=BEST_EFFORT)
    assert model.state()["counters"]["arrivals"] == {"strict": 0, "best_effort": 1}


@pytest.mark.both_servers
def test_a_best_effort_request_that_waited_long_goes_before_strict_ones(serve, wait_until):
    model = serve("ageing")
    gate, futures = model.hold()
    futures.append(model.queue("b0", headers=BEST_EFFORT))
    futures += [model.queue(f"s{i}", headers=STRICT) for i in range(3)]
    wait_until("b0 is old", lambda: model.state()["queue"]["oldest_wait_ms"] >= 400)
    gate.open()
    _results(futures)
    assert model.order() == ["held", "b0", "s0", "s1", "s2"]


@pytest.mark.parametrize("name", ["ageing", "ageing-ahead"])
@pytest.mark.both_servers
def test_constant_strict_load_does_not_starve_best_effort_requests(serve, load, wait_until, name):
    """Four clients and one worker: whenever it is free, strict requests wait."""
    model = serve(name)
    with load(model, clients=4, headers=STRICT, sleep_ms=20) as clients:
        wait_until("the load runs", lambda: len(clients.answers) > 4)
        answers = [model.ask(f"b{i}", headers=BEST_EFFORT) for i in range(2)]
        enough = len(clients.answers) + 4
        wait_until("the load still runs", lambda: len(clients.answers) > enough)
    assert [answer.status for answer in answers] == [200, 200]


def test_a_class_that_no_worker_serves_is_refused_instead_of_waiting_for_ever(serve):
    groups = [{"configuration": "1x0x4", "classes": ["strict"]}]
    model = serve(batch_size=4, config={"shunter": {"groups": groups}})
    refused = model.ask(headers=BEST_EFFORT)
    assert (refused.status, "no worker for class best_effort" in refused.text) == (503, True)
    assert model.ask(headers=STRICT).status == 200
    assert (model.count("rejected"), model.count("abandoned")) == (1, 0)


def test_a_request_that_must_run_alone_does_not_starve_under_load(serve, load, site):
    model = serve(batch_size=2)
    with load(model, clients=8, sleep_ms=2):
        described = site.management("GET", f"/models/{model.name}?customized=true")
    assert described[0]["customizedMetadata"] == {"described": model.pids()[0]}


@pytest.mark.both_servers
def test_a_batch_may_hold_both_classes_where_the_settings_say_so(serve):
    model = serve("mixing", batch_size=4)
    gate, futures = model.hold()
    futures += [model.queue(f"b{i}", headers=BEST_EFFORT) for i in range(3)]
    futures += [model.queue(f"s{i}", headers=STRICT) for i in range(2)]
    gate.open()
    _results(futures)
    assert model.order() == ["held", "s0", "s1", "b0", "b1", "b2"]
    assert [row["batch"] for row in model.ran()] == [1, 4, 4, 4, 4, 1]
