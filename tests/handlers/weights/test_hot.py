"""Weights that come and go: what is computed is always right, wherever they are."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shunter.handlers.weights import hot
from shunter.handlers.weights.hot import GivenUp, HotModel
from shunter.handlers.weights.hot_memory import CHUNK, HotMemory, NoRoom
from shunter.handlers.weights.sharing import data_of, share
from shunter.handlers.weights.tensors import weights_of


def _edges(address, size):
    return [address + at + side for at in range(0, size, CHUNK) for side in (0, CHUNK - 1)]


def filled(address, size, number):
    for each in _edges(address, size):
        ctypes.memset(each, number, 1)
    return address, size, number


def holds(address, size, number):
    return all(ctypes.string_at(each, 1)[0] == number for each in _edges(address, size))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=25))
def test_there_is_room_whenever_there_are_enough_bytes_and_nobody_has_anothers(steps):
    memory, held = HotMemory(6 * CHUNK), []
    try:
        for number, (chunks, which) in enumerate(steps):
            used = sum(size // CHUNK for _, size, _ in held)
            assert memory.free_bytes == (6 - used) * CHUNK
            if chunks <= 6 - used:
                held.append(filled(memory.take(chunks * CHUNK), chunks * CHUNK, number + 1))
            else:
                with pytest.raises(NoRoom):
                    memory.take(chunks * CHUNK)
                memory.give_back(held.pop(which % len(held))[0])
            assert all(holds(*each) for each in held)
    finally:
        memory.close()


def test_pages_go_back_to_the_host_and_are_taken_again():
    memory = HotMemory(2 * CHUNK)
    address, size, _ = filled(memory.take(2 * CHUNK), 2 * CHUNK, 7)
    memory.give_back(address)
    memory.trim()
    again = memory.take(size)
    assert holds(again, size, 0)
    memory.close()


class Layers(nn.Module):
    """Four layers of four groups."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


INPUT = torch.linspace(-1, 1, 512)
BYTES = 512 * 512 * 4


@pytest.fixture
def expected():
    with torch.no_grad():
        return Layers()(INPUT)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model whose weights lie in a file, the memory for it, and how it comes."""
    monkeypatch.setattr(hot, "GROUP", BYTES + 4096)
    monkeypatch.setattr(hot, "PIECE", BYTES // 4)
    net = Layers()
    file = share([net], tmp_path).file
    memory = HotMemory(4 * CHUNK)
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        coming = HotModel(weights_of([net]), file.records, data_of(file), memory, pool)
        yield net, coming, memory
        coming.drop()
    memory.close()


def test_it_comes_and_goes_and_answers_the_same(model, expected):
    net, coming, memory = model
    cold = net.layers[0].weight.data_ptr()
    for _ in range(3):
        assert not coming.settle()
        coming.swap_in().result(60)
        assert coming.settle()
        assert net.layers[0].weight.data_ptr() != cold
        assert torch.equal(net(INPUT), expected)
        assert memory.free_bytes < 4 * CHUNK
        coming.drop()
        assert net.layers[0].weight.data_ptr() == cold
        assert torch.equal(net(INPUT), expected)
        assert memory.free_bytes == 4 * CHUNK


class Gate:
    """Lets pieces of a copy pass one by one."""

    def __init__(self, monkeypatch):
        self.passes, self.copy = threading.Semaphore(0), ctypes.memmove
        monkeypatch.setattr(hot.ctypes, "memmove", self)

    def __call__(self, *given):
        assert self.passes.acquire(timeout=60)
        return self.copy(*given)

    def open(self, pieces=1000):
        self.passes.release(pieces)


def test_what_has_come_is_hot_and_the_rest_is_read_cold(model, expected, monkeypatch):
    net, coming, _ = model
    gate = Gate(monkeypatch)
    cold = [each.weight.data_ptr() for each in net.layers]
    done = coming.swap_in()
    first = coming._groups[0]
    gate.open(-(-(first.end - first.begin) // hot.PIECE))
    assert first.arrived.wait(60)
    assert not coming.settle()
    moved = [a.weight.data_ptr() != b for a, b in zip(net.layers, cold, strict=True)]
    assert moved == [True, False, False, False]
    assert torch.equal(net(INPUT), expected)
    gate.open()
    done.result(60)
    assert coming.settle()


def test_what_a_handler_keeps_of_hot_weights_stays_what_it_is(model):
    """Their memory is given to others when nobody refers to it any more."""
    net, coming, memory = model
    coming.swap_in().result(60)
    assert coming.settle()
    kept, was = net.layers[0].weight.t(), net.layers[0].weight.detach().clone()
    coming.drop()
    assert memory.free_bytes == CHUNK
    with pytest.raises(NoRoom):
        coming.swap_in()
    assert torch.equal(kept, was.t())
    del kept
    coming.swap_in().result(60)
    assert coming.settle()
    coming.drop()
    assert memory.free_bytes == 4 * CHUNK


def test_a_swap_that_is_dropped_on_its_way_ends_and_gives_its_memory_back(
    model, expected, monkeypatch
):
    net, coming, memory = model
    gate = Gate(monkeypatch)
    done = coming.swap_in()
    coming._is_over.set()
    gate.open(1)
    coming.drop()
    assert isinstance(done.exception(60) if not done.cancelled() else GivenUp(), GivenUp)
    assert memory.free_bytes == 4 * CHUNK
    assert torch.equal(net(INPUT), expected)


def test_one_that_does_not_fit_stays_cold(model, expected):
    net, coming, memory = model
    taken = memory.take(3 * CHUNK)
    with pytest.raises(NoRoom):
        coming.swap_in()
    assert torch.equal(net(INPUT), expected)
    memory.give_back(taken)
    coming.swap_in().result(60)
    assert coming.settle()
