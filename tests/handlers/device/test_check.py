"""The bound of what is on a device when a thread stands still, on a device of the test's own."""

import pytest
import torch
from torch import nn

from shunter.handlers.device import check as device_check
from shunter.handlers.device.check import DeviceCheck, catch_up, device_of_model


class Device:
    """Executes what is queued when somebody waits for it, and not before."""

    def __init__(self):
        self.queued, self.done = 0, 0

    def launch(self):
        self.queued += 1

    def mark(self):
        device = self

        class Mark:
            def record(self):
                self.at = device.queued

            def synchronize(self):
                device.done = max(device.done, self.at)

        return Mark()


@pytest.mark.parametrize("window", [1, 2, 5])
def test_no_more_segments_are_on_the_device_than_may_be(window):
    device, outstanding = Device(), []

    def look():
        outstanding.append(device.queued - device.done)

    check = DeviceCheck(look, device.mark, window, lambda: False)
    for _ in range(20):
        device.launch()
        check()
    assert max(outstanding) == window - 1
    assert outstanding[-1] == window - 1  # and as many are there, so that it is never idle


def test_a_handler_that_captures_a_graph_is_left_alone():
    device, looks, capturing = Device(), [], [True]
    check = DeviceCheck(lambda: looks.append(1), device.mark, 1, lambda: capturing[0])
    for _ in range(3):
        device.launch()
        check()
    assert (looks, device.done) == ([], 0)
    capturing[0] = False
    check()
    assert (looks, device.done) == ([1], 3)


def test_nobody_waits_for_a_device_while_a_graph_is_captured(monkeypatch):
    waited = []
    cuda = device_check.torch.cuda
    monkeypatch.setattr(cuda, "synchronize", waited.append)
    monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: True)
    assert not catch_up("cuda:0")
    monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: False)
    assert catch_up("cuda:0")
    assert waited == ["cuda:0"]


def test_the_device_of_a_model_is_where_its_weights_are():
    assert device_of_model(nn.Linear(2, 2)) is None
    assert device_of_model(nn.ReLU()) is None


@pytest.mark.gpu
def test_the_device_of_a_model_on_a_device():
    device = torch.device("cuda", 0)
    assert device_of_model(nn.Linear(2, 2).to(device)) == device
