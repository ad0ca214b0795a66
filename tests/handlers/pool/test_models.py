"""Models of one worker whose weights do not all fit into its hot memory."""

import importlib.util
import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from ts.model_loader import ModelLoaderFactory

from shunter.allocator.memory.devices import DoesNotFit
from shunter.allocator.memory.scheduling import Waiting
from shunter.handlers.pool.models import PooledModels
from shunter.handlers.pool.sharable import GRAPHS, NotSharable
from shunter.handlers.pool.space import SpaceError
from shunter.handlers.preemption.modules import models_of
from shunter.handlers.weights import hot
from shunter.handlers.weights.hot_memory import CHUNK, NoRoom

HANDLER = """
import torch
from model import Net


class Handler:
    def initialize(self, context):
        self.model = Net().eval()
        {more}

    def handle(self, data, context):
        with torch.no_grad():
            return self.model(torch.linspace(-1, 1, 512))
"""
MODEL = """
import torch


class Net(torch.nn.Sequential):
    def __init__(self):
        torch.manual_seed({seed})
        super().__init__(*(torch.nn.Linear(512, 512) for _ in range({layers})))
"""
SIZES = {"a": 3, "b": 1, "c": 3, "d": 5, "e": 1}
"""Layers of 1 MB, and a chunk has two."""


def archive(folder, seed, layers, more="pass"):
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER.format(more=more))
    (folder / "model.py").write_text(MODEL.format(seed=seed, layers=layers))
    return folder


def modules_of(service):
    return models_of(service._entry_point.__self__)


def register(pool, folder, name, **options):
    def load():
        return ModelLoaderFactory.get_model_loader().load(name, str(folder), "handler.py", -1, 1)

    return pool.register(name, folder, load, modules_of, **options)


def ask(service):
    return service._entry_point([], service.context)


@torch.no_grad()
def right(seed, layers):
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(layers)))
    torch.set_rng_state(state)
    return net(torch.linspace(-1, 1, 512))


@pytest.fixture
def pool(tmp_path):
    found = PooledModels(tmp_path / "weights", 5 * CHUNK)
    yield found
    found.close()


@pytest.fixture
def models(pool, tmp_path):
    """All of them, and what they answer."""
    answers = {}
    for seed, (name, layers) in enumerate(SIZES.items()):
        register(pool, archive(tmp_path / name, seed, layers), name)
        answers[name] = right(seed, layers)
    return answers


def test_every_answer_is_of_the_right_model_wherever_its_weights_are(pool, models):
    random.seed(3)
    held = set()
    for _ in range(150):
        if random.random() < 0.3:
            pool.expect(random.sample(sorted(models), 2))
        name = random.choice(sorted(models))
        assert torch.equal(pool.run(name, ask), models[name])
        held.add(frozenset(pool.hot))
        used, budget = pool.used
        assert used + pool.weights._place.memory.free_bytes == budget
    assert len(held) > 3, "models have come and gone"
    assert not pool.hot >= set(models)


def test_a_model_that_is_forgotten_leaves_its_memory_and_its_file(pool, models, tmp_path):
    for name in ("a", "b"):
        pool.run(name, ask)
    for name in ("a", "b", "d"):  # two that are hot or coming, and one that is not
        pool.unregister(name)
    assert not pool.hot
    assert pool.weights._place.memory.free_bytes == 5 * CHUNK
    with pytest.raises(KeyError):
        pool.run("a", ask)
    register(pool, tmp_path / "a", "a")
    assert torch.equal(pool.run("a", ask), models["a"])
    # What nobody maps is swept when the next one is registered.
    assert len([each for each in os.listdir(tmp_path / "weights") if "safetensors" in each]) == 3


def test_a_resident_model_comes_by_itself_and_stays(pool, models, tmp_path):
    register(pool, archive(tmp_path / "r", 9, 1), "r", resident=True)
    pool.expect([])
    for name in ("a", "c", "d", "a"):
        assert torch.equal(pool.run(name, ask), models[name])
        assert "r" in pool.hot
    with pytest.raises(DoesNotFit):
        register(pool, archive(tmp_path / "s", 9, 12), "s", resident=True)


def test_a_model_larger_than_all_hot_memory_is_read_cold(pool, tmp_path):
    register(pool, archive(tmp_path / "m", 4, 11), "m")
    assert torch.equal(pool.run("m", ask), right(4, 11))
    assert not pool.hot


def test_one_that_cannot_be_shared_says_why_and_is_not_there(pool, tmp_path):
    more = "torch.nn.functional.of_mine = 1; import os; os.getlogin = None"
    before = os.getlogin
    try:
        with pytest.raises(NotSharable, match=r"own: it replaces os.getlogin"):
            register(pool, archive(tmp_path / "m", 1, 1, more), "m")
    finally:
        os.getlogin = before
        del torch.nn.functional.of_mine
    with pytest.raises(KeyError):
        pool.run("m", ask)


def test_without_memory_of_the_host_weights_stay_cold_and_come_later(pool, models, monkeypatch):
    with monkeypatch.context() as short:

        def none(*_):
            raise NoRoom("none")

        short.setattr(hot.HotMemory, "take", none)
        for name in ("a", "b", "a"):
            assert torch.equal(pool.run(name, ask), models[name])
        assert not pool.hot
    assert torch.equal(pool.run("a", ask), models["a"])
    assert pool.hot == {"a"}


def test_a_batch_that_fails_is_the_callers_and_harms_nobody(pool, models):
    def fails(service):
        raise ValueError("a bad request")

    with pytest.raises(ValueError, match="a bad request"):
        pool.run("a", fails)
    assert torch.equal(pool.run("a", ask), models["a"])
    assert torch.equal(pool.run("d", ask), models["d"])


def served(pool, waiting):
    """Who is served, one after the other, as long as somebody waits."""
    left, found = list(waiting), []
    while left:
        name = pool.next_of(left)
        pool.run(name, ask)
        found.append(name)
        left = [each for each in left if each.name != name]
    return found


def test_strict_batches_go_first_then_the_least_recently_served(pool, models):
    for name in ("b", "e"):
        pool.run(name, ask)
    pool.weights._scheduler.rules = replace(pool.weights._scheduler.rules, ageing_s=0)
    pool._order._ageing_s = 0
    now = time.monotonic()
    waiting = [Waiting(name, now, name in "cd") for name in "becd"]
    found = served(pool, waiting)
    assert set(found[:2]) == {"c", "d"}
    assert found[2:] == ["b", "e"]


def test_who_has_no_weights_is_served_too_and_who_is_skipped_later(pool, models, tmp_path):
    folder = tmp_path / "n"
    folder.mkdir()
    (folder / "handler.py").write_text(
        "class Handler:\n"
        "    def initialize(self, context): pass\n"
        "    def handle(self, data, context): return 'none'\n"
    )
    register(pool, folder, "n")
    now = time.monotonic()
    waiting = [Waiting(name, now) for name in ("a", "n", "b")]
    pool.next_of(waiting)
    pool.skip()
    assert sorted(served(pool, waiting)) == ["a", "b", "n"]
    assert torch.equal(pool.run("a", ask), models["a"])


def test_what_goes_on_after_a_first_batch_is_seen(pool, models):
    def starts(service):
        thread = threading.Thread(target=over.wait, name="mine")
        thread.start()

    over = threading.Event()
    try:
        with pytest.raises(NotSharable, match="threads of its own: mine"):
            pool.try_out("a", starts)
    finally:
        over.set()
    pool.try_out("b", ask)


STATEFUL = """
import importlib.util
import os
import random

import torch


class Handler:
    def initialize(self, context):
        torch.manual_seed({seed})
        random.seed({seed})
        self.model = torch.nn.Linear(2, 2)
        os.environ["WHO"] = "{seed}"

    def handle(self, data, context):
        import helper

        helper.calls += 1
        drawn = []
        with torch.inference_mode(data[0]), torch.autocast("cpu", enabled=data[1]):
            for stand in data[2]:
                stand()
                modes = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
                drawn.append((float(torch.rand(1)), random.random(), os.environ["WHO"], modes))
        return drawn, helper.calls, os.getcwd()
"""


def stateful(pool, folder, seed):
    folder.mkdir()
    (folder / "handler.py").write_text(STATEFUL.format(seed=seed))
    (folder / "helper.py").write_text("calls = 0\n")
    register(pool, folder, str(seed))


@pytest.mark.parametrize("seed", range(8))
def test_models_that_run_in_the_midst_of_others_see_nothing_of_them(tmp_path, seed):
    chance = random.Random(seed)
    one = PooledModels(tmp_path / "one", 2 * CHUNK)
    batches, expected, found = [], {}, {}
    for number in range(3):
        stateful(one, tmp_path / f"a{number}", number)
        expected[str(number)], found[str(number)] = [], []
    for _ in range(12):
        low, modes = str(chance.randrange(3)), [chance.random() < 0.5 for _ in range(2)]
        others = [name for name in expected if name != low]
        inside = [[chance.choice(others) for _ in range(chance.randrange(3))] for _ in range(3)]
        batches.append((low, modes, inside))

    def plain(name, service):
        found[name].append(service._entry_point([False, False, [lambda: None]], service.context))

    for low, modes, inside in batches:

        def stands(names):
            for name in names:
                one.inside([Waiting(name, 0.0)], plain)

        steps = [lambda names=names: stands(names) for names in inside]
        run = one.run(low, lambda service, s=steps, m=modes: service._entry_point([*m, s], None))
        found[low].append(run)
    one.close()
    apart = PooledModels(tmp_path / "apart", 2 * CHUNK)
    for number in range(3):  # the same, but each alone
        stateful(apart, tmp_path / f"b{number}", number)
    for low, modes, inside in batches:
        for name in [name for names in inside for name in names]:
            apart.run(
                name,
                lambda service, name=name: expected[name].append(
                    service._entry_point([False, False, [lambda: None]], None)
                ),
            )
        steps = [lambda: None] * 3
        expected[low].append(
            apart.run(low, lambda service, s=steps, m=modes: service._entry_point([*m, s], None))
        )
    apart.close()
    assert found == expected


def test_weights_of_what_stands_still_stay_and_those_that_pass_come(pool, models):
    pool.run("a", ask)

    def low(service):
        held = pool.weights.cache.held["a"]
        for name in ("b", "c", "e", "d", "b"):
            found = pool.inside([Waiting(name, 0.0)], lambda name, service: (name, ask(service)))
            assert found[0] == name and torch.equal(found[1], models[name])
            assert pool.weights.cache.held["a"] is held
        for _ in range(1000):  # until the weights of d, which were on their way, have come
            if "b" not in pool.hot:
                pool.inside([Waiting("b", 0.0)], lambda name, service: ask(service))
        return ask(service)

    assert torch.equal(pool.run("a", low), models["a"])
    assert "b" in pool.hot


def test_who_finds_no_room_leaves_nothing_begun(pool, models, monkeypatch):
    def none(waiting, runs=()):
        pool.weights.ended(runs)
        raise NoRoom("told so")

    name = pool.next_of([Waiting("a", time.monotonic())])
    with monkeypatch.context() as full:
        full.setattr(pool.weights, "bring", none)
        with pytest.raises(NoRoom):
            pool.run(name, ask)
    pool.try_out("b", ask)
    assert torch.equal(pool.run("a", ask), models["a"])


def test_nothing_runs_in_the_midst_of_nothing(pool, models):
    with pytest.raises(SpaceError):
        pool.inside([Waiting("a", 0.0)], lambda name, service: ask(service))


# ---- on a device, where nothing is read that is not there


def _lazy():
    path = Path(__file__).parents[1] / "weights/lazy_device.py"
    spec = importlib.util.spec_from_file_location("lazy_device", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lazy


Lazy = _lazy()


class Small(Lazy):
    """It has less memory than one is told."""

    def __init__(self, size):
        super().__init__()
        self.left, self.given = size, []

    def empty(self, size):
        self.given = [each for each in self.given if not each.expired()]
        if len(self.given) == self.left:
            raise torch.OutOfMemoryError("full")
        found = super().empty(size)
        self.given.append(StorageWeakRef(found.untyped_storage()))
        return found


def on_device(folder, driver, chunks=5):
    pool = PooledModels(folder / "weights", chunks * CHUNK, driver=driver)
    answers = {}
    for seed, (name, layers) in enumerate(SIZES.items()):
        register(pool, archive(folder / name, seed, layers), name)
        pool.try_out(name, ask)
        answers[name] = right(seed, layers)
    return pool, answers


@pytest.mark.parametrize("make", [Lazy, lambda: Small(1), lambda: Small(2)])
def test_every_answer_is_right_where_weights_must_be_there(tmp_path, make):
    pool, answers = on_device(tmp_path, make())
    random.seed(4)
    for _ in range(100):
        if random.random() < 0.3:
            pool.expect(random.sample(sorted(answers), 2))
        if random.random() < 0.5:
            names = random.sample(sorted(answers), 3)
            name = pool.next_of([Waiting(each, time.monotonic()) for each in names])
        else:
            name = random.choice(sorted(answers))
        assert torch.equal(pool.run(name, ask), answers[name])
    assert pool.weights.counts.evictions
    pool.close()


def test_who_passes_on_a_device_needs_room_beside_who_stands_still(tmp_path):
    pool, answers = on_device(tmp_path, Lazy())  # d has three chunks of five, a and c have two

    def stand(_):
        assert [pool.weights.may_come_beside(each) for each in "abc"] == [True] * 3
        pool.inside([Waiting("a", time.monotonic())], lambda _, other: found.append(ask(other)))

    found = []
    pool.run("d", stand)
    assert torch.equal(found[0], answers["a"])
    pool.close()


def test_a_model_larger_than_the_device_needs_a_process_of_its_own(tmp_path):
    pool = PooledModels(tmp_path / "weights", 2 * CHUNK, driver=Lazy())
    with pytest.raises(NotSharable, match="bytes"):
        register(pool, archive(tmp_path / "d", 1, 5), "d")
    pool.close()


def test_who_captures_a_graph_stays_where_it_is(tmp_path):
    pool, answers = on_device(tmp_path, Lazy())

    def captures(service):
        GRAPHS.captured += 1
        return ask(service)

    pool.run("b", captures)
    for _ in range(5):
        for name in "acd":
            assert torch.equal(pool.run(name, ask), answers[name])
            assert "b" in pool.hot
    pool.close()


def test_a_capture_begins_when_all_weights_are_there_and_waits_for_none(tmp_path, monkeypatch):
    pool, answers = on_device(tmp_path, Lazy())
    begun = []

    def captures(service):
        with suppress(Exception):  # there is no GPU to capture on
            torch.cuda.CUDAGraph.capture_begin(None)
        assert pool.weights._models["a"]._now.is_here
        waits = pool.weights._models["a"]._memory.driver
        monkeypatch.setattr(waits, "wait", begun.append)
        return ask(service)

    pool.run("d", ask)
    pool.run("c", ask)
    assert torch.equal(pool.run("a", captures), answers["a"])
    assert not begun
    monkeypatch.undo()
    pool.close()
