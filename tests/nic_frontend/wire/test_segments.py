"""How tensors are cut into segments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.nic_frontend.wire.layout import MAX_SEGMENTS
from shunter.nic_frontend.wire.segments import Segment, SegmentPlan, TooLarge


@pytest.mark.parametrize(
    ("sizes", "segment", "expected"),
    [
        ((0,), 4, [(0, 0, 0)]),
        ((0, 0), 4, [(0, 0, 0)]),
        ((1,), 4, [(0, 0, 1)]),
        ((4,), 4, [(0, 0, 4)]),
        ((5,), 4, [(0, 0, 4), (0, 4, 1)]),
        ((8,), 4, [(0, 0, 4), (0, 4, 4)]),
        ((5, 3), 4, [(0, 0, 4), (0, 4, 1), (1, 0, 3)]),
        ((0, 3, 0, 5), 4, [(1, 0, 3), (3, 0, 4), (3, 4, 1)]),
        ((3, 0), 4, [(0, 0, 3)]),
        ((3,), 1, [(0, 0, 1), (0, 1, 1), (0, 2, 1)]),
        ((2, 2), 65443, [(0, 0, 2), (1, 0, 2)]),
    ],
)
def test_a_plan(sizes, segment, expected):
    plan = SegmentPlan(sizes, segment)
    assert plan.count == len(expected)
    assert [plan.place(n) for n in range(plan.count)] == [Segment(*each) for each in expected]


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=8).map(tuple), st.integers(1, 400)
)
def test_segments_cover_every_byte_once_and_in_order(sizes, segment):
    try:
        plan = SegmentPlan(sizes, segment)
    except TooLarge:
        assert sum(-(-size // segment) for size in sizes) > MAX_SEGMENTS
        return
    parts = [plan.place(number) for number in range(plan.count)]
    covered = [(p.tensor, p.offset + i) for p in parts for i in range(p.length)]
    assert covered == [(t, i) for t, size in enumerate(sizes) for i in range(size)]
    assert all(p.length <= segment for p in parts)
    assert all(p.length for p in parts) or parts == [Segment(0, 0, 0)]


@pytest.mark.parametrize("number", [-1, 2, 65535])
def test_there_is_no_such_segment(number):
    with pytest.raises(IndexError):
        SegmentPlan((5,), 4).place(number)


def test_there_are_at_most_so_many():
    assert SegmentPlan((MAX_SEGMENTS * 4,), 4).count == MAX_SEGMENTS == 2048
    with pytest.raises(TooLarge, match="2049"):
        SegmentPlan((MAX_SEGMENTS * 4 + 1,), 4)


@pytest.mark.parametrize(
    ("sizes", "segment"), [((), 4), ((1,) * 65, 4), ((-1,), 4), ((4,), 0), ((4,), -4)]
)
def test_what_is_no_plan(sizes, segment):
    with pytest.raises(ValueError, match="no segments"):
        SegmentPlan(sizes, segment)
