"""Tensors of any size as one run of bytes: its bytes as a table, round trips, and what is wrong."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.queue.packed import ALIGN, PackedError, Packing
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec, dtype_of

TOKENS = TensorSpec("tokens", "int32", (ANY,))
IMAGE = TensorSpec("image", BYTES, (1,))
NUMBERS = ("bool", "uint8", "int64", "float16", "float32", "complex64")
SMALL = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def test_the_bytes():
    packing = Packing((TOKENS, IMAGE))
    run = packing.pack([[1, 2, 3], [b"jpeg"]])
    sizes = struct.pack("<IIQQII", 1, 0, 12, 8, 3, 1)
    first = struct.pack("<3i", 1, 2, 3)
    assert bytes(run) == sizes.ljust(64, b"\0") + first.ljust(64, b"\0") + b"\4\0\0\0jpeg"


def test_rows_are_the_first_dimension():
    packing = Packing((TensorSpec("x", "float32", (2,)), TensorSpec("y", "int8", ())), batched=True)
    run = packing.pack([np.ones((3, 2)), [7, 8, 9]])
    assert struct.unpack_from("<IIQQI", run) == (3, 0, 24, 3, 2)
    rows, (x, y) = packing.unpack(run)
    assert (rows, x.shape, y.tolist()) == (3, (3, 2), [7, 8, 9])


@pytest.mark.parametrize("name", SMALL)
def test_types_that_numpy_lacks(name):
    packing = Packing((TensorSpec("x", name, (ANY,)),))
    _, (found,) = packing.unpack(packing.pack([np.array([1.5, -2], dtype_of(name))]))
    assert found.dtype == np.dtype(getattr(ml_dtypes, name)) and found.tolist() == [1.5, -2]


@pytest.mark.parametrize(
    ("specs", "batched", "tensors", "says"),
    [
        ((TOKENS,), False, [], "0 tensors"),
        ((TOKENS,), False, [[[1, 2]]], "tokens: "),
        ((TOKENS,), False, [["a"]], "no int32"),
        ((TOKENS,), False, [[1.5]], "no int32"),
        ((IMAGE,), False, [[b"a", b"b"]], "image: "),
        ((IMAGE,), False, [[3]], "byte string"),
        ((TOKENS, TOKENS), True, [[[1]], [[1], [2]]], "rows"),
        ((TOKENS,), True, [np.empty((0, 3), np.int32)], "rows"),
    ],
)
def test_what_cannot_be_packed(specs, batched, tensors, says):
    with pytest.raises(PackedError, match=says):
        Packing(specs, batched).pack(tensors)


def spec_and_tensor(rows):
    """A spec of any kind, and what a request may say for it."""

    @st.composite
    def made(draw):
        dtype = draw(st.sampled_from((*NUMBERS, *SMALL, BYTES)))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        declared = tuple(draw(st.sampled_from((ANY, n))) for n in shape)
        full = shape if rows is None else (rows, *shape)
        if dtype == BYTES:
            content = np.empty(full, object)
            for i in range(content.size):
                content.flat[i] = draw(st.binary(max_size=5))
        else:
            raw = draw(st.binary(min_size=int(np.prod(full, dtype=int)), max_size=300))
            content = np.resize(np.frombuffer(raw or b"\0", np.uint8) % 2, full)
            content = content.astype(dtype_of(dtype))
        return TensorSpec("x", dtype, declared), content

    return made()


@st.composite
def requests(draw):
    rows = draw(st.none() | st.integers(1, 4))
    found = draw(st.lists(spec_and_tensor(rows), min_size=1, max_size=64))
    return Packing(tuple(s for s, _ in found), rows is not None), [t for _, t in found], rows or 1


@given(requests())
def test_a_round_trip_changes_nothing(request):
    packing, tensors, rows = request
    run = packing.pack(tensors)
    assert packing.header % ALIGN == 0
    found_rows, found = packing.unpack(run)
    assert found_rows == rows
    for before, after in zip(tensors, found, strict=True):
        assert before.shape == after.shape and before.dtype == after.dtype
        assert before.tolist() == after.tolist()


@given(requests(), st.data())
def test_other_bytes_are_other_tensors_or_refused(request, data):
    packing, tensors, _ = request
    run = packing.pack(tensors)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(run) - 1))
        run[at] = data.draw(st.integers(0, 255))
    run = run[: data.draw(st.integers(0, len(run)))] if data.draw(st.booleans()) else run
    try:
        _, found = packing.unpack(run)
    except PackedError:
        return
    for spec, tensor in zip(packing.specs, found, strict=True):
        shape = tensor.shape[packing.batched :]
        assert all(n in (ANY, size) for n, size in zip(spec.shape, shape, strict=True))
