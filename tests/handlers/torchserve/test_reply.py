import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ts.context import Context, RequestProcessor
from ts.protocol.otf_message_handler import create_predict_response
from ts.utils.util import PredictionException

from shunter.handlers.torchserve.reply import failure_reply, success_reply

results = st.one_of(
    st.binary(max_size=20),
    st.binary(max_size=20).map(bytearray),
    st.text(max_size=20),
    st.lists(st.floats(), max_size=5),
    st.dictionaries(st.text(max_size=4), st.floats(), max_size=4),
    st.none(),
    st.integers(),
    st.just({"nested": [1, {"deep": []}]}),
    st.just(torch.arange(3)),
    st.just((1, 2)),
)
header_items = st.lists(
    st.sampled_from(
        [
            ("content-type", "application/json"),
            ("content-type", "text/plain"),
            ("content-type", ""),
            ("x-one", "1"),
            ("é", "ü"),
            ("ts_stream_next", "true"),
            ("ts_stream_next", "false"),
        ]
    ),
    max_size=3,
)
statuses = st.sampled_from(
    [None, (200, ""), (201, "Created"), (404, "Nothing"), (None, "odd"), (507, "")]
)
criteria = st.sampled_from([None, True, False])
requests = st.tuples(st.text(max_size=8), results, header_items, statuses, criteria)


def make_context(batch, with_criteria):
    context = Context("m", ".", None, 1, None, "0.12")
    context.request_processor = [RequestProcessor({}) for _ in batch]
    for index, (_, _, headers, status, _) in enumerate(batch):
        for name, value in headers:
            context.set_response_header(index, name, value)
        if status is not None:
            context.set_response_status(*status, index)
    if with_criteria:
        context.stopping_criteria = [lambda result, stop=stop: stop for *_, stop in batch]
    return context


def both(batch, with_criteria=False):
    ids = {index: request_id for index, (request_id, *_) in enumerate(batch)}
    values = [value for _, value, *_ in batch]
    stock = create_predict_response(
        values, ids, "Prediction success", 200, make_context(batch, with_criteria)
    )
    return bytes(stock), bytes(success_reply(values, ids, make_context(batch, with_criteria)))


@settings(deadline=None, database=None)
@given(batch=st.lists(requests, max_size=4), with_criteria=st.booleans())
def test_replies_have_the_bytes_of_torchserve(batch, with_criteria):
    stock, ours = both(batch, with_criteria)
    assert ours == stock


def test_a_plain_reply_has_the_golden_bytes():
    _, ours = both([("id", b"body", [], None, None)])
    assert ours == (
        struct.pack("!i", 200)
        + b"\0\0\0\x12Prediction success"
        + b"\0\0\0\x02id"
        + b"\0\0\0\0"
        + struct.pack("!i", 200)
        + b"\0\0\0\0\0\0\0\0"
        + b"\0\0\0\x04body"
        + b"\xff\xff\xff\xff"
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, [object()], {(1,): 2}, [torch.ones(1)]])
def test_a_result_without_json_fails_the_batch_as_in_torchserve(value, caplog):
    stock, ours = both([("a", [1.0], [], None, None), ("b", value, [], None, None)])
    assert ours == stock
    assert b"Unsupported model output data type." in ours
    assert caplog.text.count("Unable to serialize model output.") == 2


CIRCLE = []
CIRCLE.append(CIRCLE)
DEEP = []
for _ in range(100_000):
    DEEP = [DEEP]


class Unsavable(torch.Tensor):
    def __reduce_ex__(self, protocol):
        raise NotImplementedError


@pytest.mark.parametrize(
    "value",
    [CIRCLE, DEEP, "\ud800", torch.ones(1).as_subclass(Unsavable)],
    ids=["circle", "deep", "half a surrogate pair", "tensor"],
)
def test_what_cannot_be_encoded_fails_the_batch_and_not_the_worker(value, caplog):
    reply = success_reply([value], {0: "a"}, make_context([("a", value, [], None, None)], False))
    assert reply == failure_reply({0: "a"}, "Unsupported model output data type.", 503)
    assert "Unable to serialize model output." in caplog.text


def test_lengths_are_those_of_bytes_for_that_is_how_they_are_read():
    """TorchServe's own encoder has them wrong: its front end loses its place in the stream."""
    batch = [("id", b"body", [("content-type", "text/ü")], (400, "Ungültig"), None)]
    reply = success_reply([b"body"], {0: "id"}, make_context(batch, False))

    def field(text):
        return struct.pack("!i", len(text.encode())) + text.encode()

    number = struct.pack("!i", 400)
    headers = struct.pack("!i", 1) + field("content-type") + field("text/ü")
    described = field("text/ü") + number + field("Ungültig") + headers
    assert reply.endswith(field("id") + described + field("body") + b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("headers", "status"),
    [([("x", 1)], None), ([("content-type", 5)], None), ([], ("200", "")), ([], (200, 5))],
)
def test_headers_and_statuses_of_wrong_type_raise_as_in_torchserve(headers, status):
    batch = [("a", b"", headers, status, None)]
    with pytest.raises(Exception) as stock:
        create_predict_response([b""], {0: "a"}, "Prediction success", 200, make_context(batch, 0))
    with pytest.raises((type(stock.value), AttributeError)):
        success_reply([b""], {0: "a"}, make_context(batch, 0))


def test_a_failed_batch_has_the_bytes_of_torchserve():
    error = PredictionException("zu groß", 413)
    ids = {0: "a", 1: "é"}
    stock = create_predict_response(None, ids, error.message, error.error_code)
    assert failure_reply(ids, error.message, error.error_code) == stock
