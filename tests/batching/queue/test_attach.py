"""How workers and the front end find each other."""

import os
import socket
from dataclasses import replace

import pytest

from shunter.batching.queue import attach
from shunter.batching.queue.attach import Attach, AttachError
from shunter.batching.queue.packed_form import PackedForm
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec

WORKER = Attach(
    "m",
    "1",
    (TensorSpec("a", "float32", (3, 4)), TensorSpec("c", "bool", ())),
    (TensorSpec("b", "int64", (0, 2)),),
    8,
    123,
    1.5,
    "best_effort",
    40_000_000,
    7_000_000_000,
    127,
    (1 << 64) - 1,
)


PACKED = replace(
    WORKER,
    inputs=(TensorSpec("ids", "bfloat16", (ANY, 3)), TensorSpec("text", BYTES, ())),
    packing=PackedForm(batched=True, request_bytes=1 << 30, answer_bytes=64),
)


@pytest.fixture
def pair():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


def test_a_worker_is_read_as_it_introduced_itself(pair):
    attach.send(pair[0], WORKER.to_json())
    content, descriptors = attach.receive(pair[1])
    assert Attach.from_json(content) == WORKER and descriptors == []


def test_a_worker_that_says_no_more_has_no_place():
    content = WORKER.to_json()
    del content["attach"]["slot"], content["attach"]["slices"]
    assert Attach.from_json(content) == replace(WORKER, slot=-1, slices=0)


def test_a_worker_of_a_pool_says_which_and_one_that_says_nothing_is_of_none():
    content = replace(WORKER, pool=3).to_json()
    assert Attach.from_json(content).pool == 3
    del content["attach"]["pool"]
    assert Attach.from_json(content) == WORKER


def test_a_packed_worker_is_read_as_it_introduced_itself(pair):
    attach.send(pair[0], PACKED.to_json())
    content, _ = attach.receive(pair[1])
    assert Attach.from_json(content) == PACKED
    assert PACKED.carried_inputs == (TensorSpec("request", "uint8", (1 << 30,)),)
    assert PACKED.carried_outputs == (TensorSpec("answer", "uint8", (64,)),)
    assert (WORKER.carried_inputs, WORKER.carried_outputs) == (WORKER.inputs, WORKER.outputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing": None}, "tensors of any size, and no packing"),
        ({"packing": {"batched": 1}}, "batched: 1; allowed"),
        ({"packing": {"request_bytes": 64.0}}, "request_bytes: 64.0; allowed"),
        ({"packing": {"answer_bytes": 63}}, "answer_bytes: 63; allowed"),
        ({"packing": {"padded": True}}, "padded"),
        ({"packing": 3}, "not a worker's first message"),
    ],
)
def test_a_form_that_cannot_be_is_refused(changes, message):
    content = PACKED.to_json()
    content["attach"] |= changes
    with pytest.raises(AttachError, match=message):
        Attach.from_json(content)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slot", -2),
        ("slot", 128),
        ("slot", "3"),
        ("slot", None),
        ("slices", -1),
        ("slices", 1 << 576),
        ("slices", 1.0),
        ("pool", -1),
        ("pool", 65),
        ("pool", None),
        ("place", -1),
        ("place", 1 << 576),
    ],
)
def test_a_place_that_there_is_not_is_refused(name, value):
    content = WORKER.to_json()
    content["attach"][name] = value
    with pytest.raises(AttachError, match=f"{name} .*; allowed: "):
        Attach.from_json(content)


def test_descriptors_come_with_the_message_and_are_of_the_same_file(pair):
    reader, writer = os.pipe()
    attach.send(pair[0], {"func_id": 1}, [reader, writer])
    content, [other_reader, other_writer] = attach.receive(pair[1])
    os.write(other_writer, b"x")
    assert content == {"func_id": 1} and os.read(reader, 2) == b"x"
    for each in (reader, writer, other_reader, other_writer):
        os.close(each)


@pytest.mark.parametrize(
    "data", [b"{", b"\xff", b'{"a": 1}' + b" " * (1 << 16)], ids=["half", "no text", "too long"]
)
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(pair, data):
    reader, writer = os.pipe()
    socket.send_fds(pair[0], [data], [writer])
    os.close(writer)
    with pytest.raises(AttachError, match="not a message"):
        attach.receive(pair[1])
    assert os.read(reader, 1) == b""  # nobody can write any more
    os.close(reader)


def test_the_other_side_is_gone(pair):
    pair[0].close()
    with pytest.raises(EOFError):
        attach.receive(pair[1])


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_only_the_socket_of_a_dead_process_is_removed(tmp_path, kind):
    path = tmp_path / "socket"
    attach.remove_left_over(path, kind)  # there is nothing
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(path))
        server.listen()
        attach.remove_left_over(path, kind)
        assert path.exists()
    attach.remove_left_over(path, kind)
    assert not path.exists()
    path.write_text("mine")
    attach.remove_left_over(path, kind)
    assert path.read_text() == "mine"


def test_a_socket_of_another_kind_is_none_of_ours(tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(OSError, match="in use"):
            attach.listen(path)
    assert path.exists()


def test_only_the_user_may_attach(tmp_path):
    path = tmp_path / "nic.sock"
    with attach.listen(path), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
        assert path.stat().st_mode & 0o777 == 0o600
        worker.connect(str(path))
        assert attach.peer_process(worker) == (os.getpid(), os.getuid())
