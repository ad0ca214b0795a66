"""A request whose deadline passes is told so in time, and nothing is dropped silently."""

import os
import signal

import pytest

pytestmark = pytest.mark.e2e

SHORT = {"x-shunter-deadline-ms": "500"}
"""Long enough to reach an idle worker, on a busy host too."""


@pytest.mark.both_servers
def test_a_request_that_cannot_be_met_is_answered_504_while_the_worker_is_still_busy(serve):
    model = serve("ordered")
    gate, held = model.hold()
    late = model.ask("late", headers=SHORT)  # comes back although the worker is held
    assert (late.status, held[0].done()) == (model.LATE, False)
    assert "deadline cannot be met" in late["message"]
    assert not model.tells_more or "ordered/1.0" in late["message"]
    assert (model.count("expired"), model.waiting()) == (1, 0)
    gate.open()
    assert held[0].result().status == 200
    assert model.ask("after").status == 200
    assert model.order() == ["held", "after"]


def test_an_expired_grpc_request_is_answered_deadline_exceeded(serve, grpc_client):
    import grpc

    model = serve("ordered")
    model.hold()
    inputs = {"data": b"{}", "x-shunter-deadline-ms": b"200"}
    with pytest.raises(grpc.RpcError) as error:
        grpc_client.predict(model.name, inputs, timeout_s=30)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "deadline cannot be met" in error.value.details()


@pytest.mark.both_servers
def test_the_slo_of_the_archive_is_the_deadline_of_strict_requests_that_state_none(serve):
    model = serve("ordered", config={"shunter": {"slo_ms": 200}})
    gate, held = model.hold()
    assert model.ask("late").status == model.LATE
    stated = model.queue("stated", headers={"x-shunter-deadline-ms": "600000"})
    best_effort = model.queue("best-effort", headers={"x-shunter-class": "best-effort"})
    assert model.ask("late again").status == model.LATE  # so the two above outlived the SLO
    gate.open()
    assert [f.result().status for f in (*held, stated, best_effort)] == [200] * 3
    assert model.count("expired") == 2
    assert not model.tells_more or model.state()["slo_ms"] == 200


@pytest.mark.both_servers
def test_an_answer_after_the_deadline_is_delivered_and_counted(serve):
    model = serve("ordered", max_batch_delay=1)  # nobody else's: what is predicted expires sooner
    gate, held = model.hold(headers=SHORT)
    assert model.ask("expires", headers=SHORT).status == model.LATE  # so is the first one, now
    gate.open()
    assert (held[0].result().status, held[0].result()["id"]) == (200, "held")
    assert (model.count("answered_late"), model.count("answered")) == (1, 1)


def test_nothing_with_a_deadline_waits_behind_a_worker_that_stands_still(serve, wait_until):
    model = serve(initial_workers=2)
    gate, held = model.hold()
    stopped = next(pid for pid in model.pids() if pid != model.ran()[0]["pid"])
    os.kill(stopped, signal.SIGSTOP)
    try:
        stuck = model.send("stuck")
        wait_until("it is sent", lambda: model.state()["in_flight"]["batches"] == 2)
        late = [model.send(f"late{number}", headers=SHORT) for number in range(20)]
        answers = [future.result() for future in late]  # comes back although nobody answers
        assert {answer.status for answer in answers} == {model.LATE}
        assert all("deadline cannot be met" in answer["message"] for answer in answers)
        assert (model.count("expired"), model.waiting()) == (20, 0)
        assert model.state()["in_flight"]["requests"] == 2 and not stuck.done()
    finally:
        os.kill(stopped, signal.SIGCONT)
        gate.open()
    assert [future.result().status for future in (*held, stuck)] == [200] * 2
    assert model.ask("after").status == 200
    assert (model.count("expired"), model.count("answered")) == (20, 3)


@pytest.mark.both_servers
@pytest.mark.support("`minWorkers`")
def test_the_client_timeout_of_torchserve_expires_requests_with_an_answer(serve):
    """Stock logs such a request and never answers it."""
    model = serve("ordered", config={"clientTimeoutInMills": 200})
    model.hold()
    assert model.ask("late").status == model.LATE
    assert model.count("expired") == 1


def _misses(site, model):
    reasons, labels = ("late", "expired", "rejected", "failed", "abandoned"), {"class": "strict"}
    name = "shunter_slo_missed_total"
    return {each: site.metric(name, model, reason=each, **labels) or 0 for each in reasons}


@pytest.mark.both_servers
def test_every_missed_deadline_has_one_reason(serve, site, wait_until):
    # Two workers: the crash is tried again at once, however long a new worker takes to come.
    model = serve("ordered", initial_workers=2, config={"jobQueueSize": 1})
    before = _misses(site, model)
    long = {"x-shunter-deadline-ms": "600000"}
    assert model.ask(headers=long).status == 200
    assert model.ask(headers=long, fail=True).status == model.FAILED
    killed = set(model.pids())
    assert model.ask(headers=long, crash=True).status == model.KILLED
    wait_until("it is back", lambda: not killed & set(model.pids()) and model.is_whole())
    assert model.ask(headers=long).status == 200
    gate, held = model.hold("one", "two", headers=SHORT)
    assert model.ask("expires", headers=SHORT).status == model.LATE  # the held ones are late, too
    waits = model.queue("waits", headers=long)
    if model.HAS_LIMIT:
        assert model.ask("no room", headers=long).status == 503
    gate.open()
    assert [future.result().status for future in (*held, waits)] == [200] * 3
    rejected = int(model.HAS_LIMIT)
    expected = {"late": 2, "expired": 1, "rejected": rejected, "failed": 2, "abandoned": 0}
    counters = model.state()["counters"]
    found = _misses(site, model)
    assert {reason: found[reason] - before[reason] for reason in found} == expected
    assert counters["slo_met"]["strict"] == 3
    assert counters["arrivals"]["strict"] == 3 + sum(expected.values())
