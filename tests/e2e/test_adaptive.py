"""What follows from what was seen: batches of all clients, predicted latency, admission."""

import itertools

import pytest

pytestmark = pytest.mark.e2e

BEST_EFFORT = {"x-shunter-class": "best-effort"}
WORK_MS = 40
"""Of a batch of the test handler, whatever its size."""
SLOW_MS, SHORT_MS = 500, "350"
"""Of a batch that takes long, and a deadline that comes before its end."""
SHORT = {"x-shunter-deadline-ms": SHORT_MS}
DELAY_MS = 2000
"""More than clients need to come back, on any machine."""


def _learn(model, batches=6):
    """Let the server see how long a batch takes; returns what it predicts for one request."""
    for _ in range(batches):
        assert model.ask(sleep_ms=WORK_MS).status == 200
    latency = model.state()["groups"][0]["latency"]
    return latency["fixed_ms"] + latency["per_request_ms"]


@pytest.mark.both_servers
def test_a_batch_is_as_large_as_the_clients_are_many(serve, load, wait_until):
    """Without a hold after the answer, batches of 1 and of the others take turns."""
    model = serve(batch_size=16, max_batch_delay=DELAY_MS)

    def batches():
        rows = {row["order"]: row["batch"] for row in model.ran()}
        return [rows[order] for order in sorted(rows)]

    for clients in (2, 5):
        with load(model, clients=clients, sleep_ms=WORK_MS):
            wait_until("the number is found", lambda n=clients: batches()[-5:] == [n] * 5)
            wait_until("it is told", lambda n=clients: model.state()["threshold"] > n - 1)
        wait_until("the last is answered", lambda: model.state()["in_flight"]["requests"] == 0)
        before = len(batches())
        for _ in range(4):  # at most the first of these is held back, and none for long
            assert model.ask().status == 200
        assert batches()[before:] == [1] * 4
        assert model.state()["threshold"] < clients


@pytest.mark.both_servers
def test_latency_is_predicted_per_worker_group_and_told_with_its_error(serve, site):
    model = serve(batch_size=4, max_batch_delay=1)
    assert model.state()["groups"][0]["latency"] is None
    predicted = _learn(model)
    assert WORK_MS / 2 < predicted < WORK_MS * 20
    parts = ("predicted_fixed", "predicted_request", "prediction_error")
    names = (f"shunter_{part}_seconds" for part in parts)
    fixed, request, error = (site.metric(name, model, group="0") for name in names)
    assert (fixed + request) * 1e3 == pytest.approx(predicted)
    assert 0 < error < 1


@pytest.mark.both_servers
def test_a_new_generation_forgets_the_latency_of_the_old_one(serve):
    model = serve(batch_size=4)
    _learn(model)
    model.begin_change()
    assert model.changed()["groups"][0]["latency"] is None


@pytest.mark.both_servers
def test_a_request_that_is_predicted_to_be_late_is_told_before_its_deadline(serve):
    model = serve("ordered")
    _learn(model)
    for _ in range(3):
        model.ask(sleep_ms=SLOW_MS)
    gate, held = model.hold()
    late = model.ask("late", headers={"x-shunter-deadline-ms": "300"})
    assert late.status == model.LATE
    if model.tells_more:
        waited_ms = int(late["message"].split("waited ")[1].split(" ms")[0])
        assert waited_ms < 300
    gate.open()
    assert held[0].result().status == 200


@pytest.mark.both_servers
def test_a_wrong_prediction_does_not_keep_a_free_worker_from_trying(serve):
    model = serve("ordered")
    for _ in range(5):
        assert model.ask(sleep_ms=SLOW_MS).status == 200
    predicted = model.state()["groups"][0]["latency"]
    assert predicted["fixed_ms"] + predicted["per_request_ms"] > 0.8 * SLOW_MS
    assert model.ask(headers=SHORT).status == 200


def test_admission_refuses_by_429_and_says_when_to_come_back(serve, grpc_client):
    import grpc

    model = serve("admitting")
    for _ in range(5):
        assert model.ask(sleep_ms=SLOW_MS).status == 200
    gate, held = model.hold()
    refused = model.ask(headers=SHORT)
    assert (refused.status, refused["code"]) == (429, 429)
    assert "ms late" in refused["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 10
    with pytest.raises(grpc.RpcError) as error:
        inputs = {"data": b"{}", "x-shunter-deadline-ms": SHORT_MS.encode()}
        grpc_client.predict(model.name, inputs, timeout_s=30)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    patient = model.queue("patient")  # without a deadline nothing is too late
    gate.open()
    assert [future.result().status for future in (*held, patient)] == [200, 200]
    assert model.ask(headers=SHORT).status == 200
    assert model.count("rejected") == 2


@pytest.mark.both_servers
def test_a_full_queue_takes_a_strict_request_in_place_of_the_youngest_best_effort_one(serve):
    model = serve("ordered", config={"jobQueueSize": 2})
    gate, held = model.hold()
    old, young = (model.queue(name, headers=BEST_EFFORT) for name in ("old", "young"))
    assert model.ask("one too many", headers=BEST_EFFORT).status == 503
    first = model.send("s1")
    assert young.result().status == 503
    assert "took this one's place" in young.result()["message"]
    second = model.send("s2")
    assert old.result().status == 503
    assert model.ask("s3").status == 503
    gate.open()
    assert [future.result().status for future in (*held, first, second)] == [200] * 3
    assert model.order() == ["held", "s1", "s2"]
    assert model.count("rejected") == 4


@pytest.mark.both_servers
def test_strict_requests_are_served_while_best_effort_floods_the_model(serve, load):
    """Both classes, one answer each, none starved: Load checks every answer."""
    model = serve(batch_size=4, initial_workers=2, config={"shunter": {"slo_ms": 20_000}})
    flood = load(model, clients=16, headers=BEST_EFFORT, sleep_ms=5)
    with flood, load(model, clients=2, sleep_ms=1) as strict:
        for _ in itertools.takewhile(lambda _: len(strict.answers) < 50, itertools.count()):
            assert model.ask("s").status == 200
    counters = model.state()["counters"]
    assert counters["answered"]["best_effort"] == len(flood.answers) > 0
    assert counters["slo_met"]["strict"] == counters["answered"]["strict"]
