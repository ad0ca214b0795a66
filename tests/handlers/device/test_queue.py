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
from shunter.handlers.queue import device_queue
from shunter.nic_frontend.wire.layout import WireStatus

BATCH, ENTRIES = 4, 16
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


# ---- several on their way


@pytest.fixture
def lazy(fake):
    """The fake device does nothing before somebody asks."""
    fake.cuda.eager_copies = False
    return fake


def begin(front, worker, *entries, values=None):
    front.come(*entries, values=values)
    worker.begin(front.give(*entries))


def test_the_kernels_of_the_next_batch_are_there_before_those_of_the_first_are_done(lazy, front):
    ran = []

    def infer(inputs, outputs):
        twice(inputs, outputs)
        ran.append(int(inputs[1][0, 0]))

    worker = lazy.worker(front.end, BATCH, infer)
    begin(front, worker, 3, 1)
    begin(front, worker, 6, 7, 8)
    assert not ran and len(lazy.cuda.synchronized) == 0
    kernels = len(lazy.cuda._streams[worker._stream()])
    assert worker.finished() is None and kernels > 4
    assert front.finish(worker) == [OK] * 2
    assert front.finish(worker) == [OK] * 3
    assert ran == [3, 6] and len(lazy.cuda.synchronized) == 0  # nobody waited for a stream
    assert front.answers(3, 1, 6, 7, 8) == [6, 2, 12, 14, 16]
    assert worker.finished() is None and worker.pause_ns() is None
    worker.close()


def test_batches_that_follow_one_another_each_get_their_own_results(kit, front):
    worker = kit.worker(front.end, BATCH, twice)
    begin(front, worker, 0, 1, values=[0, 1])
    for number in range(1, 40):
        one, other = (2 * number) % ENTRIES, (2 * number + 1) % ENTRIES
        begin(front, worker, other, one, values=[number, 7 * number])
        assert front.finish(worker) == [OK] * 2
    assert front.finish(worker) == [OK] * 2
    assert front.answers(other, one) == [2 * number, 14 * number]
    worker.close()


def test_only_a_batch_that_follows_another_is_copied_within_the_device(fake, front):
    worker = fake.worker(front.end, BATCH, twice)
    begin(front, worker, 0, 1)
    alone = len(fake.cuda.copies)
    begin(front, worker, 5, 2)
    more = [(kind if kind != "within" else "", size) for kind, size in fake.cuda.copies[alone:]]
    [*there, out], sizes = more, [size for _, size in sizes_of(front, 2)]
    assert [*there, out] == [
        *[("in", size) for size in sizes[:2]],
        *[("", size) for size in sizes],
        ("out", sizes[2]),
    ]
    for _ in range(2):
        front.finish(worker)
    worker.close()


def test_how_soon_to_ask_again_grows_with_what_has_been_waited(lazy, front, monkeypatch):
    now = 0
    monkeypatch.setattr(device_queue.time, "monotonic_ns", lambda: now)
    worker = lazy.worker(front.end, BATCH, twice)
    assert worker.pause_ns() is None
    begin(front, worker, 0)
    found = []
    for now in (0, 900_000, 2_000_000, 1_000_000_000):  # noqa: B007
        found.append(worker.pause_ns())
    assert found == [0, 0, 100_000, 500_000]
    begin(front, worker, 1)
    front.finish(worker)
    assert worker.pause_ns() == 0  # the next one's time begins
    front.finish(worker)
    worker.close()


@given(seed=st.integers(0, 2**32), pinned=st.booleans())
def test_however_many_are_on_their_way_each_answer_is_of_its_request(
    make_kit, front_type, seed, pinned
):
    kit, choose = make_kit(seed), random.Random(seed)
    if not pinned:
        kit.cuda.failing["cuMemHostRegister"] = kit.cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    front, held, number = front_type(), [], 0

    def infer(inputs, outputs):
        twice(inputs, outputs)
        inputs[0].zero_(), inputs[1].zero_()  # it may write there

    worker = kit.worker(front.end, BATCH, infer)
    launch = worker._infer

    def fails_at_times(inputs, outputs):
        launch(inputs, outputs)
        if choose.random() < 0.2:
            raise ValueError("behind its kernels")

    worker._infer = fails_at_times
    while number < 16 or held:
        if number < 16 and len(held) < 2 and choose.random() < 0.7:
            number += 1
            taken = {entry for entries, _ in held for entry in entries}
            free = [entry for entry in range(front.entries) if entry not in taken]
            entries = choose.sample(free, choose.randrange(1, BATCH + 1))
            values = [1000 * number + entry for entry in entries]
            held.append((entries, values))
            begin(front, worker, *entries, values=values)
        elif (found := worker.finished()) is not None:
            front.end.answer(*found)
            entries, values = held.pop(0)
            good = [i for i, status in enumerate(found[1]) if status == OK]
            assert found[0].entries[: found[0].count] == entries
            answers = [front.answers(entries[i]) for i in good]
            assert answers == [[2 * values[i]] for i in good]
    worker.close()
    assert not kit.cuda.live
    front.close()


def failing_on(value, fake, worker, ran):
    """Fails on batches with this value, when it has seen that of the first request."""
    launch = worker._infer

    def infer(inputs, outputs):
        fake.cuda.cuStreamSynchronize(worker._stream())
        found = inputs[1][:, 0].tolist()
        ran.append(found)
        if value in found:
            raise ValueError(value)
        launch(inputs, outputs)

    return infer


@pytest.mark.parametrize("which", [2, 5])
def test_a_batch_that_fails_is_tried_apart_when_those_before_it_are_answered(fake, front, which):
    ran = []
    worker = fake.worker(front.end, BATCH, twice)
    worker._infer = failing_on(which, fake, worker, ran)
    begin(front, worker, 1, 2)
    begin(front, worker, 5, 6)
    assert ran == [[1, 2], [5, 6]]
    first, second = front.finish(worker), front.finish(worker)
    wrong = {2: ([OK, FAILED], [OK, OK]), 5: ([OK, OK], [FAILED, OK])}
    assert (first, second) == wrong[which]
    assert ran[2:] == ([[1], [2]] if which == 2 else [[5], [6]])
    good = [entry for entry in (1, 2, 5, 6) if entry != which]
    assert front.answers(*good) == [2 * entry for entry in good]
    worker.close()


def test_a_device_that_fails_ends_the_worker_whatever_is_on_its_way(lazy, front):
    worker = lazy.worker(front.end, BATCH, twice)
    begin(front, worker, 0)
    begin(front, worker, 1)
    lazy.cuda.broken = lazy.cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        worker.finished()
    worker.close()


def test_a_worker_that_is_closed_with_batches_on_their_way_leaves_nothing(lazy, front):
    worker = lazy.worker(front.end, BATCH, twice)
    begin(front, worker, 0)
    begin(front, worker, 1)
    worker.close()
    assert not lazy.cuda.live


# ---- what fails


def test_each_of_a_batch_that_fails_runs_again_alone(kit, front):
    seen = []

    def infer(inputs, outputs):
        values = inputs[1][:, 0].tolist()
        seen.append(values)
        inputs[1].zero_()  # it may write there
        if 2 in values:
            raise FileNotFoundError("two")
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
