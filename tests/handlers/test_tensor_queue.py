"""How handlers come to tensors, and their results to the outputs."""

import pytest
import torch

from shunter.handlers.tensor_queue import infer_of


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
