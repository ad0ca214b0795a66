"""A worker's connection to a front end, as its end tells that the worker has ended."""

import os
import select
import socket
from pathlib import Path

from shunter.batching.queue.attach import Attach, receive
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.front_end_link import FrontEndLink

PATIENCE_S = 60


def test_a_child_does_not_keep_the_connection_of_its_parent():
    specs = (TensorSpec("x", "float32", (1,)),)
    attach = Attach("m", "1", specs, specs, 1, os.getpid())
    front, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    with front:
        with worker:
            FrontEndLink(Path("nowhere"), attach, infer=None).greet(worker)
            assert Attach.from_json(receive(front)[0]) == attach
            if not (child := os.fork()):  # as multiprocessing starts one
                os.read(reading, 1)
                os._exit(0)
            assert not select.select([front], [], [], 0.1)[0]
        try:
            assert select.select([front], [], [], PATIENCE_S)[0]
            assert front.recv(1) == b""
        finally:
            os.write(writing, b"x")
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)
