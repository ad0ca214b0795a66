"""What a pool process does when a device has less room than it said."""

from types import SimpleNamespace

from shunter.allocator.memory.scheduling import Waiting
from shunter.handlers.torchserve.pool.process import PoolProcess
from shunter.handlers.weights.hot_memory import NoRoom


class Models:
    """One that says that there is room, and then has none."""

    weights = SimpleNamespace(may_come_beside=lambda name: True)

    def inside(self, waiting, batch):
        raise NoRoom(waiting[0].name)


def test_who_finds_no_room_beside_a_batch_waits_for_its_end_and_is_no_fault_of_it():
    process = PoolProcess.__new__(PoolProcess)
    process._models, process._without_room = Models(), set()
    process._at_work = SimpleNamespace(name="low")
    passes = SimpleNamespace(may_pass=True, since=1.0)
    process._batches = {"a": passes, "b": passes}
    assert [each.name for each in process._that_pass()] == ["a", "b"]
    process._run_inside([Waiting("a", 1.0)])
    assert [each.name for each in process._that_pass()] == ["b"]
    assert set(process._batches) == {"a", "b"}
