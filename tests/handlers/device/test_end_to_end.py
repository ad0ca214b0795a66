"""Requests over the network to a worker whose model is on a device."""

import os
import socket
import threading
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from shunter.batching.queue.attach import NAME, Attach
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.graphed import Graphed
from shunter.handlers.queue.device_model import DeviceModel
from shunter.handlers.queue.device_queue import DeviceQueueWorker
from shunter.nic_frontend import build, library
from shunter.nic_frontend.client import InferenceError, Session
from shunter.nic_frontend.server.front_end import FrontEnd, Settings

IMAGE = TensorSpec("image", "float32", (3, 32, 64))
SCORES = TensorSpec("scores", "float32", (1024,))
BATCH = 8


def model_of(image):
    low, high = image.flatten(1).aminmax(dim=1, keepdim=True)
    return ((low + high) / 2 + 1000 * (high - low)).expand(-1, 1024)


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


class Network(nn.Module):
    """Every answer says of which image it is."""

    def forward(self, image):
        return model_of(image)


@pytest.fixture(params=["eager", "graphs"])
def device(request, fake, fake_executors):
    """The fake driver that a worker's batches are on, and how its model is made there."""
    executors = fake_executors if request.param == "graphs" else fake
    driver = executors.driver if request.param == "graphs" else fake.driver()
    network = Network().eval()

    def infer(inputs, outputs):
        outputs[0].copy_(network(inputs[0]))

    def make(*, yields):
        specs = (IMAGE,), (SCORES,)
        stream = driver.stream()

        def launch(inputs, outputs):
            executors.cuda.launch(stream, lambda: infer(inputs, outputs))

        eager = request.param == "eager"
        on = driver, fake.view, lambda: stream
        made = DeviceModel(launch if eager else infer, specs, BATCH, *on)
        if not eager:
            current = {"current": lambda stream: nullcontext()}
            made.capture([network], lambda _: executors.recorder(), yields=yields, **current)
            assert isinstance(made.infer, Graphed)
        return made

    return executors.cuda, make


@pytest.fixture
def begun(device, served, link_module, monkeypatch):
    """Sizes of the batches of a worker on the device, which is attached in a thread."""
    found, begin = [], DeviceQueueWorker.begin

    def noted(worker, batch):
        begin(worker, batch)
        found.append(batch.count)

    monkeypatch.setattr(DeviceQueueWorker, "begin", noted)
    attach = Attach("m", "1", (IMAGE,), (SCORES,), BATCH, os.getpid())
    where = {"device": torch.device("cuda", 0), "on_device": device[1]}
    link = link_module.FrontEndLink(served[0], attach, None, **where)
    ours, server = socket.socketpair()
    thread = threading.Thread(target=link.run, args=(server, lambda: not server.recv(1)))
    thread.start()
    yield found
    ours.close()
    thread.join(60)
    server.close()
    assert not thread.is_alive()
    assert set(device[0].live.values()) <= {"graph"}  # it has given everything back


def connected(url):
    """A session, once a worker serves the model."""
    for _ in range(600):
        try:
            return Session(url, "m", timeout_s=60)
        except InferenceError:
            threading.Event().wait(0.1)
    raise AssertionError("no worker has come")


def test_answers_of_a_device_reach_clients(device, served, begun):
    cuda, _ = device
    with connected(served[1]) as client:
        for first in range(0, 240, 60):  # more than the ring has entries
            images = [np.full(IMAGE.shape, first + i, "float32") for i in range(60)]
            answers = client.infer_many([[image] for image in images], timeout_s=60)
            for i, (scores,) in enumerate(answers):
                assert set(scores.tolist()) == {first + i}
    copied = sum(size for direction, size in cuda.copies if direction == "in")
    assert copied == 240 * IMAGE.bytes  # each once, by one DMA
    assert sum(begun) == 240


def test_what_is_made_on_a_device_is_guarded_and_let_go(link_module, tmp_path):
    log = []

    class Model:
        infer = "graphs"

        def close(self):
            log.append((self.infer, "closed"))

    def make(*, yields):
        log.append(("made for", yields))
        return Model()

    attach = Attach("m", "1", (IMAGE,), (SCORES,), BATCH, os.getpid())
    where = {"device": torch.device("cuda", 0), "on_device": make}
    link = link_module.FrontEndLink(tmp_path / "nobody", attach, "eager", **where)
    link.guard(lambda infer, keep: f"guarded {infer}", "its gate")
    ours, server = socket.socketpair()
    ours.close()
    link.run(server, lambda: True)
    server.close()
    assert log == [("made for", "its gate"), ("guarded graphs", "closed")]
    assert link._infer == "guarded eager"  # where there is no room for batches on the device
