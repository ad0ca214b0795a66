"""Weights on a device: nobody reads them before they are there, and nobody waits for longer."""

import gc
import importlib.util
import sys
import tempfile
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from shunter.handlers.weights import device_model, hot
from shunter.handlers.weights.device_memory import Cuda, DeviceMemory, Pinned
from shunter.handlers.weights.device_model import DeviceModel
from shunter.handlers.weights.hot_memory import CHUNK, NoRoom
from shunter.handlers.weights.reads import Reads, operator_s
from shunter.handlers.weights.sharing import data_of, store


def _lazy():
    path = Path(__file__).with_name("lazy_device.py")
    spec = importlib.util.spec_from_file_location("lazy_device", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lazy


Lazy = _lazy()
HAS_COMPILED = device_model._has_compiled
INPUT = torch.linspace(-1, 1, 64).reshape(1, 64)


class Now:
    """Copies are begun at once, in the same thread."""

    def submit(self, work, *given):
        done = Future()
        try:
            done.set_result(work(*given))
        except BaseException as error:
            done.set_exception(error)
        return done


class Held(Now):
    """Its swaps do not end, and their copies are made when a batch waits for them."""

    def __init__(self, driver):
        self._driver = driver

    def submit(self, work, *given):
        self._driver.tells = False
        super().submit(work, *given)
        self._driver.tells = True
        return Future()


class Chain(nn.Module):
    """Four layers, each of which is a group."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Direct(Chain):
    """Uses weights of its layers without calling these, and in another order."""

    def forward(self, x):
        for number in (2, 0, 3, 1):
            x = nn.functional.linear(x, self.layers[number].weight, self.layers[number].bias)
        return x


class Choosing(Chain):
    """Which layers it uses is up to the input."""

    def forward(self, x):
        first = 0 if x.sum() > 0.5 else 2
        return self.layers[first + 1](self.layers[first](x))


class Tied(Chain):
    """The last layer has the first one's weight, turned round."""

    def forward(self, x):
        return self.layers[1](self.layers[0](x)) @ self.layers[0].weight.t()


def attention():
    torch.manual_seed(1)
    return nn.TransformerEncoderLayer(64, 4, 64, batch_first=True).eval()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No other test of this process has compiled or scripted anything."""
    monkeypatch.setattr(device_model, "_has_compiled", bool)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(hot, "GROUP", 64 * 65 * 4)
    monkeypatch.setattr(device_model, "PIECE", 4096)


@pytest.fixture(autouse=True)
def cheap_operators(monkeypatch):
    """To look at them takes no time."""
    monkeypatch.setattr(device_model, "operator_s", lambda: 0.0)


def brought(net, folder, copies=None, budget=2 * CHUNK):
    """A model on a device, its driver and its memory."""
    driver = Lazy()
    memory = DeviceMemory(budget, driver)
    found = store([net], folder, driver.device)
    cold = data_of(found.file)
    copies = copies or Held(driver)
    return DeviceModel(found.weights, found.file.records, cold, memory, copies, [net]), driver


def learn(model, net, *inputs):
    model.swap_in()
    with model.reading(learn=True), torch.no_grad():
        for each in inputs or (INPUT,):
            net(each)
    model.drop()


NETS = [Chain, Direct, Choosing, Tied, attention]


@pytest.mark.parametrize("make", NETS)
@pytest.mark.parametrize("is_learnt", [False, True])
def test_every_answer_is_right_however_late_the_weights_come(tmp_path, make, is_learnt):
    net = make().eval()
    inputs = [INPUT, -INPUT, INPUT + 1]
    with torch.no_grad():
        expected = [net(each) for each in inputs]
    model, driver = brought(net, tmp_path)
    if is_learnt:
        learn(model, net)
    for each, right in zip(inputs, expected, strict=True):
        model.swap_in()
        with model.reading() as was_hot, torch.no_grad():
            assert torch.equal(net(each), right)
        assert not was_hot
        model.drop()
        assert driver.done == len(driver.begun)


def test_what_is_not_there_keeps_its_shapes_and_no_memory(tmp_path):
    net = Chain()
    shapes = [each.shape for each in net.parameters()]
    model, _ = brought(net, tmp_path)
    for _ in range(2):
        assert [each.shape for each in net.parameters()] == shapes
        assert all(each.untyped_storage().nbytes() <= 4 for each in net.parameters())
        model.swap_in()
        model.drop()


def test_the_first_layers_compute_before_the_last_ones_are_there(tmp_path):
    net = Chain()
    model, driver = brought(net, tmp_path)
    learn(model, net)
    seen = []
    for layer in net.layers:
        layer.register_forward_hook(lambda *_: seen.append(driver.done))
    model.swap_in()
    begun = driver.done
    with model.reading(), torch.no_grad():
        assert driver.done == begun, "nothing is waited for before a batch begins"
        net(INPUT)
    assert len(set(seen)) == 4, "each layer waits for its own weights"
    assert seen[-1] == len(driver.begun)


def test_what_was_not_seen_is_waited_for_before_a_batch_begins(tmp_path):
    net = Choosing()
    model, driver = brought(net, tmp_path)
    learn(model, net, INPUT)  # the last two layers
    model.swap_in()
    first_two = model._now.marks[1]
    with model.reading():
        assert driver.done == first_two
    model.drop()
    learn(model, net, INPUT + 1)
    model.swap_in()
    before = driver.done
    with model.reading():
        assert driver.done == before


@pytest.mark.parametrize(("operator_s", "is_seen"), [(1e-9, True), (1e3, False)])
def test_what_costs_more_to_look_at_than_to_copy_is_waited_for(
    tmp_path, monkeypatch, operator_s, is_seen
):
    monkeypatch.setattr(device_model, "operator_s", lambda: operator_s)
    net = Chain()
    model, driver = brought(net, tmp_path, Now())
    learn(model, net)  # and so it is known how long a swap takes
    model._copies = Held(driver)
    model.swap_in()
    with model.reading(), torch.no_grad():
        assert (driver.done == len(driver.begun)) is not is_seen
        net(INPUT)
    assert driver.done == len(driver.begun)


def test_the_operators_of_a_batch_are_counted_in_several(tmp_path, monkeypatch):
    monkeypatch.setattr(device_model, "operator_s", lambda: 1.0)
    net = Chain()
    model, _ = brought(net, tmp_path, Now())
    learn(model, net)
    one = model._looking_s
    assert one >= 4
    learn(model, net, *[INPUT] * 5)
    assert model._looking_s == one


def test_who_has_learnt_nothing_or_learns_waits_in_the_host(tmp_path):
    net = Chain()
    model, driver = brought(net, tmp_path)
    for learns in (False, True):
        model.swap_in()
        with model.reading(learn=learns):
            assert driver.done == len(driver.begun)
        model.drop()
    assert driver.waits == []


def test_a_copy_that_fails_in_the_midst_of_a_batch_is_told_to_it(tmp_path):
    net = Chain()
    model, _ = brought(net, tmp_path)
    learn(model, net)
    model.swap_in()
    now = model._now
    with pytest.raises(RuntimeError, match="broken"), model.reading(), torch.no_grad():
        del now.marks[2:]  # these have not been begun, and never will be
        now.done.set_exception(RuntimeError("broken"))
        net(INPUT)


def test_scripts_and_compilers_wait_for_everything(tmp_path, monkeypatch):
    net = torch.jit.script(Chain())
    model, driver = brought(net, tmp_path)
    learn(model, net)
    model.swap_in()
    with model.reading():
        assert driver.done == len(driver.begun)
    other = Chain()
    model, driver = brought(other, tmp_path)
    learn(model, other)
    monkeypatch.setattr(device_model, "_has_compiled", HAS_COMPILED)
    monkeypatch.setitem(sys.modules, device_model._COMPILER, object())
    model.swap_in()
    with model.reading():
        assert driver.done == len(driver.begun)


def test_who_is_hot_is_not_looked_at(tmp_path, monkeypatch):
    net = Chain()
    model, driver = brought(net, tmp_path, Now())
    learn(model, net)
    model.swap_in()
    monkeypatch.setattr(device_model, "Reads", None)
    with model.reading() as was_hot:
        assert driver.done == len(driver.begun)
    assert was_hot
    assert model.is_hot


def test_memory_is_given_back_and_has_an_end(tmp_path):
    model, driver = brought(Chain(), tmp_path, budget=CHUNK)
    other, _ = brought(Chain(), tmp_path, budget=CHUNK)
    other._memory = model._memory
    model.swap_in()
    with pytest.raises(NoRoom):
        other.swap_in()
    with pytest.raises(NoRoom), other.reading():
        pass
    model.drop()
    model.drop()
    other.swap_in()
    assert model._memory.free_bytes == 0
    other.close()
    assert model._memory.free_bytes == CHUNK
    assert driver.waits == []


class Full(Lazy):
    """It has no memory the first ``times``."""

    def __init__(self, times):
        super().__init__()
        self.times, self.trims = times, 0

    def empty(self, size):
        if self.times:
            self.times -= 1
            raise torch.OutOfMemoryError("full")
        return super().empty(size)

    def trim(self):
        self.trims += 1


class Keeping(Lazy):
    """What was given back is kept for who needs as much; it is never cut."""

    def __init__(self):
        super().__init__()
        self.blocks, self.most = [], 0

    def empty(self, size):
        free = [b for b in self.blocks if b[1]() is None and b[0] == size]
        block = free[0] if free else [size, None]
        if not free:
            self.blocks.append(block)
        found = super().empty(size)
        block[1] = weakref.ref(found.untyped_storage())
        self.most = max(self.most, self.reserved())
        return found

    def reserved(self):
        return sum(size for size, _ in self.blocks)

    def trim(self):
        self.blocks = [b for b in self.blocks if b[1]() is not None]


def test_what_an_allocator_keeps_counts():
    driver = Keeping()
    memory = DeviceMemory(8 * CHUNK, driver)
    for count in (3, 4, 5, 4, 3, 5, 6, 7, 1, 2):
        data = memory.take(count * CHUNK - 7)
        assert data.numel() == count * CHUNK - 7
        assert driver.reserved() <= 8 * CHUNK
        del data
        memory.give_back(count * CHUNK - 7)
    assert driver.most <= (8 + 7) * CHUNK  # until it is noticed
    assert memory.free_bytes == 8 * CHUNK


@pytest.mark.parametrize(("times", "works"), [(0, True), (1, True), (2, False)])
def test_a_full_device_is_no_room(times, works):
    driver = Full(times)
    memory = DeviceMemory(2 * CHUNK, driver)
    if works:
        assert memory.take(CHUNK).numel() == CHUNK
        assert memory.free_bytes == CHUNK
    else:
        with pytest.raises(NoRoom):
            memory.take(CHUNK)
        assert memory.free_bytes == 2 * CHUNK
    assert driver.trims == min(times, 1)


def test_a_copy_that_fails_is_told_to_who_waits_for_it(tmp_path, monkeypatch):
    net = Chain()
    model, driver = brought(net, tmp_path, Now())
    monkeypatch.setattr(driver, "copy", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    model.swap_in()
    with pytest.raises(RuntimeError, match="broken"), model.reading():
        pass
    model.drop()


def test_a_swap_in_a_thread_is_waited_for_and_can_be_given_up(tmp_path):
    net = Chain()
    with torch.no_grad():
        right = net(INPUT)
    with ThreadPoolExecutor(2) as copies:
        model, _ = brought(net, tmp_path, copies)
        for number in range(100):
            model.swap_in()
            if number % 3:
                with model.reading(learn=number == 1), torch.no_grad():
                    assert torch.equal(net(INPUT), right)
            model.drop()


def test_reads_tell_the_parts_that_a_tensor_lies_in():
    data = torch.arange(100, dtype=torch.uint8)
    found = []
    with Reads(data, [0, 10, 50], found.append):
        data[12:14] + 1
        torch.ones(3) + 1
        assert set(found) == {1} or found  # to slice is an operator too
        found.clear()
        data.sum()
        assert found == [0, 1, 2]
        found.clear()
        [data[8:12]]
        torch.cat([data[60:61], data[61:62]])
    assert 2 in found


def test_reads_tell_nothing_any_more_when_it_is_over():
    data, found, over = torch.arange(100, dtype=torch.uint8), [], []
    with Reads(data, [0, 50], found.append, lambda: bool(over)) as reads:
        data[10:20] + 1
        assert set(found) == {0, 1}  # to slice is an operator too
        found.clear()
        seen = reads.operators
        over.append(True)
        data[10:20] + 1
    assert not found
    assert reads.operators == 2 * seen == 4


def test_what_it_takes_to_look_at_an_operator_is_measured_once():
    assert operator_s() is operator_s()


@pytest.fixture
def in_memory():
    """A folder whose files can be pinned, as those on a disk cannot."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.gpu
def test_on_a_gpu_the_answers_are_the_same(in_memory):
    driver = Cuda(torch.cuda.current_device())
    net = Chain().eval().to(driver.device)
    x = INPUT.to(driver.device)
    with torch.no_grad():
        right = net(x)
    found = store([net], in_memory, driver.device)
    pinned = Pinned(found.file, driver.device)
    assert pinned.data.is_pinned()
    with ThreadPoolExecutor(1) as copies:
        memory = DeviceMemory(2 * CHUNK, driver)
        model = DeviceModel(
            found.weights, found.file.records, pinned.data, memory, copies, [net]
        )
        learn(model, net, x)
        for _ in range(50):
            model.swap_in()
            with model.reading(), torch.no_grad():
                assert torch.equal(net(x), right)
            model.drop()
    del model
    gc.collect()
    pinned.close()
