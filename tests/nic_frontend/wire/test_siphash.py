"""SipHash-2-4: the published vectors, and the C twin."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.nic_frontend.library import library
from shunter.nic_frontend.wire.siphash import siphash24

KEY = bytes(range(16))
PUBLISHED = (
    *("310e0edd47db6f72", "fd67dc93c539f874", "5a4fa9d909806c0d", "2d7efbd796666785"),
    *("b7877127e09427cf", "8da699cd64557618", "cee3fe586e46c9cb", "37d1018bf50002ab"),
    *("6224939a79f5f593", "b0e4a90bdf82009e", "f3b9dd94c5bb5d7a", "a7ad6b22462fb3f4"),
    *("fbe50e86bc8f1e75", "903d84c02756ea14", "eef27a8e90ca23f7", "e545be4961ca29a1"),
)
"""Tags of the first 0, 1, 2, ... bytes 00 01 02 ... under the key 00 01 ... 0f (the authors'
vectors.h)."""


@pytest.mark.parametrize("length", range(len(PUBLISHED)))
def test_the_published_vectors(length):
    tag = siphash24(KEY, bytes(range(length)))
    assert tag.to_bytes(8, "little").hex() == PUBLISHED[length]


@pytest.fixture(scope="module")
def in_c():
    """The C twin."""
    found = library()
    if found is None:
        pytest.skip("the C library is not built")
    function = found.shunter_siphash24
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    return function


@given(key=st.binary(min_size=16, max_size=16), data=st.binary(max_size=100))
def test_both_twins_give_the_same(in_c, key, data):
    assert in_c(key, data, len(data)) == siphash24(key, data)
