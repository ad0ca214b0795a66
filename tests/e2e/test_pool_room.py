"""Models that share a process: what it has no room for waits, and grows, in the server."""

import pytest

pytestmark = pytest.mark.e2e


def test_a_batch_that_finds_no_room_grows_until_there_is_some(serve, wait_until):
    shared = {"shunter": {"pool": "shared"}}
    a, b, c = (serve(config=shared, batch_size=4) for _ in range(3))
    workers = [w for model in (a, b, c) for g in model.state()["groups"] for w in g["workers"]]
    assert [worker["pool"] for worker in workers] == [0, 0, 0]
    gate, first = a.hold("a")
    second = b.send("b")
    wait_until("it is there", lambda: b.state()["in_flight"]["batches"] == 1)
    others = [c.queue(name) for name in ("c1", "c2", "c3")]
    state = c.state()
    assert (state["waits_for_room"], state["in_flight"]["batches"]) == (1, 0)
    assert b.state()["waits_for_room"] == 0
    gate.open()
    assert {future.result().status for future in (*first, second, *others)} == {200}
    assert [future.result()["batch"] for future in others] == [3, 3, 3]
    assert c.state()["waits_for_room"] == 0


def pooled(**section):
    return {"shunter": {"pool": "shared", **section}}


@pytest.mark.both_servers
def test_strict_requests_are_answered_in_the_midst_of_best_effort_in_one_process(
    serve, wait_until
):
    low = serve(handler="layers", config=pooled(**{"class": "best_effort"}))
    others = [serve(handler="layers", config=pooled()) for _ in range(2)]
    # By what they are asked, Triton's models do not stay for the next test: they share a process.
    alone = [model.ask(x=number, sleep_ms=0).json for number, model in enumerate([low, *others])]
    assert len({each["pid"] for each in alone}) == 1
    gate, [held] = low.hold("held", x=0)
    later = low.send("later", x=0)  # there, or in its queue: it is in nobody's way
    for number, model in enumerate(others, 1):
        for _ in range(2):
            answer = model.ask(x=number, sees=gate.mark["gate"]).json
            assert (answer["y"], answer["saw"]) == (alone[number]["y"], False)
            assert (answer["pid"], answer["mode"]) == (alone[0]["pid"], False)
    assert not held.done()
    gate.open()
    for future in (held, later):
        answer = future.result()
        assert (answer.status, answer["y"]) == (200, alone[0]["y"]), answer


@pytest.mark.both_servers
def test_a_strict_request_waits_for_best_effort_that_is_not_preemptible(serve, wait_until):
    low = serve(
        handler="layers", config=pooled(**{"class": "best_effort", "preemptible": False})
    )
    model = serve(handler="layers", config=pooled())
    low.ask(sleep_ms=0)
    gate, [held] = low.hold("held")
    waits = model.send("waits", sleep_ms=0, sees=gate.mark["gate"])
    wait_until("it is there", lambda: model.state()["in_flight"]["batches"] == 1)
    gate.open()
    assert held.result().status == 200
    assert waits.result()["saw"]
