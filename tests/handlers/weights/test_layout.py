import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.handlers.weights.layout import (
    ALIGN,
    PAGE,
    SIZES,
    LayoutError,
    Record,
    header,
    header_bytes,
    parsed,
    placed,
)

TENSORS = st.lists(
    st.tuples(
        st.text("abc.|é", min_size=1),
        st.sampled_from(sorted(SIZES)),
        st.lists(st.integers(1, 5), max_size=3).map(tuple),
    ),
    min_size=1,
    unique_by=lambda each: each[0],
)


def whole(records, said=None):
    head = header(records, said or {})
    return head, len(head) + records[-1].end


@given(TENSORS)
def test_what_is_written_is_read_aligned_and_in_its_order(tensors):
    records = placed(tensors)
    head, size = whole(records, {"sha256": "x"})
    assert parsed(head, size) == (records, {"sha256": "x"})
    assert len(head) % PAGE == 0
    assert header_bytes(head) == len(head)
    assert all(each.begin % ALIGN == 0 for each in records)


@given(TENSORS, st.integers(-300, 300).filter(bool))
def test_a_file_of_another_size_is_refused(tensors, more):
    head, size = whole(placed(tensors))
    with pytest.raises(LayoutError):
        parsed(head, size + more)


GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
BAD = {
    "a type that is not known": {"a": {**GOOD["a"], "dtype": "F31"}},
    "a size that is not that of the shape": {"a": {**GOOD["a"], "data_offsets": [0, 7]}},
    "a shape below 0": {"a": {"dtype": "U8", "shape": [-2, -4], "data_offsets": [0, 8]}},
    "no offsets": {"a": {"dtype": "F32", "shape": [2]}},
    "a gap": {"a": {**GOOD["a"], "data_offsets": [64, 72]}},
    "an overlap": {**GOOD, "b": {**GOOD["a"], "data_offsets": [4, 12]}},
    "an address that is not aligned": {**GOOD, "b": {**GOOD["a"], "data_offsets": [8, 16]}},
    "a list": [],
    "an entry that is a list": {"a": []},
}


def in_file(content):
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize("fault", BAD)
def test_a_header_with_a_fault_is_refused(fault):
    parsed(in_file(GOOD), len(in_file(GOOD)) + 8)
    head = in_file(BAD[fault])
    for data in (0, 8, 12, 16, 72):
        with pytest.raises(LayoutError):
            parsed(head, len(head) + data)


@pytest.mark.parametrize("start", [b"", b"1234567", b"\xff" * 8, bytes(8)])
def test_a_length_that_is_none_is_refused(start):
    with pytest.raises(LayoutError):
        header_bytes(start)


def test_no_json_is_refused():
    with pytest.raises(LayoutError):
        parsed(bytes(20), 20)


def test_a_record_knows_its_end():
    assert Record("a", "BF16", (3, 5), 64).end == 94
