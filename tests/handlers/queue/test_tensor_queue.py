"""How handlers come to tensors, and their results to the outputs."""

import numpy as np
import pytest
import torch

from shunter.batching.queue.double_map import PAGE
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.tensor_queue import QueueWorker, infer_of, keep_inputs
from shunter.nic_frontend.wire.layout import Flags, WireStatus


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


@pytest.fixture
def queue():
    spec = TensorSpec("x", "float32", (PAGE // 16,))
    with TensorQueue.create(1, [spec], [spec], 4) as made:
        inputs, outputs = made.arrays()
        inputs[0][:4] = np.arange(10, 14, dtype=np.float32)[:, None]
        yield made, outputs[0]
        del inputs, outputs


def flag(queue, *entries):
    for entry in entries:
        queue.words[queue.entry(entry, "entry_flags")] = Flags.IDEMPOTENT


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


@pytest.mark.parametrize("first", [0, 3])
def test_a_batch_that_failed_runs_again_on_what_the_client_sent(queue, first):
    made, outputs = queue
    flag(made, 0, 2)
    seen = []
    worker = QueueWorker(made, in_place(seen))
    statuses = worker.run(first, 4)
    worker.close()
    number = {entry: statuses[(entry - first) % 4] for entry in range(4)}
    failed = WireStatus.HANDLER_FAILED
    assert number == {0: WireStatus.OK, 1: failed, 2: WireStatus.OK, 3: failed}
    assert sorted(seen[1:]) == [[10.0], [12.0]]
    assert outputs[[0, 2], 0].tolist() == [20, 24]
    del outputs


def test_what_may_run_twice_is_left_as_it_came_for_whoever_runs_it_next(queue):
    made, _ = queue
    flag(made, 1)
    worker = QueueWorker(made, in_place([]))
    assert worker.run(1, 1) == [WireStatus.OK]  # if this worker dies here, another gets the entry
    worker.close()
    assert made.arrays()[0][0][1, 0] == 11


def test_what_runs_once_is_the_memory_of_the_queue(queue):
    made, _ = queue
    at = []
    worker = QueueWorker(made, lambda inputs, outputs: at.append(inputs[0].data_ptr()))
    worker.run(2, 2)
    flag(made, 3)
    worker.run(2, 2)
    worker.close()
    ring = made.rings[0].address + 2 * PAGE // 4
    assert at[0] == ring
    assert at[1] != ring


def test_kept_inputs_are_those_before_the_handler_wrote():
    given, results = [torch.tensor([255.0])], [torch.zeros(1)]
    again = keep_inputs(given, results)
    given[0] /= 255
    inputs, found = again()
    assert inputs[0].tolist() == [255.0]
    assert found is results
