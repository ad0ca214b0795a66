"""What a worker hears of a front end: memory of clients, and that it may leave."""

import ctypes
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from queue_front import QueueFront

from shunter.batching.queue.attach import AttachError, receive, send
from shunter.batching.queue.layout import PIECE
from shunter.batching.queue.native import REGIONS, Batch
from shunter.batching.queue.shared_memory import read_only, sealed_memory
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.shared_regions import FrontEndWords

SIZE = 10
INPUTS, OUTPUTS = (TensorSpec("a", "uint8", (SIZE,)),), (TensorSpec("b", "uint8", (1,)),)


class Scene:
    """A worker's end of a queue, and a front end that speaks to it."""

    def __init__(self):
        self.front = QueueFront(INPUTS, OUTPUTS, 2)
        self.end = self.front.end
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.words = FrontEndWords(self.theirs, self.end)
        self.end.look = self.words.hear

    def share(self, number, content):
        """Say that there is such a region, which has this content."""
        memory = sealed_memory("regions-of-a-test", len(content))
        os.pwrite(memory, content, 0)
        reader = read_only(memory)
        send(self.ours, {"region": number, "bytes": len(content)}, [reader])
        os.close(memory)
        os.close(reader)

    def gather(self, region, offset):
        """The input of a request that lies there."""
        queue = self.front.queue
        PIECE.pack_into(queue.pieces.bytes, 0, offset, SIZE, region)
        queue.words[queue.entry(0, "entry_pieces")] = 1
        found = np.zeros(SIZE, np.uint8)
        self.end.gather(Batch(1), 0, 1, (ctypes.c_void_p * 1)(found.ctypes.data))
        return found.tobytes()

    def close(self):
        self.words.close()
        self.ours.close()
        self.theirs.close()
        self.front.close()


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.close()


def mapped():
    return Path("/proc/self/maps").read_text().count("memfd:regions-of-a-test")


def test_a_batch_that_lies_where_nothing_is_known_of_makes_the_worker_listen(scene):
    content = bytes(range(100))
    with pytest.raises(OSError, match="inputs of a batch"):
        scene.gather(3, 0)
    scene.share(3, content)
    assert scene.gather(3, 7) == content[7:17]
    with pytest.raises(OSError, match="inputs of a batch"):
        scene.gather(3, 91)
    with pytest.raises(OSError, match="inputs of a batch"):
        scene.gather(4, 0)


def test_memory_that_is_let_go_of_is_unmapped_and_said_to_be(scene):
    scene.share(1, b"a" * 50)
    scene.share(2, b"b" * 50)
    assert scene.gather(1, 0) == b"a" * 10
    send(scene.ours, {"unmap": 1})
    assert scene.words.hear()
    assert receive(scene.ours) == ({"unmapped": 1}, [])
    with pytest.raises(OSError, match="inputs of a batch"):
        scene.gather(1, 0)
    assert scene.gather(2, 0) == b"b" * 10
    scene.share(1, b"c" * 50)
    assert scene.gather(1, 0) == b"c" * 10
    assert mapped() == 2
    scene.words.close()
    assert mapped() == 0


def test_it_hears_that_it_may_leave_in_the_midst_of_a_batch(scene):
    assert not scene.words.hear() and not scene.words.is_dismissed
    send(scene.ours, {"left": True})
    scene.share(1, b"a" * 50)
    assert scene.gather(1, 0) == b"a" * 10
    assert scene.words.is_dismissed
    scene.ours.close()
    with pytest.raises(EOFError):
        scene.words.hear()


@pytest.mark.parametrize(
    "content",
    [
        {"region": 0, "bytes": 1},
        {"region": REGIONS, "bytes": 1},
        {"region": "x", "bytes": 1},
        {"region": 1},
        {"region": 1, "bytes": 1},
        {"unmap": -1},
    ],
    ids=str,
)
def test_what_makes_no_sense_ends_the_connection_and_keeps_nothing_open(
    scene, content, open_descriptors
):
    before = open_descriptors()
    memory = sealed_memory("test", 1)
    send(scene.ours, content, [memory, memory] if content.get("bytes") else [])
    os.close(memory)
    with pytest.raises(AttachError):
        scene.words.hear()
    assert open_descriptors() == before
