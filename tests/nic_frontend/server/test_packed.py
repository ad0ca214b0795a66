"""A front end of packed functions, with clients and a worker by hand, also under the sanitizers."""

import math
import random
import socket

import pytest

from shunter.batching.queue import attach
from shunter.batching.queue.packed_form import PackedForm
from shunter.batching.queue.size import QueueTooLargeError
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.server.workers import queue_of
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

INPUTS, OUTPUTS = [("x", "uint8", [-1])], [("y", "uint8", [-1])]
LEAST = 64
"""The header of both."""
KINDS = ["udp", "tcp", "unix"]
FORM = PackedForm(batched=True, request_bytes=4096, answer_bytes=3000)


@pytest.fixture
def served(abused_site):
    """A site with a front end, and a worker that does what it is told."""
    site = abused_site
    site.serve(unix=str(site.folder / "nic.stream"))
    site.puppet_of_runs = site.puppet(3, INPUTS, OUTPUTS, packing=FORM)
    return site


def answer(puppet, *answers, status=200):
    """The runs of a batch, whose requests get these answers."""
    entries = puppet.batch()
    runs = [b"".join(puppet.pieces(entry)) for entry in entries]
    word = puppet.queue.words
    assert [word[puppet.queue.entry(e, "entry_bytes")] for e in entries] == [*map(len, runs)]
    rows = [word[puppet.queue.entry(entry, "entry_rows")] for entry in entries]
    for entry, each in zip(entries, answers, strict=True):
        puppet.put(entry, each)
    puppet.done(*[status] * len(entries))
    return runs, rows


def text(size, seed=0):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_any_length_go_and_come(served, kind):
    puppet, client = served.puppet_of_runs, served.client(kind)
    for size, back in ((LEAST, LEAST), (LEAST + 1, 3000), (256, 256), (257, 257), (4096, 700)):
        number = client.ask_run(text(size), rows=2)
        assert answer(puppet, text(back, 1)) == ([text(size)], [2])
        assert client.run_of(number) == text(back, 1)
        client.acknowledge(number + 1)
    function = served.function()
    assert puppet.held() == 0 and function["free"] == function["entries"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_never_reaches_a_worker(served, kind):
    puppet, client = served.puppet_of_runs, served.client(kind)
    wrong = [
        {"run": text(LEAST - 1)}, {"run": text(4097)}, {"run": text(100), "rows": 0},
        {"run": text(100), "rows": 4}, {"run": text(100), "tensor": 1},
        {"run": text(100), "total": 5000}, {"run": text(100), "count": 2},
    ]  # fmt: skip
    for each in wrong:
        assert client.run_of(client.ask_run(**each)) == WireStatus.BAD_REQUEST
    number = client.ask_run(text(300))
    assert answer(puppet, text(LEAST)) == ([text(300)], [1])
    assert client.run_of(number) == text(LEAST)


@pytest.mark.parametrize("size", [0, LEAST - 1, 3001, 1 << 20])
def test_an_answer_that_cannot_be_is_an_error(served, size):
    # What a worker sends by itself nobody looks at.
    puppet, client = served.puppet_of_runs, served.client("udp" if size > LEAST else "tcp")
    number = client.ask_run(text(300))
    answer(puppet, text(size))
    assert client.run_of(number) == WireStatus.HANDLER_FAILED


def test_a_worker_says_whose_fault_it_is(served):
    puppet, client = served.puppet_of_runs, served.client("udp")
    for status in (WireStatus.BAD_REQUEST, WireStatus.HANDLER_FAILED):
        number = client.ask_run(text(300))
        answer(puppet, b"", status=status)
        assert client.run_of(number) == status


@pytest.mark.parametrize("kind", KINDS)
def test_headers_of_all_kinds_do_no_harm(served, kind):
    puppet, client = served.puppet_of_runs, served.client(kind)
    choice = random.Random(kind)
    edges = [0, 1, 2, 63, 64, 255, 256, 4095, 4096, 4097, 65535, (1 << 32) - 1]
    free = served.function()["entries"]
    for n in range(300):
        fields = {"total": choice.choice(edges), "status": choice.choice([0, 1, 2, 3, 4, 65535])}
        fields |= {"offset": choice.choice(edges), "count": choice.choice([0, 1, 2, 16, 17, 65535])}
        fields |= {"flags": choice.choice([0, Flags.LAST, Flags.ACK_REQ]), "tensor": n % 7 == 0}
        length = choice.choice([0, 1, 64, 100, 256])
        header = client.header(MessageType.REQ, 1 + n % 3, n % 17, length=length, **fields)
        client.put(header.pack() + text(length))
    other = served.client("udp")
    number = other.ask_run(text(300))
    while (entries := puppet.batch()) is not None:
        runs = [b"".join(puppet.pieces(entry)) for entry in entries]
        assert all(LEAST <= len(run) <= 4096 for run in runs)
        for entry in entries:
            puppet.put(entry, text(LEAST))
        puppet.done(*[200] * len(entries))
        if text(300) in runs:
            break
    assert other.run_of(number) == text(LEAST)
    client.socket.close()
    assert served.function()["free"] <= free


def test_requests_have_as_many_rows_as_any_worker_takes(served):
    client, older = served.client("udp"), served.puppet_of_runs
    assert client.opened.rows == 3 and client.opened.packing == FORM
    smaller = served.puppet(2, INPUTS, OUTPUTS, packing=FORM)
    assert served.client("udp").opened.rows == 3
    for _ in range(3):  # never to the one that does not take them, though it is free
        number = client.ask_run(text(100), rows=3)
        assert answer(older, text(LEAST))[1] == [3]
        assert client.run_of(number) == text(LEAST)
    assert client.run_of(client.ask_run(text(100), rows=4)) == WireStatus.BAD_REQUEST
    older.leave()
    assert attach.receive(older.connection)[0] == {"left": True}
    assert client.run_of(client.ask_run(text(100), rows=3)) == WireStatus.BAD_REQUEST
    assert served.client("udp").opened.rows == 2
    number = client.ask_run(text(100), rows=2)
    assert answer(smaller, text(LEAST))[1] == [2]
    assert client.run_of(number) == text(LEAST)


def test_workers_of_other_sizes_are_refused(served):
    longer = PackedForm(batched=True, request_bytes=4097, answer_bytes=3000)
    specs = [tuple(TensorSpec(n, d, tuple(s)) for n, d, s in side) for side in (INPUTS, OUTPUTS)]
    hello = attach.Attach("m", "1", *specs, 3, 1, packing=longer)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(served.folder / attach.NAME))
        attach.send(connection, hello.to_json())
        assert "its peers" in attach.receive(connection)[0]["refused"]


def test_a_queue_without_room_for_a_request_and_its_parts_is_none():
    form = PackedForm(streamed=True, request_bytes=4096, answer_bytes=3000)
    sides = [tuple(TensorSpec(*each) for each in side) for side in (INPUTS, OUTPUTS)]
    said = attach.Attach("m", "1", *sides, 1, 1, packing=form)
    with pytest.raises(QueueTooLargeError, match="2 entries"):
        queue_of(said, 1, 2 * 7096 - 1, lambda: math.inf)
    with queue_of(said, 1, 2 * 7096, lambda: math.inf) as queue:
        assert queue.entries == 2
