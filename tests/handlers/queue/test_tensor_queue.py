"""How handlers come to tensors, and their results to the outputs."""

import errno

import numpy as np
import pytest
import torch
from queue_front import QueueFront

from shunter.batching.queue.attach import AttachError
from shunter.batching.queue.native import FrontEndError
from shunter.batching.queue.shared_memory import PAGE
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.tensor_queue import QueueWorker, infer_of, keep_inputs
from shunter.nic_frontend.wire.layout import WireStatus


class Base:
    """Of TorchServe's kind."""

    def __init__(self, *results):
        self.results = results

    def inference(self, *inputs):
        return self.results[0] if len(self.results) == 1 else self.results


def outputs():
    return [torch.full((2, 3), 7.0), torch.full((2,), 7)]


@pytest.mark.parametrize("scores", [torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int32)])
def test_results_are_copied_into_the_outputs(scores):
    found = outputs()
    infer_of(Base(scores, torch.tensor([1, 2])))([], found)
    assert found[0].tolist() == [[1.0] * 3] * 2 and found[1].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.ones(1, 3), r"float32 \(1, 3\), where the model declares torch.float32 \(2, 3\)"),
        (torch.ones(3), r"\(3,\)"),
        (torch.ones(()), r"\(\)"),
        (torch.ones(2, 3, dtype=torch.complex64), "complex64"),
    ],
)
def test_results_of_another_shape_or_kind_are_an_error(result, message):
    found = outputs()
    with pytest.raises(ValueError, match=message):
        infer_of(Base(result))([], found[:1])
    assert found[0].eq(7).all()


def test_another_number_of_results_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        infer_of(Base(torch.ones(2, 3)))([], outputs())


def test_what_a_handler_does_not_write_is_zero():
    class Own:
        def infer(self, inputs, outputs):
            outputs[0][0] = inputs[0]

    found = outputs()
    infer_of(Own())([torch.tensor(5.0)], found)
    assert found[0].tolist() == [[5.0] * 3, [0.0] * 3] and found[1].tolist() == [0, 0]


SPEC = TensorSpec("x", "float32", (PAGE // 16,))


@pytest.fixture
def front():
    """Four entries, whose requests are rows of 10, 11, 12 and 13."""
    made = QueueFront([SPEC], [SPEC], 4)
    for entry in range(4):
        made.arrive(entry, np.full(SPEC.shape, 10 + entry))
    yield made
    made.close()


@pytest.fixture
def make_worker(front):
    """Workers of that queue."""
    made = []

    def make(infer, batch=4):
        made.append(QueueWorker(front.end, infer, batch))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def in_place(seen):
    """A handler that works on its inputs themselves, and fails on a batch with 12 in it."""

    def infer(inputs, outputs):
        [x], [y] = inputs, outputs
        seen.append(x[:, 0].tolist())
        is_bad = len(x) > 1 and bool((x == 12).any())
        x.numpy()[:] *= 2  # torch does not see this
        if is_bad:
            raise RuntimeError("one of them is the cause")
        y.copy_(x)

    return infer


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "complex64"])
def test_types_that_numpy_lacks_reach_the_handler(dtype):
    spec = TensorSpec("x", dtype, (3,))
    front = QueueFront([spec], [spec], 4)
    seen = []

    def infer(inputs, outputs):
        seen.append((inputs[0].dtype, inputs[0].to(torch.complex64).real.tolist()))
        outputs[0].copy_(inputs[0])

    worker = QueueWorker(front.end, infer, 4)
    for entry in (1, 3):
        front.arrive(entry, [1, 2, entry])
    assert front.run(worker, 1, 3) == [200, 200]
    assert seen == [(getattr(torch, dtype), [[1, 2, 1], [1, 2, 3]])]
    assert front.results[0][[1, 3]].astype(complex).real.tolist() == [[1, 2, 1], [1, 2, 3]]
    worker.close()
    front.close()


SETS = [(0, 1, 2, 3), (3, 0, 1, 2), (2, 0, 3, 1), (1, 3, 2)]


@pytest.mark.parametrize("entries", SETS, ids=str)
def test_a_batch_is_any_set_of_entries_and_each_gets_its_own_results(front, make_worker, entries):
    seen = []

    def infer(inputs, outputs):
        seen.append(inputs[0][:, 0].tolist())
        outputs[0].copy_(2 * inputs[0])

    assert front.run(make_worker(infer), *entries) == [WireStatus.OK] * len(entries)
    assert seen == [[10.0 + entry for entry in entries]]
    found = front.results[0][:4]
    assert (found == found[:, :1]).all()
    assert [found[entry, 0] for entry in entries] == [2 * (10 + entry) for entry in entries]


@pytest.mark.parametrize("entries", SETS[:3], ids=str)
def test_a_batch_that_failed_runs_again_on_what_the_client_sent(front, make_worker, entries):
    front.may_run_twice(0, 2)
    seen = []
    statuses = front.run(make_worker(in_place(seen)), *entries)
    number = dict(zip(entries, statuses, strict=True))
    failed = WireStatus.HANDLER_FAILED
    assert number == {0: WireStatus.OK, 1: failed, 2: WireStatus.OK, 3: failed}
    assert sorted(seen[1:]) == [[10.0], [12.0]]
    assert front.results[0][[0, 2], 0].tolist() == [20, 24]


def test_the_input_is_left_as_it_came_for_whoever_runs_it_next(front, make_worker):
    before = [front.input_of(entry) for entry in range(4)]
    front.run(make_worker(in_place([])), 1, 3)  # if it died here, another would get these
    assert [front.input_of(entry) for entry in range(4)] == before


def test_inputs_are_at_the_same_place_for_every_batch(front, make_worker):
    at = set()

    def infer(inputs, outputs):
        at.add(inputs[0].data_ptr())

    worker = make_worker(infer)
    for entries in SETS:
        front.run(worker, *entries)
    assert len(at) == 1


def test_results_that_follow_one_another_are_written_where_they_are_sent_from(front, make_worker):
    at = []
    worker = make_worker(lambda inputs, outputs: at.append(outputs[0].data_ptr()))
    ring = front.queue.rings[0]
    for entries, first in (((2, 3, 0), None), ((2, 3), 2), ((0, 1), 0), ((0, 2), None), ((1,), 1)):
        front.run(worker, *entries)
        where = None if first is None else ring.address + first * SPEC.bytes
        inside = ring.address <= at[-1] < ring.address + ring.size
        assert at[-1] == where or (first is None and not inside)


def test_the_bytes_that_are_gathered_are_counted(front, make_worker):
    worker = make_worker(lambda inputs, outputs: None)
    front.run(worker, 1, 3)
    front.run(worker, 2)
    word = front.queue.words[front.queue.worker(0, "worker_gathered")]
    assert word == 3 * SPEC.bytes


def test_a_larger_batch_than_agreed_is_no_batch(front, make_worker):
    worker = make_worker(lambda inputs, outputs: None, batch=2)
    with pytest.raises(OSError, match="a batch of 3; this worker takes 2"):
        worker.begin(front.give(0, 1, 2))


def test_pieces_that_are_no_tensors_end_the_worker(front, make_worker):
    front.queue.words[front.queue.entry(1, "entry_pieces")] = 0
    worker = make_worker(lambda inputs, outputs: None)
    with pytest.raises(OSError, match="the inputs of a batch") as raised:
        worker.begin(front.give(0, 1))
    assert raised.value.errno == errno.EPROTO


def test_a_batch_of_the_page_that_cannot_be_ends_the_worker(front):
    queue = front.queue
    queue.words[queue.worker(0, "batch_first") + 1] = queue.entries
    queue.words[queue.worker(0, "batch_count") + 1] = 1
    queue.words[queue.worker(0, "batch_number")] = 1
    with pytest.raises(OSError, match="waiting for a batch") as raised:
        front.end.wait((), 0, 0)
    assert raised.value.errno == errno.EPROTO


@pytest.mark.parametrize("error", [FileNotFoundError("a file"), BrokenPipeError(), EOFError()])
def test_what_a_handler_says_of_files_and_sockets_is_not_said_of_the_front_end(
    front, make_worker, error
):
    def infer(inputs, outputs):
        if bool((inputs[0] == 12).any()):
            raise error
        outputs[0].copy_(inputs[0])

    front.may_run_twice(*range(4))
    worker = make_worker(infer)
    assert front.run(worker, 1, 2, 3) == [WireStatus.OK, WireStatus.HANDLER_FAILED, WireStatus.OK]
    assert front.run(worker, 0) == [WireStatus.OK]


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(), AttachError("what?")])
def test_a_front_end_that_ends_where_inputs_are_looked_for_ends_the_worker(
    front, make_worker, error
):
    def look():
        raise error

    front.queue.words[front.queue.entry(1, "entry_pieces")] = 0
    front.end.look = look
    worker = make_worker(lambda inputs, outputs: None)
    with pytest.raises(FrontEndError, match="listening to the front end"):
        worker.begin(front.give(0, 1))


def test_kept_inputs_are_those_before_the_handler_wrote():
    given, results = [torch.tensor([255.0])], [torch.zeros(1)]
    again = keep_inputs(given, results)
    given[0] /= 255
    inputs, found = again()
    assert inputs[0].tolist() == [255.0]
    assert found is results
