"""A worker whose model is on a device: what it computes, when it copies, what it leaves behind."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import DeviceError
from shunter.nic_frontend.wire.layout import WireStatus

BATCH = 4
OK, FAILED = WireStatus.OK, WireStatus.HANDLER_FAILED


def twice(inputs, outputs):
    """The model of most tests; it looks at every number."""
    assert all(tensor.is_contiguous() for tensor in inputs)
    right = (inputs[0] == inputs[0][:, :1]).all() & (inputs[1] == inputs[0][:, :1]).all()
    outputs[0].copy_(torch.where(right, 2 * inputs[1], -1))


@pytest.fixture(params=[True, False], ids=["mapped", "mirrored"])
def front(request, kit, make_front):
    return make_front(kit, mapped=request.param)


@pytest.fixture
def worker(kit, front):
    made = kit.worker(front.queue, BATCH, twice)
    yield made
    made.close()


def test_every_batch_is_one_view_wherever_it_begins(front, worker):
    for first in range(front.entries):
        for size in range(1, BATCH + 1):
            values = [100 * first + i for i in range(size)]
            for i, value in enumerate(values):
                front.arrive(first + i, value)
            front.give(first, size)
            assert worker.run(first, size) == [OK] * size
            assert front.results(first, size) == [2 * value for value in values]


def test_requests_that_wait_are_copied_while_others_run(front, worker):
    for entry in range(2 * BATCH):
        front.arrive(entry, entry)
    for first in (0, BATCH):
        front.give(first, BATCH)
        worker.run(first, BATCH)
        assert front.results(first, BATCH) == [2 * (first + i) for i in range(BATCH)]


def test_an_entry_that_is_used_again_is_copied_again(front, worker):
    for value in range(5):
        front.arrive(3, value)
        front.arrive(4, 100)
        front.give(4, 1)
        worker.run(4, 1)  # 3 may go ahead meanwhile
        front.spoil(3)
        front.arrive(3, value + 10)
        front.give(3, 1)
        worker.run(3, 1)
        assert front.results(3, 1) == [2 * (value + 10)]


def test_a_batch_is_one_copy_for_each_tensor(fake, make_front):
    front = make_front(fake)
    worker = fake.worker(front.queue, BATCH, twice)
    for entry in range(BATCH):
        front.arrive(entry, entry)
    front.give(0, BATCH)
    worker.run(0, BATCH)
    sizes = [BATCH * spec.bytes for spec in (*front.queue.inputs, *front.queue.outputs)]
    assert fake.cuda.copies == list(zip(["in", "in", "out"], sizes, strict=True))
    worker.close()


def test_what_arrives_while_the_device_works_is_not_copied_when_it_is_given(fake, make_front):
    front = make_front(fake)
    worker = fake.worker(front.queue, BATCH, twice)
    coming = iter(range(1, 1 + BATCH))

    def arrive():
        if entry := next(coming, None):
            front.arrive(entry, entry)

    fake.cuda.on_query = arrive
    front.arrive(0, 0)
    front.give(0, 1)
    worker.run(0, 1)
    assert next(coming, None) is None, "the device was too fast for this test"
    fake.cuda.copies.clear()
    front.give(1, BATCH)
    worker.run(1, BATCH)
    copied = sum(size for direction, size in fake.cuda.copies if direction == "in")
    late = copied // sum(spec.bytes for spec in front.queue.inputs)
    assert late <= 1  # the last may have come when the batch was done
    assert front.results(1, BATCH) == [2, 4, 6, 8]
    worker.close()


def test_at_most_one_batch_is_copied_ahead_and_the_oldest_first(fake, make_front):
    front = make_front(fake)
    worker = fake.worker(front.queue, BATCH, twice)
    launch, before = worker._infer, []

    def infer(inputs, outputs):
        before.append(sum(size for direction, size in fake.cuda.copies if direction == "in"))
        fake.cuda.copies.clear()
        launch(inputs, outputs)

    worker._infer = infer
    for entry in (0, *range(12, 0, -1)):
        front.arrive(entry, entry)
    for first, size in ((0, 1), (9, BATCH), (1, BATCH)):
        front.give(first, size)
        worker.run(first, size)
        assert front.results(first, size) == [2 * (first + i) for i in range(size)]
    each = sum(spec.bytes for spec in front.queue.inputs)
    # With the first batch 12, 11, 10 and 9 were copied; with the second 8, 7, 6 and 5.
    assert before == [each, BATCH * each, 2 * BATCH * each]
    worker.close()


class Play:
    """Requests come and go at random around the workers of a queue, one of each kit."""

    def __init__(self, kits, front, seed):
        self.front = front
        self.random = random.Random(seed)
        self.workers = [kit.worker(front.queue, BATCH, twice) for kit in kits]
        self.values, self.running = {}, set()
        self.last = 0
        for kit in kits:
            kit.cuda.on_query = kit.cuda.on_copy = self.disturb

    def disturb(self):
        """Something comes, or what waits is withdrawn and replaced."""
        entry = self.random.randrange(self.front.entries)
        if self.random.random() < 0.5 or entry in self.running:
            return
        self.front.spoil(entry)
        self.values.pop(entry, None)
        if self.random.random() < 0.8:
            self.last += 1
            self.values[entry] = self.last
            self.front.arrive(entry, self.last)

    def batch(self):
        """A run of entries that wait goes to a worker."""
        first = self.random.randrange(self.front.entries)
        run = []
        while len(run) < BATCH and (first + len(run)) % self.front.entries in self.values:
            run.append((first + len(run)) % self.front.entries)
        if not run:
            self.disturb()
            return
        self.running = set(run)
        wanted = [2 * self.values.pop(entry) for entry in run]
        self.front.give(first, len(run))
        assert self.random.choice(self.workers).run(first, len(run)) == [OK] * len(run)
        assert self.front.results(first, len(run)) == wanted
        self.running = set()


@given(seed=st.integers(0, 2**32), mapped=st.booleans(), pinned=st.booleans())
def test_whatever_comes_in_whatever_order_each_worker_sees_its_requests(
    make_kit, front_type, seed, mapped, pinned
):
    kits = [make_kit(seed), make_kit(seed + 1)]  # processes of their own
    if not pinned:
        for kit in kits:
            kit.cuda.failing["cuMemHostRegister"] = kit.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    front = front_type(kits[0], mapped=mapped)
    play = Play(kits, front, seed)
    for _ in range(20):
        play.batch()
    for worker in play.workers:
        worker.close()
    assert not any(kit.cuda.live for kit in kits)
    front.close()


# ---- what fails


def test_each_of_a_batch_that_fails_runs_again_alone(kit, make_front):
    front = make_front(kit)
    seen = []

    def infer(inputs, outputs):
        values = inputs[1][:, 0].tolist()
        seen.append(values)
        inputs[1].zero_()  # it may write there
        if 2 in values:
            raise ValueError("two")
        outputs[0].fill_(values[0])

    worker = kit.worker(front.queue, BATCH, twice)
    worker._infer = lambda inputs, outputs: kit.when_there(worker, infer, inputs, outputs)
    for entry in range(4):
        front.arrive(entry, entry)
    front.give(0, 4)
    assert worker.run(0, 4) == [OK, OK, FAILED, OK]
    assert seen == [[0, 1, 2, 3], [0], [1], [2], [3]]
    assert front.results(0, 2) + front.results(3, 1) == [0, 1, 3]
    worker.close()


def test_a_batch_that_fails_is_over_on_the_device_when_it_is_answered(fake, make_front):
    front = make_front(fake)
    worker = fake.worker(front.queue, BATCH, twice)
    launch, ran = worker._infer, []

    def infer(inputs, outputs):
        launch(inputs, outputs)
        fake.cuda.launch(worker._stream(), lambda: ran.append(True))
        raise ValueError("behind its kernels")

    worker._infer = infer
    front.arrive(0, 1)
    front.give(0, 1)
    assert worker.run(0, 1) == [FAILED]
    assert ran == [True]
    worker.close()


def test_a_larger_batch_than_agreed_is_refused_without_touching_memory(front, worker):
    for entry in range(BATCH + 1):
        front.arrive(entry, entry)
    front.give(0, BATCH + 1)
    assert worker.run(0, BATCH + 1) == [OK] * (BATCH + 1)  # one by one
    assert front.results(0, BATCH + 1) == [2 * i for i in range(BATCH + 1)]


def test_when_the_device_fails_the_worker_ends(fake, make_front):
    front = make_front(fake)
    worker = fake.worker(front.queue, BATCH, twice)
    front.arrive(0, 1)
    front.give(0, 1)

    def infer(inputs, outputs):
        fake.cuda.broken = fake.cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS

    worker._infer = infer
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        worker.run(0, 1)
    worker.close()


FUNCTIONS = [
    *("cuStreamCreate", "cuEventCreate", "cuMemCreate", "cuMemAddressReserve", "cuMemMap"),
    *("cuMemSetAccess", "cuMemAlloc", "cuMemGetAllocationGranularity"),
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_worker_that_cannot_be_made_leaves_nothing_on_the_device(fake, make_front, name):
    front = make_front(fake)
    fake.cuda.failing[name] = fake.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceError, match=f"{name}: CUDA_ERROR_OUT_OF_MEMORY"):
        fake.worker(front.queue, BATCH, twice)
    fake.cuda.live.pop(1, None)  # the handler's stream
    assert set(fake.cuda.live) <= {"context"}


def test_a_closed_worker_leaves_nothing_on_the_device(fake, make_front):
    for mapped in (True, False):
        fake.worker(make_front(fake, mapped=mapped).queue, BATCH, twice).close()
        assert not fake.cuda.live


def test_tensors_without_bytes_have_the_shape_that_was_declared(kit):
    specs = [TensorSpec("nothing", "float32", (0, 3))], [TensorSpec("none", "int64", (2, 0))]
    shapes = []

    def infer(inputs, outputs):
        shapes.extend((tuple(tensor.shape), tensor.dtype) for tensor in (*inputs, *outputs))

    with TensorQueue.create(1, *specs, 8) as queue:
        worker = kit.worker(queue, BATCH, infer)
        assert worker.run(7, 2) == [OK, OK]
        worker.close()
    assert shapes == [((2, 0, 3), torch.float32), ((2, 2, 0), torch.int64)]
