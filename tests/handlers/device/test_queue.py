"""A worker whose model is on a device: what it computes, when it copies, what it leaves behind."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queue_front import QueueFront

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


@pytest.fixture
def worker(kit, front):
    made = kit.worker(front.end, BATCH, twice)
    yield made
    made.close()


def test_a_batch_is_any_set_of_entries(front, worker):
    choose = random.Random(1)
    batches = [[(first + i) % front.entries for i in range(3)] for first in range(front.entries)]
    batches += [choose.sample(range(front.entries), 1 + i % BATCH) for i in range(20)]
    for number, entries in enumerate(batches):
        values = [100 * number + i for i in range(len(entries))]
        front.come(*entries, values=values)
        assert front.run(worker, *entries) == [OK] * len(entries)
        assert front.answers(*entries) == [2 * value for value in values]


def sizes_of(front, count):
    queue = front.queue
    names = ["in"] * len(queue.inputs) + ["out"] * len(queue.outputs)
    specs = (*queue.inputs, *queue.outputs)
    return [(name, count * spec.bytes) for name, spec in zip(names, specs, strict=True)]


@pytest.mark.parametrize("entries", [(0, 1, 2, 3), (9, 2, 4, 3), (7,)], ids=str)
def test_a_batch_is_one_copy_for_each_tensor(fake, front, entries):
    worker = fake.worker(front.end, BATCH, twice)
    front.come(*entries)
    front.run(worker, *entries)
    assert fake.cuda.copies == sizes_of(front, len(entries))
    worker.close()


def test_tensors_are_at_the_same_place_for_every_batch(kit, front):
    """As captured graphs need them."""
    at = set()

    def infer(inputs, outputs):
        at.add(tuple(tensor.data_ptr() for tensor in (*inputs, *outputs)))

    worker = kit.worker(front.end, BATCH, infer)
    for entries in ((0, 1, 2), (5,), (3, 9, 1, 15)):
        front.come(*entries)
        front.run(worker, *entries)
    assert len(at) == 1
    worker.close()


@given(seed=st.integers(0, 2**32), pinned=st.booleans())
def test_in_whatever_order_the_device_works_each_answer_is_of_its_request(
    make_kit, front_type, seed, pinned
):
    kit, choose = make_kit(seed), random.Random(seed)
    if not pinned:
        kit.cuda.failing["cuMemHostRegister"] = kit.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    front = front_type()
    worker = kit.worker(front.end, BATCH, twice)
    for number in range(12):
        entries = choose.sample(range(front.entries), choose.randrange(1, BATCH + 1))
        if choose.random() < 0.5:
            entries = [(entries[0] + i) % front.entries for i in range(len(entries))]
        values = [1000 * number + entry for entry in entries]
        front.come(*entries, values=values)
        assert front.run(worker, *entries) == [OK] * len(entries)
        assert front.answers(*entries) == [2 * value for value in values]
    worker.close()
    assert not kit.cuda.live
    front.close()


# ---- what fails


def test_each_of_a_batch_that_fails_runs_again_alone(kit, front):
    seen = []

    def infer(inputs, outputs):
        values = inputs[1][:, 0].tolist()
        seen.append(values)
        inputs[1].zero_()  # it may write there
        if 2 in values:
            raise ValueError("two")
        outputs[0].fill_(values[0])

    worker = kit.worker(front.end, BATCH, twice)
    worker._infer = lambda inputs, outputs: kit.when_there(worker, infer, inputs, outputs)
    front.come(0, 1, 2, 3)
    assert front.run(worker, 1, 0, 2, 3) == [OK, OK, FAILED, OK]
    assert seen == [[1, 0, 2, 3], [1], [0], [2], [3]]
    assert front.answers(0, 1, 3) == [0, 1, 3]
    worker.close()


def test_a_batch_that_fails_is_over_on_the_device_when_it_is_answered(fake, front):
    worker = fake.worker(front.end, BATCH, twice)
    launch, ran = worker._infer, []

    def infer(inputs, outputs):
        launch(inputs, outputs)
        fake.cuda.launch(worker._stream(), lambda: ran.append(True))
        raise ValueError("behind its kernels")

    worker._infer = infer
    front.come(0)
    assert front.run(worker, 0) == [FAILED]
    assert ran == [True]
    worker.close()


def test_a_larger_batch_than_agreed_is_no_batch(front, worker):
    front.come(*range(BATCH + 1))
    with pytest.raises(OSError, match="a batch of 5; this worker takes 4"):
        worker.begin(front.give(*range(BATCH + 1)))


def test_when_the_device_fails_the_worker_ends(fake, front):
    worker = fake.worker(front.end, BATCH, twice)
    front.come(0)

    def infer(inputs, outputs):
        fake.cuda.broken = fake.cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS

    worker._infer = infer
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        front.run(worker, 0)
    worker.close()


@pytest.mark.parametrize("name", ["cuStreamCreate", "cuEventCreate", "cuMemAlloc"])
def test_a_worker_that_cannot_be_made_leaves_nothing_on_the_device(fake, front, name):
    fake.cuda.failing[name] = fake.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceError, match=f"{name}: CUDA_ERROR_OUT_OF_MEMORY"):
        fake.worker(front.end, BATCH, twice)
    fake.cuda.live.pop(1, None)  # the handler's stream
    assert set(fake.cuda.live) <= {"context"}


def test_a_closed_worker_leaves_nothing_on_the_device(fake, front):
    fake.worker(front.end, BATCH, twice).close()
    assert not fake.cuda.live


def test_tensors_without_bytes_have_the_shape_that_was_declared(kit):
    specs = [TensorSpec("nothing", "float32", (0, 3))], [TensorSpec("none", "int64", (2, 0))]
    shapes = []

    def infer(inputs, outputs):
        shapes.extend((tuple(tensor.shape), tensor.dtype) for tensor in (*inputs, *outputs))

    front = QueueFront(*specs, 8)
    for entry in (7, 2):
        front.arrive(entry, np.empty((0, 3)))
    worker = kit.worker(front.end, BATCH, infer)
    assert front.run(worker, 7, 2) == [OK, OK]
    worker.close()
    front.close()
    assert shapes == [((2, 0, 3), torch.float32), ((2, 2, 0), torch.int64)]
