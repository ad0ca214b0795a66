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
