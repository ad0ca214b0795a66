"""What the data path counts of a function's requests."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.telemetry import time_bucket
from shunter.batching.page.layout import (
    SIZE_BUCKETS,
    SLOT_FIELDS,
    TIME_BUCKET_SHIFT,
    TIME_BUCKETS,
    size_bucket,
)
from shunter.nic_frontend import build
from shunter.nic_frontend.server.structures import TelemetryStruct, telemetry_of

POWERS = [1 << k for k in range(64)]
NEAR = st.sampled_from(POWERS).flatmap(lambda n: st.sampled_from([n - 1, n, min(n + 1, 2**64 - 1)]))


@pytest.fixture(scope="module")
def library():
    return ctypes.CDLL(str(build.ensure()))


@given(NEAR | st.integers(0, 2**64 - 1))
def test_times_are_counted_by_the_buckets_of_the_page(library, ns):
    assert library.shunter_time_bucket(ctypes.c_uint64(ns)) == time_bucket(ns)


@given(st.integers(1, 2**32 - 1) | st.integers(1, 70))
def test_sizes_are_counted_by_the_buckets_of_the_page(library, size):
    assert library.shunter_size_bucket(ctypes.c_uint32(size)) == size_bucket(size)


def test_the_bounds_are_those_of_the_histogram_s_labels():
    bounds = [1 << TIME_BUCKET_SHIFT + k for k in range(TIME_BUCKETS - 1)]
    assert [time_bucket(ns) for ns in bounds] == list(range(TIME_BUCKETS - 1))
    assert [time_bucket(ns + 1) for ns in bounds] == list(range(1, TIME_BUCKETS))
    assert size_bucket(1 << SIZE_BUCKETS) == SIZE_BUCKETS - 1


def test_a_count_has_the_place_that_it_has_on_the_page():
    start = SLOT_FIELDS["network_arrivals"].offset
    for name, *_ in TelemetryStruct._fields_:
        assert getattr(TelemetryStruct, name).offset == SLOT_FIELDS[name].offset - start
    words = list(range(1, ctypes.sizeof(TelemetryStruct) // 8 + 1))
    told = telemetry_of(TelemetryStruct.from_buffer((ctypes.c_uint64 * len(words))(*words)))
    assert told.network_arrivals == (1, 2) and told.network_batch_requests == words[-1]
    assert told.network_latency_times == tuple(range(25, 25 + 2 * TIME_BUCKETS))
    assert told.network_attainment_ppm == (-1, -1)
