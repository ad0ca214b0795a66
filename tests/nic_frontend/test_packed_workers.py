"""Packed functions from clients to handlers and back, through the workers that users have."""

import asyncio
import socket
import threading

import ml_dtypes
import numpy as np
import pytest
import torch

from shunter.batching.forming.lengths import Group, LengthGroups
from shunter.batching.queue.attach import Attach
from shunter.batching.queue.packed_form import PackedForm
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.front_end_link import FrontEndLink
from shunter.handlers.queue.packed_queue import keep_batch
from shunter.handlers.queue.tensor_config import UNPADDED, Padding
from shunter.handlers.queue.tensor_queue import keep_inputs
from shunter.nic_frontend.client import AsyncClient, BadRequestError, Session

KEY = bytes(range(32))
LONG = 30
WAYS = {
    "udp": {},
    "udp with a key": {"key": KEY},
    "tcp": {},
    "unix": {},
    "unix without shared memory": {"shared_memory": False},
    "udp encrypted": {"key": KEY, "encrypt": True},
}
INPUTS = [("int64", (-1,)), ("bytes", (-1,)), ("bfloat16", (2, -1))]
OUTPUTS = [("int64", ()), ("bytes", (-1,)), ("bfloat16", (2, -1))]
BUCKETS = Padding(buckets=(4, 64, 1024))
RAGGED = Padding(ragged=True)


def infer(batch):
    """The sum, the byte strings turned around, and the doubles."""
    ids, texts, half = batch.inputs
    if isinstance(ids, list):
        return [each.sum() for each in ids], [t[::-1] for t in texts], [h * 2 for h in half]
    sums = (ids * batch.mask("in0")).sum(1)
    return sums, [t[::-1] for t in texts], batch.split(half * 2, like="in2")


def request_of(n):
    rng = np.random.default_rng(n)
    ids = rng.integers(-(2**40), 2**40, n * 37 % 1500)
    text = np.array([b"x" * i * n for i in range(n % 11)], object)
    return [ids, text, rng.normal(size=(2, n % 5)).astype(ml_dtypes.bfloat16)]


def is_answer(found, n):
    ids, text, half = request_of(n)
    wanted = np.array(ids.sum()), text[::-1], half * ml_dtypes.bfloat16(2)
    return all(
        a.shape == b.shape and (a == b).all() for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("padding", [UNPADDED, BUCKETS, RAGGED], ids=["pad", "buckets", "ragged"])
def test_requests_of_any_size_are_answered_as_if_alone(make_service, way, padding):
    options = WAYS[way]
    service = make_service(key=options.get("key"))
    sizes = []

    def counting(batch):
        sizes.append(len(batch))
        return infer(batch)

    service.serve("m", INPUTS, OUTPUTS, counting, form=PackedForm(), padding=padding)
    with Session(service.url(way.split()[0]), "m", timeout_s=LONG, **options) as session:
        assert session.shares_memory == (way == "unix")
        for n in (0, 1, 40):
            assert is_answer(session.infer(request_of(n)), n)
        many = session.infer_many([request_of(n) for n in range(60)])
        assert all(is_answer(found, n) for n, found in enumerate(many))
    assert sum(sizes) == 63 and max(sizes) <= 8


def test_a_run_that_is_none_leaves_the_others_of_its_batch_alone(make_service):
    service = make_service()
    begun, go_on, batches = threading.Event(), threading.Event(), []

    def waiting(batch):
        batches.append(len(batch))
        begun.set()
        assert go_on.wait(LONG)
        return infer(batch)

    service.serve("m", INPUTS, OUTPUTS, waiting, form=PackedForm(), batch=4)
    url = service.url("udp")
    with Session(url, "m", timeout_s=LONG) as other, Session(url, "m", timeout_s=LONG) as session:
        whole = session.tensors.pack

        def some_spoilt(inputs):
            run, rows = whole(inputs)
            if len(inputs[0]) == 37:  # of request 1
                run[8] ^= 1  # the bytes of a tensor
            return run, rows

        first = threading.Thread(target=other.infer, args=(request_of(5),))
        first.start()
        assert begun.wait(LONG)
        session.tensors.pack = some_spoilt
        threading.Timer(0.2, go_on.set).start()  # the others wait by then, or come one by one
        found = session.infer_many([request_of(n) for n in (1, 2, 3, 1, 4)])
        first.join()
    wrong, two, three, again, four = found
    assert isinstance(wrong, BadRequestError) and isinstance(again, BadRequestError)
    assert is_answer(two, 2) and is_answer(three, 3) and is_answer(four, 4)
    assert sum(batches) == 4


@pytest.mark.parametrize("scheme", ["udp", "tcp", "unix"])
def test_a_short_request_does_not_wait_for_the_long_one_of_its_batch(
    make_service, monkeypatch, scheme
):
    service, sizes = make_service(), []
    first_runs, go_on, short_is_there = (threading.Event() for _ in range(3))

    def each_alone(_, rows, lengths):
        if [9] in lengths and [3] in lengths:
            sizes.append(len(rows))
        order = sorted(range(len(rows)), key=lengths.__getitem__)
        return [Group([i], lengths[i][0]) for i in order]

    def summed(batch):
        length = batch["in0"].shape[1]
        if length == 1:
            first_runs.set()
            assert go_on.wait(LONG)
        if length == 9 and sizes:
            assert short_is_there.wait(LONG)
        return batch["in0"].sum(1)

    async def ask():
        async with AsyncClient(service.url(scheme), timeout_s=2 * LONG) as client:

            def begin(length):
                return asyncio.ensure_future(client.infer("m", [np.ones(length, int)]))

            for event in (first_runs, go_on, short_is_there):
                event.clear()
            first = begin(1)
            await asyncio.to_thread(first_runs.wait, LONG)
            ahead, short, long = (begin(n) for n in (2, 3, 9))
            short.add_done_callback(lambda _: short_is_there.set())
            asyncio.get_running_loop().call_later(0.2, go_on.set)  # they wait together by then
            found = await asyncio.gather(first, ahead, short, long)
            assert [int(each) for each in found] == [1, 2, 3, 9]

    monkeypatch.setattr(LengthGroups, "of", each_alone)
    service.serve("m", INPUTS[:1], OUTPUTS[:1], summed, form=PackedForm())
    while not sizes:  # the long one came in a batch with the short one, or with both
        asyncio.run(ask())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("scheme", ["udp", "unix"])
def test_types_that_numpy_lacks_where_all_requests_have_one_size(make_service, dtype, scheme):
    service = make_service()

    def double(inputs, outputs):
        assert inputs[0].dtype == getattr(torch, dtype)
        outputs[0].copy_(inputs[0].float() * 2)

    service.serve("m", [(dtype, (3,))], [(dtype, (3,))], double)
    with Session(service.url(scheme), "m", timeout_s=LONG) as session:
        x = np.array([1, -2, 3.5], getattr(ml_dtypes, dtype))
        [found] = session.infer([x])
        assert found.dtype == x.dtype and found.tolist() == [2, -4, 7]


@pytest.mark.parametrize(
    ("form", "wanted"), [(None, keep_inputs), (PackedForm(), keep_batch)], ids=["fixed", "packed"]
)
def test_what_may_begin_anew_keeps_what_its_handler_gets(tmp_path, form, wanted):
    kept = []
    spec = (TensorSpec("x", "float32", (3,)),)
    link = FrontEndLink(
        tmp_path / "none", Attach("m", "1", spec, spec, 1, 1, packing=form), lambda *_: None
    )
    link.guard(lambda infer, keep: kept.append(keep) or infer)
    ours, server = socket.socketpair()
    ours.close()
    with server:
        link.run(server, lambda: True)
    assert kept == [wanted]
