"""What a handler of TorchServe's kind sees and says where bodies come as byte strings."""

import json

import pytest
import torch

from shunter.batching.queue.tensor_spec import BYTES
from shunter.handlers.queue.tensor_config import (
    ANSWER,
    BODIES,
    TensorConfigError,
    bodies_config,
    is_of_bodies,
)
from shunter.handlers.torchserve.bodies import MOST_SAID, Bodies


class Metrics:
    """Takes what is measured and forgets it."""

    request_ids = None

    def add_time(self, *values):
        pass


class Context:
    def __init__(self):
        self.metrics, self.model_name = Metrics(), "m"

    def set_response_status(self, code, phrase, idx):
        self.request_processor[idx].report_status(code, phrase)


class Service:
    def __init__(self, entry):
        self._entry_point, self.context, self.cl_socket = entry, Context(), None

    def set_cl_socket(self, found):
        self.cl_socket = found


class Batch:
    """As much of a PackedBatch as is looked at."""

    def __init__(self, *rows):
        self.inputs = [list(each) for each in zip(*rows, strict=True)]
        self.failed = {}

    def __len__(self):
        return len(self.inputs[0])

    def fail(self, request, status):
        self.failed[request] = status


def test_the_handler_gets_what_torchserve_gives_it():
    seen = []

    def handle(data, context):
        headers = [each.get_request_property("x-user") for each in context.request_processor]
        seen.extend(zip([each["body"] for each in data], headers, strict=True))
        assert not torch.is_inference_mode_enabled()
        assert len(set(context.request_ids.values())) == len(data)
        return [1] * len(data)

    batch = Batch(
        (b'{"a": 1}', b"application/json; charset=utf-8", b'{"x-user": "ada"}'),
        (b"\xc3\xbc", b"text/plain", b""),
        (b"\xff", b"", b""),
    )
    with torch.inference_mode():
        assert Bodies(Service(handle)).infer(batch) == [b"1"] * 3
    assert seen == [({"a": 1}, "ada"), ("ü", None), (bytearray(b"\xff"), None)]
    assert batch.failed == {}


def test_a_bad_request_leaves_the_others_of_its_batch_alone():
    def handle(data, context):
        context.set_response_status(404, "Not Found", idx=1)
        return ["first", {"message": "nobody"}]

    batch = Batch((b"a", b"", b"[]"), (b"b", b"", b""), (b"c", b"", b""))
    wrong, first, second = Bodies(Service(handle)).infer(batch)
    assert wrong.startswith(b"400 headers")
    assert first == b"first"
    assert second.decode() == "404 Not Found: " + json.dumps({"message": "nobody"}, indent=2)
    assert batch.failed == {0: 400, 2: 404}


@pytest.mark.parametrize(
    ("status", "known"), [(200, None), (202, None), (400, 400), (100, 400), (507, 507), (999, 599)]
)
def test_a_status_is_an_answer_or_an_error(status, known):
    def handle(data, context):
        context.set_response_status(status, "", idx=0)
        return ["ü" * 2000]

    batch = Batch((b"a", b"", b""))
    [answer] = Bodies(Service(handle)).infer(batch)
    assert batch.failed.get(0) == known
    assert (len(answer) == 4000) == (known is None)
    if known:
        assert len(answer) <= MOST_SAID
        answer.decode()


def test_parts_are_refused_and_nothing_is_lost_of_the_next_batch():
    answers = []

    def handle(data, context):
        if data[0]["body"] == b"parts":
            context.cl_socket.sendall(b"part")
        answers.append(data)
        return ["whole"]

    bodies = Bodies(Service(handle))
    batch = Batch((b"parts", b"", b""))
    assert bodies.infer(batch) == [b"503 Prediction failed"]
    assert bodies.infer(Batch((b"a", b"", b""))) == [b"whole"]


def test_a_model_without_tensors_is_one_of_bodies():
    sizes = {"tensors": {"request_bytes": 5000}}
    assert is_of_bodies({}) and is_of_bodies(sizes)
    assert not is_of_bodies({"tensors": {"inputs": []}})
    assert not is_of_bodies({"tensors": 7})
    form = bodies_config(sizes)
    assert (form.inputs, form.outputs) == (BODIES, ANSWER)
    assert {each.dtype for each in form.inputs} == {BYTES}
    assert (form.packing.request_bytes, form.packing.optional) == (5000, 2)
    for wrong in ({"batched": True}, {"request_bytes": 1}, {"buckets": [8]}):
        with pytest.raises(TensorConfigError, match="allowed"):
            bodies_config({"tensors": wrong})
