import json
import math
from collections import OrderedDict
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.handlers.torchserve.json_text import dumps


class Level(IntEnum):
    LOW = 1


scalars = st.one_of(
    st.floats(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.sampled_from([-0.0, math.nan, math.inf, -math.inf, 1e300, 5e-324, "\ud800", Level.LOW]),
    st.sampled_from([np.float64(0.1), np.float64("nan")]),
)
keys = st.one_of(
    st.text(max_size=5), st.integers(), st.floats(), st.booleans(), st.none(), st.just(Level.LOW)
)
flat = st.one_of(st.lists(scalars, max_size=20), st.dictionaries(keys, scalars, max_size=8))
nested = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


def outcome(function, value):
    try:
        return function(value)
    except Exception as error:
        return type(error), str(error)


def stock(value):
    return json.dumps(value, indent=2)


@settings(deadline=None, database=None)
@given(value=flat)
def test_flat_values_are_written_as_the_standard_library_writes_them(value):
    assert dumps(value) == stock(value)


@settings(deadline=None, database=None)
@given(value=nested)
def test_nested_values_are_written_as_the_standard_library_writes_them(value):
    assert dumps(value) == stock(value)


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.5),
        [np.float32(0.5)],
        [np.int64(1)],
        {"a": np.int64(1)},
        {(1, 2): 3},
        {"a": [1], (1, 2): 3},
        {1: [2], "1": [3]},
        [b"bytes"],
        {1, 2},
        object(),
        [10**5000],
    ],
)
def test_values_without_json_fail_as_in_the_standard_library(value):
    ours, theirs = outcome(dumps, value), outcome(stock, value)
    assert ours == theirs


def test_deep_and_circular_values_end_as_in_the_standard_library():
    circular = [1]
    circular.append(circular)
    assert dumps([[[[[[[[[[[[1]]]]]]]]]]]]) == stock([[[[[[[[[[[[1]]]]]]]]]]]])
    assert outcome(dumps, circular) == outcome(stock, circular)


def test_the_fast_way_is_taken_for_numbers(monkeypatch):
    monkeypatch.setattr(json, "dumps", None)
    assert dumps([0.5, 1]) == "[\n  0.5,\n  1\n]"
    assert dumps({"a": 0.5}) == '{\n  "a": 0.5\n}'
    assert dumps([[0.5], []]) == "[\n  [\n    0.5\n  ],\n  []\n]"
