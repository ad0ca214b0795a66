"""Tensor queues: memory that two processes map, and what is no queue."""

import ctypes
import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.queue.layout import MAX_ENTRIES, QUEUE_FIELDS, queue_bytes
from shunter.batching.queue.shared_memory import PAGE, Mapping, is_sealed, sealed_memory
from shunter.batching.queue.size import QueueError, entries_within
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec

INPUTS = (TensorSpec("a", "float32", (4, 16)), TensorSpec("n", "uint8", (0,)))
OUTPUTS = (TensorSpec("b", "int64", (32,)),)


@pytest.fixture
def queue():
    with TensorQueue.create(7, INPUTS, OUTPUTS, 16, 3) as queue:
        yield queue


def copies(queue):
    """Descriptors of the queue for another process."""
    return [os.dup(descriptor) for descriptor in queue.descriptors]


def mapped():
    return Path("/proc/self/maps").read_text().count("memfd:shunter")


# ---- memory


def test_two_mappings_are_of_the_same_memory():
    descriptor = sealed_memory("shunter-test", 2 * PAGE)
    with Mapping(descriptor, 2 * PAGE) as one, Mapping(descriptor, PAGE, writable=False) as other:
        os.close(descriptor)
        whole = np.frombuffer(one.bytes, np.uint8)
        whole[:] = np.arange(2 * PAGE) % 251
        assert np.array_equal(whole[:PAGE], np.frombuffer(other.bytes, np.uint8))


@pytest.mark.parametrize("size", [0, PAGE - 1, PAGE + 1, 2 * PAGE, 1 << 30])
def test_nobody_makes_sealed_memory_shorter_or_longer(size):
    descriptor = sealed_memory("shunter-test", PAGE)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert is_sealed(descriptor, PAGE) and not is_sealed(descriptor, PAGE + 1)
    finally:
        os.close(descriptor)


def test_other_memory_is_not_sealed(tmp_path):
    descriptor = os.memfd_create("shunter-test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, PAGE)
    with (tmp_path / "file").open("wb") as file:
        file.truncate(PAGE)
        assert not is_sealed(descriptor, PAGE) and not is_sealed(file.fileno(), PAGE)
    os.close(descriptor)


def test_there_is_no_room_for_too_much(open_descriptors):
    with pytest.raises(OSError, match="no memory for 8192 bytes"):
        sealed_memory("shunter-test", 2 * PAGE, PAGE)
    before = open_descriptors(), mapped()
    with pytest.raises(OSError, match="no memory"):
        TensorQueue.create(7, INPUTS, OUTPUTS, 16, 3, lambda: PAGE)
    assert (open_descriptors(), mapped()) == before


# ---- queues


SIZES = st.sampled_from([0, 4, 12, 600, 1024, 4096, 602_112])


def specs_of(*sizes):
    """Tensors of these sizes."""
    return [TensorSpec(f"t{i}", "uint8", (size,)) for i, size in enumerate(sizes)]


@given(
    sizes=st.lists(SIZES, min_size=2, max_size=6),
    batch=st.integers(1, MAX_ENTRIES),
    most=st.integers(1, 1 << 31),
)
def test_queues_keep_to_the_memory_that_they_may_take(sizes, batch, most):
    each = sum(sizes)
    try:
        entries = entries_within(specs_of(*sizes), batch, most)
    except QueueError as error:
        assert batch * each > most
        assert f"queue_mb allows {most >> 20}" in str(error)
        return
    assert entries * each <= most and batch <= entries <= MAX_ENTRIES
    assert entries >= min(2 * batch, MAX_ENTRIES) or (entries + 1) * each > most


@pytest.mark.parametrize(
    ("input_bytes", "output_bytes", "batch", "entries"),
    [
        (1024, 512, 4, 1024),
        (1024, 512, 4000, MAX_ENTRIES),  # which is less than two batches
        (602_112, 4096, 64, 128),
        (602_112, 12, 8, 111),  # 64 MB
        (602_113, 4097, 8, 110),  # tensors may have any size
        (602_112, 4096, 1, 110),
        (602_112, 4096, 160, 221),  # two batches would be more than 128 MB
        (0, 0, 3000, MAX_ENTRIES),
    ],
)
def test_how_many_entries_there_are_where_128_mb_are_allowed(
    input_bytes, output_bytes, batch, entries
):
    assert entries_within(specs_of(input_bytes, output_bytes), batch, 128 << 20) == entries


def test_what_needs_too_much_memory_is_told():
    with pytest.raises(QueueError, match=r"^8 entries of 8392704 bytes need 65 MB; queue_mb"):
        entries_within(specs_of(8 << 20, 4096), 8, 63 << 20)
    with pytest.raises(QueueError, match=r"^batches of 4097; at most 4096"):
        entries_within(specs_of(1, 1), MAX_ENTRIES + 1, 1 << 30)


def test_results_that_follow_one_another_are_one_contiguous_view(queue):
    [array] = queue.results()
    assert array.shape == (16, 32) and array.dtype == np.int64
    array[:] = np.arange(16)[:, None]
    batch = array[3:9]
    assert batch.flags.c_contiguous and batch.base is not None
    assert batch[:, 0].tolist() == [3, 4, 5, 6, 7, 8]


def test_views_are_of_the_memory_itself(queue):
    torch = pytest.importorskip("torch")
    [array], [ring] = queue.results(), queue.rings
    tensor = torch.from_numpy(array)[9:13]
    assert tensor.data_ptr() == ring.address + 9 * array[0].nbytes
    torch.from_numpy(array)[15] = 3
    [seen] = queue.results()
    assert (seen[15] == 3).all()


def test_a_result_without_bytes_has_its_shape():
    outputs = (TensorSpec("none", "int16", (2, 0)), *OUTPUTS)
    with TensorQueue.create(7, INPUTS, outputs, 16, 3) as queue:
        none, some = queue.results()
        assert (none.shape, none.dtype, some.shape) == ((16, 2, 0), np.int16, (16, 32))
        assert queue.rings[0] is None and len(queue.descriptors) == 4
        del none, some


def test_another_process_sees_the_same(queue):
    with TensorQueue.attach(copies(queue), INPUTS, OUTPUTS) as other:
        assert (other.entries, other.most_pieces) == (16, 3)
        queue.results()[0][5] = 8
        assert (other.results()[0][5] == 8).all()
        other.words[other.entry(15, "entry_status")] = 200
        assert queue.words[queue.entry(15, "entry_status")] == 200
        queue.pieces.bytes[16 * 3 * 16 - 1] = 44
        assert other.pieces.bytes[16 * 3 * 16 - 1] == 44
        assert ctypes.addressof(other.page.bytes) != ctypes.addressof(queue.page.bytes)


def test_only_its_owner_writes_pieces(queue):
    page, pieces, _ = copies(queue)
    for access in (mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_WRITE):
        with pytest.raises(PermissionError):
            mmap.mmap(pieces, PAGE, prot=access)
    assert is_sealed(pieces, PAGE) and is_sealed(page, PAGE)


def test_nothing_is_left_of_a_queue_that_is_closed(open_descriptors):
    before = open_descriptors(), mapped()
    with TensorQueue.create(7, INPUTS, OUTPUTS, 16, 3) as queue:
        assert mapped() == before[1] + 3  # page, pieces, results
        with TensorQueue.attach(copies(queue), INPUTS, OUTPUTS):
            pass
        queue.close()
        queue.close()  # twice is as good as once
    assert (open_descriptors(), mapped()) == before


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [((), OUTPUTS), (INPUTS, ()), (INPUTS * 33, OUTPUTS)],
    ids=["no input", "no output", "66 inputs"],
)
def test_what_cannot_be_a_queue(inputs, outputs, open_descriptors):
    before = open_descriptors(), mapped()
    with pytest.raises(QueueError):
        TensorQueue.create(7, inputs, outputs, 16, 3)
    assert (open_descriptors(), mapped()) == before


WORDS = [
    ("queue_magic", 0, "not a tensor queue"),
    ("queue_version", 1, "version 1"),
    ("queue_entries", 0, "0 entries"),
    ("queue_entries", -1, "-1 entries"),
    ("queue_entries", MAX_ENTRIES + 1, "4097 entries"),
    ("queue_entries", 32, "a ring is not sealed memory"),
    ("queue_inputs", 1, "inputs of"),
    ("queue_inputs", 1 << 40, "inputs of"),
    ("queue_outputs", 0, "outputs of"),
    ("queue_outputs", -1, "outputs of"),
    ("queue_input_bytes", 255, "inputs of"),
    ("queue_output_bytes", 1 << 62, "outputs of"),
    ("queue_pieces", 0, "0 pieces"),
    ("queue_pieces", -1, "-1 pieces"),
    ("queue_pieces", 1 << 16, "65536 pieces"),
    ("queue_pieces", 4000, "a ring is not sealed memory"),
]


@pytest.mark.parametrize(("name", "value", "reason"), WORDS, ids=str)
def test_a_page_that_says_something_wrong_is_refused(queue, name, value, reason, open_descriptors):
    queue.words[QUEUE_FIELDS[name].offset // 8] = value
    before = open_descriptors(), mapped()
    with pytest.raises(QueueError, match=reason):
        TensorQueue.attach(copies(queue), INPUTS, OUTPUTS)
    assert (open_descriptors(), mapped()) == before


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((TensorSpec("a", "float64", (4, 16)), INPUTS[1]), OUTPUTS),
        ((TensorSpec("a", "float32", (4, 17)), INPUTS[1]), OUTPUTS),
        (INPUTS, (TensorSpec("b", "int32", (32,)),)),
    ],
    ids=["dtype", "shape", "output"],
)
def test_a_queue_of_other_tensors_is_refused(queue, inputs, outputs):
    with pytest.raises(QueueError, match="the model has"):
        TensorQueue.attach(copies(queue), inputs, outputs)


def test_other_descriptors_are_refused(queue, open_descriptors):
    before = open_descriptors()
    with pytest.raises(QueueError, match="descriptors"):
        some = copies(queue)
        os.close(some.pop())
        TensorQueue.attach(some, INPUTS, OUTPUTS)
    with pytest.raises(QueueError, match="sealed"):
        TensorQueue.attach([os.memfd_create("x") for _ in queue.descriptors], INPUTS, OUTPUTS)
    some = copies(queue)
    os.close(some[1])
    some[1] = os.memfd_create("x")
    os.ftruncate(some[1], 16 * 256)
    with pytest.raises(QueueError, match="a ring is not sealed"):
        TensorQueue.attach(some, INPUTS, OUTPUTS)
    assert open_descriptors() == before


def test_a_page_says_how_long_it_is(queue):
    assert queue.words[QUEUE_FIELDS["queue_bytes"].offset // 8] == queue_bytes(16)
    assert queue.page.size % PAGE == 0 and queue.page.size >= queue_bytes(16)
