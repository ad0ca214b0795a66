import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from shunter.handlers.weights.hot import HotModel
from shunter.handlers.weights.hot_memory import CHUNK, HotMemory
from shunter.handlers.weights.setting import WeightsConfigError, folder_of, wants_shared
from shunter.handlers.weights.sharing import data_of, share, share_or_keep
from shunter.handlers.weights.tensors import named_constants, named_tensors, records_of, weights_of


class Net(nn.Module):
    """Parameters and buffers of many kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.first = nn.Linear(6, 6, dtype=torch.bfloat16)
        self.second = nn.Linear(6, 6, dtype=torch.bfloat16)
        self.second.weight = self.first.weight  # tied
        self.register_buffer("mask", torch.tensor([True, False, True, True, True, True]))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("line", torch.arange(6.0).reshape(1, 6), persistent=False)
        self.eval()

    def forward(self, x):
        x = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        x = self.rnn(x)[0]
        x = self.second(self.first(x.bfloat16())).float()
        return (x * self.scale + self.line) * self.mask


INPUT = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


@torch.no_grad()
def test_a_shared_model_answers_the_same_and_is_the_same_to_its_holders(tmp_path):
    plain, model = Net(), Net()
    before = {name: (id(t), t.size(), t.stride(), t.dtype) for name, t in named_tensors([model])}
    found = share([model], tmp_path)
    after = {name: (id(t), t.size(), t.stride(), t.dtype) for name, t in named_tensors([model])}
    assert after == before
    assert torch.equal(model(INPUT), plain(INPUT))
    assert found.bytes == found.all_bytes
    assert model.first.weight.data_ptr() == model.second.weight.data_ptr()
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())


@torch.no_grad()
def test_a_handler_that_changes_its_weights_changes_its_own(tmp_path):
    one, other = Net(), Net()
    assert share([one], tmp_path).file.path == share([other], tmp_path).file.path
    one.train()(INPUT)  # statistics of the norm
    one.first.weight.zero_()
    assert torch.equal(other(INPUT), Net()(INPUT))
    third = Net()
    share([third], tmp_path)
    assert torch.equal(third(INPUT), Net()(INPUT))


@torch.no_grad()
def test_a_script_is_shared_too(tmp_path):
    torch.manual_seed(1)
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()))
    model.eval()
    expected = model(INPUT)
    before = [tensor.data_ptr() for tensor in model.parameters()]
    found = share([model], tmp_path)
    assert found.bytes == found.all_bytes
    assert all(t.data_ptr() != old for t, old in zip(model.parameters(), before, strict=True))
    for _ in range(3):  # the first runs are not those that are optimized
        assert torch.equal(model(INPUT), expected)


@torch.no_grad()
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, INPUT)])
def test_the_constants_of_a_frozen_graph_are_shared_and_answers_stay_the_same(tmp_path, make):
    torch.manual_seed(1)
    parts = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 64)
    net = nn.Sequential(*parts).eval()
    torch.jit.save(torch.jit.freeze(make(net)), tmp_path / "model.pt")
    expected, models = net(INPUT), [torch.jit.load(tmp_path / "model.pt") for _ in range(2)]
    found = [share([each], tmp_path / "weights") for each in models]
    assert found[0].file.path == found[1].file.path
    weights = {"conv": net[0].weight, "linear": net[3].weight}
    for file, model in zip([each.file for each in found], models, strict=True):
        data = data_of(file).data_ptr()
        there = {tensor.data_ptr(): tensor for _, tensor in named_constants([model])}
        inside = [t for at, t in there.items() if data <= at < data + file.records[-1].end]
        for name, each in weights.items():
            assert any(torch.equal(each, tensor) for tensor in inside), name
        for _ in range(4):  # the first runs are not those that are optimized
            assert torch.allclose(model(INPUT), expected, atol=1e-6)


@torch.no_grad()
def test_constants_are_never_hot_and_what_is_beside_them_is(tmp_path):
    """A graph makes others of them that lie in their memory, and these would be left behind."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = nn.Linear(8, 8)
            self.frozen = torch.jit.freeze(torch.jit.script(nn.Linear(8, 8).eval()))

        def forward(self, x):
            return self.frozen(self.kept(x))

    torch.manual_seed(2)
    model, x = Both().eval(), torch.ones(1, 8)
    expected = model(x)
    shared = share([model], tmp_path)
    kinds = [each.is_constant for each in shared.weights]
    assert kinds == sorted(kinds) and set(kinds) == {False, True}
    memory = HotMemory(4 * CHUNK)
    with ThreadPoolExecutor(1) as copies:
        hot = HotModel(shared.weights, shared.file.records, data_of(shared.file), memory, copies)
        assert 0 < hot.bytes < shared.file.records[-1].end
        cold = [tensor.data_ptr() for _, tensor in named_constants([model])]
        for _ in range(3):
            at = model.kept.weight.data_ptr()
            hot.swap_in().result()
            assert hot.settle() and model.kept.weight.data_ptr() != at
            assert [tensor.data_ptr() for _, tensor in named_constants([model])] == cold
            assert torch.equal(model(x), expected)
            hot.drop()
            assert model.kept.weight.data_ptr() == at
            assert torch.equal(model(x), expected)
    memory.close()


def test_the_mapping_goes_with_the_last_tensor(tmp_path):
    model = Net()
    path = share([model], tmp_path).file.path
    other = nn.Linear(2, 2)
    assert share([other], tmp_path).file.path != path
    assert path.exists()
    del model
    gc.collect()
    share([nn.Linear(2, 3)], tmp_path)
    assert not path.exists()


class Strange(nn.Module):
    """What cannot be moved."""

    def __init__(self):
        super().__init__()
        whole = torch.arange(20.0)
        self.register_buffer("left", whole[:12])
        self.register_buffer("right", whole[8:])
        self.register_buffer("wide", torch.ones(1).expand(5))
        self.register_buffer("steps", torch.arange(20.0)[::2])
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("meta", torch.empty(3, device="meta"))
        self.good = nn.Linear(3, 3)


def test_what_has_no_bytes_of_its_own_stays_where_it_is(tmp_path):
    model = Strange()
    before = {
        name: tensor.data_ptr() for name, tensor in named_tensors([model]) if name != "0.sparse"
    }
    found = share([model], tmp_path)
    moved = {
        name for name in before if dict(named_tensors([model]))[name].data_ptr() != before[name]
    }
    assert moved == {"0.good.weight", "0.good.bias"}
    assert found.bytes < found.all_bytes
    model.left[10] = -1.0
    assert model.right[2] == -1.0


def test_names_and_strides_are_of_the_content():
    plain, strided = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    names = [records_of(weights_of([each]))[0].name for each in (plain, strided)]
    assert names == ["0.weight", "0.weight|0,2,3,1"]


def test_a_worker_without_room_or_models_or_server_keeps_its_own(tmp_path, caplog):
    caplog.set_level("INFO")
    model = Net()
    before = model.conv.weight.data_ptr()
    (tmp_path / "file").write_text("")
    for models, environ in (
        ([model], {}),
        ([model], {"SHUNTER_WEIGHTS": str(tmp_path / "file")}),
        ([], {"SHUNTER_WEIGHTS": str(tmp_path)}),
        ([model], {"SHUNTER_WEIGHTS": "", "SHUNTER_RUNTIME": str(tmp_path / "file")}),
    ):
        assert share_or_keep(models, environ) is None
    assert model.conv.weight.data_ptr() == before
    assert len(caplog.records) == 4
    assert share_or_keep([model], {"SHUNTER_RUNTIME": str(tmp_path / "of_server")}) is not None
    assert "shared" in caplog.records[-1].message


@pytest.mark.parametrize("value", ["Shared", True, None, 1, ["shared"]])
def test_another_word_is_refused_by_its_name(value):
    with pytest.raises(WeightsConfigError, match="weights"):
        wants_shared({"weights": value})


def test_the_words():
    assert [wants_shared(each) for each in ({}, {"weights": "private"}, {"weights": "shared"})] == [
        False,
        False,
        True,
    ]
    assert folder_of({}) is None
