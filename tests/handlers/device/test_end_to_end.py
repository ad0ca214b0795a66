"""Requests over the network to a worker whose model is on a device."""

import os
import socket
import threading
import warnings

import numpy as np
import pytest

from shunter.batching.queue.attach import NAME, Attach
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend import build, library
from shunter.nic_frontend.client import InferenceError, Session
from shunter.nic_frontend.server.front_end import FrontEnd, Settings

IMAGE = TensorSpec("image", "float32", (3, 32, 64))
SCORES = TensorSpec("scores", "float32", (1024,))
BATCH = 8


def model(inputs, outputs):
    """Every answer says of which image it is."""
    low, high = inputs[0].flatten(1).aminmax(dim=1, keepdim=True)
    outputs[0].copy_(((low + high) / 2 + 1000 * (high - low)).expand(-1, 1024))


@pytest.fixture
def served(tmp_path):
    """Where workers attach and where clients come, of a front end in a thread."""
    build.ensure()
    library.library.cache_clear()
    room = 2 * BATCH * (IMAGE.bytes + SCORES.bytes)
    front = FrontEnd(Settings(attach=tmp_path / NAME, port=0, queue_bytes=room))
    thread = threading.Thread(target=front.run)
    thread.start()
    yield tmp_path / NAME, f"udp://127.0.0.1:{front.port}"
    front.stop()
    thread.join()
    front.close()


@pytest.fixture
def link_module():
    """The worker's connection, which needs TorchServe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # TorchServe leaves a file open
        pytest.importorskip("ts")
    from shunter.handlers.queue import front_end_link

    return front_end_link


@pytest.fixture
def workers(fake, served, link_module, monkeypatch):
    """The device's workers that a front end has got; the first is attached in a thread."""
    made = []

    def worker_of(end, infer, batch, device, model):
        made.append(fake.worker(end, batch, infer))
        return made[-1]

    monkeypatch.setattr(link_module, "queue_worker", worker_of)
    attach = Attach("m", "1", (IMAGE,), (SCORES,), BATCH, os.getpid())
    link = link_module.FrontEndLink(served[0], attach, model)
    ours, server = socket.socketpair()
    thread = threading.Thread(target=link.run, args=(server, lambda: not server.recv(1)))
    thread.start()
    yield made
    ours.close()
    thread.join(60)
    server.close()
    assert not thread.is_alive()


def connected(url):
    """A session, once a worker serves the model."""
    for _ in range(600):
        try:
            return Session(url, "m", timeout_s=60)
        except InferenceError:
            threading.Event().wait(0.1)
    raise AssertionError("no worker has come")


def test_answers_of_a_device_reach_clients(fake, served, workers):
    with connected(served[1]) as client:
        for first in range(0, 240, 60):  # more than the ring has entries
            images = [np.full(IMAGE.shape, first + i, "float32") for i in range(60)]
            answers = client.infer_many([[image] for image in images], timeout_s=60)
            for i, (scores,) in enumerate(answers):
                assert set(scores.tolist()) == {first + i}
    assert len(workers) == 1
    copied = sum(size for direction, size in fake.cuda.copies if direction == "in")
    assert copied == 240 * IMAGE.bytes  # each once, by one DMA
