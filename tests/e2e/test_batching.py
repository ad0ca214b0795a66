"""When a batch leaves and how large it may be, where stock TorchServe would wait."""

import time

import pytest

pytestmark = pytest.mark.e2e

LONG_MS = 3_600_000
"""A batch delay that nobody waits out: no request has so much time."""


def _held(model):
    """Requests that wait or run."""
    return model.state()["in_flight"]["requests"] + model.waiting()


@pytest.mark.both_servers
def test_a_lone_request_never_waits_out_the_batch_delay(serve, load, wait_until):
    model = serve(batch_size=8, max_batch_delay=LONG_MS)
    assert model.ask()["batch"] == 1
    with load(model, clients=8) as clients:  # raises the threshold
        wait_until("load", lambda: len(clients.answers) > 100)
    assert model.ask()["batch"] == 1


@pytest.mark.both_servers
def test_a_deliberate_wait_counts_from_the_arrival_in_the_queue(serve, wait_until):
    """Its settings make this model wait for four requests, or for its delay."""
    delay_ms = 3000
    model = serve("patient", batch_size=8, max_batch_delay=delay_ms)
    gate = model.gate()
    held = [model.send(f"h{i}", **gate.mark) for i in range(4)]
    gate.wait_reached("h0", "h1", "h2", "h3")
    lone = model.queue("lone")
    wait_until("its delay has passed", lambda: model.state()["queue"]["oldest_wait_ms"] >= delay_ms)
    assert not lone.done()
    opened = time.monotonic()
    gate.open()
    assert lone.result()["batch"] == 1
    assert time.monotonic() - opened < delay_ms / 1000, "it was made to wait once more"
    assert {future.result()["batch"] for future in held} == {4}


def test_a_model_may_wait_for_company_as_stock_does(serve):
    config = {"shunter": {"wait": "company"}}
    model = serve(config=config, batch_size=2, max_batch_delay=30_000, initial_workers=2)
    futures = [model.send(f"r{i}") for i in range(2)]
    assert [future.result()["batch"] for future in futures] == [2, 2]


@pytest.mark.both_servers
def test_two_idle_workers_run_two_batches_at_once(serve):
    """Stock holds the model's lock while a worker waits to fill its batch."""
    model = serve(batch_size=4, initial_workers=2, max_batch_delay=LONG_MS)
    gate, futures = model.hold("a", "b")  # b is reached while a runs
    gate.open()
    first, second = (future.result() for future in futures)
    assert first["pid"] != second["pid"]
    assert (first["batch"], second["batch"]) == (1, 1)


@pytest.mark.both_servers
def test_a_model_of_batch_size_1_is_never_batched(serve):
    model = serve("ordered")
    gate, _ = model.hold()
    waiting = [model.queue(f"q{i}") for i in range(5)]
    gate.open()
    assert [future.result()["batch"] for future in waiting] == [1] * 5


def test_a_model_of_batch_size_1_whose_archive_says_max_batch_is_batched(serve):
    model = serve("ordered", config={"shunter": {"max_batch": 4}})
    gate, _ = model.hold()
    waiting = [model.queue(f"q{i}") for i in range(9)]
    gate.open()
    assert [future.result()["batch"] for future in waiting] == [4] * 8 + [1]
    assert model.state()["batches"] == {"1": 2, "4": 2}


@pytest.mark.both_servers
def test_one_strict_batch_is_handed_to_a_busy_worker_ahead_of_time(serve, wait_until):
    """And no other, however many wait."""
    model = serve(batch_size=4)
    gate, futures = model.hold()
    futures.append(model.send("ahead"))
    wait_until("it is sent", lambda: model.state()["in_flight"] == {"requests": 2, "batches": 2})
    futures += [model.send(f"more {n}") for n in range(6)]
    wait_until("all are there", lambda: _held(model) == 8)
    # A Triton lets the batch grow to 4 until its worker takes it.
    ahead = 4 if model.site.name == "triton" else 1
    assert model.state()["in_flight"] == {"requests": 1 + ahead, "batches": 2}
    gate.open()
    assert [future.result().status for future in futures] == [200] * 8
    assert model.order()[:2] == ["held", "ahead"]


@pytest.mark.both_servers
def test_a_strict_request_overtakes_best_effort_ones_that_a_busy_worker_has_not_been_sent(
    serve, wait_until
):
    """While strict traffic is recent, best effort is never sent ahead."""
    model = serve("unhurried", batch_size=4)
    began = time.monotonic()
    gate, futures = model.hold()
    futures.append(model.send("b", headers={"x-shunter-class": "best-effort"}))
    wait_until("it came", lambda: model.waiting() or model.state()["in_flight"]["batches"] == 2)
    futures.append(model.send("s"))
    wait_until("one is sent", lambda: model.state()["in_flight"]["batches"] == 2)
    is_recent = time.monotonic() - began < 1
    gate.open()
    assert [future.result().status for future in futures] == [200] * 3
    if not is_recent:
        pytest.skip("the machine is so slow that either may be first")
    assert model.order() == ["held", "s", "b"]
