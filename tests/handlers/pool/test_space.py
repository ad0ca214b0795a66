"""Archives with equal names in one process, loaded as a worker of TorchServe loads them."""

import _json  # any extension
import os
import random
import shutil
import signal
import sys
import textwrap
import threading

import numpy
import pytest
import torch
from ts.model_loader import ModelLoaderFactory

from shunter.handlers.pool.process_state import ProcessState
from shunter.handlers.pool.sharable import load_apart, seen_changes
from shunter.handlers.pool.space import ModelSpace, SpaceError, World

HANDLER = """
import os
import random
import sys

import numpy
import torch

from model import Net
from helpers.words import WORD


class Handler:
    def initialize(self, context):
        self.model = Net().eval()
        {settings}

    def handle(self, data, context):
        import late  # of the archive, at the first batch
        from model import Net as again

        return {{
            "word": [WORD, late.WORD],
            "same": again is type(self.model),
            "out": self.model(torch.ones(2, dtype=torch.float32)).tolist(),
            "seeds": [random.random(), float(numpy.random.rand()), float(torch.rand(1))],
            "dtype": str(torch.ones(1).dtype),
            "threads": torch.get_num_threads(),
            "grad": torch.is_grad_enabled(),
            "folder": os.getcwd(),
            "variable": os.environ.get("OF_A_MODEL"),
            "path": sys.path[-1],
        }}
"""
SETTINGS = {
    "one": """
        random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        os.environ["OF_A_MODEL"] = "one"
        sys.path.append("/one")
    """,
    "two": """
        random.seed(2); numpy.random.seed(2); torch.manual_seed(2)
        torch.set_num_threads(1)
        os.chdir(os.path.dirname(os.path.abspath(__file__)))
        sys.path.append("/two")
    """,
}
MODEL = """
import torch


class Net(torch.nn.Linear):
    def __init__(self):
        torch.manual_seed({seed})
        super().__init__(2, {outputs})
"""


def archive(folder, name, settings=""):
    seed = len(name) + ord(name[0])
    code = {
        "handler.py": HANDLER.format(
            settings=textwrap.indent(textwrap.dedent(settings).strip(), " " * 8).strip() or "pass"
        ),
        "model.py": MODEL.format(seed=seed, outputs=2 + seed % 3),
        "late.py": f"WORD = {name!r}\n",
        "helpers/words.py": f"WORD = {name!r}\n",
    }
    for path, text in code.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def loader(folder):
    def load():
        return ModelLoaderFactory.get_model_loader().load("m", str(folder), "handler.py", -1, 1)

    return load


def ask(service):
    return service._entry_point([], service.context)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def outside():
    """Nothing of this process is changed by what a test does."""
    before, modules = ProcessState.now(), set(sys.modules)
    yield
    after = ProcessState.now()
    for each in (before, after):
        each.environ.pop(b"PYTEST_CURRENT_TEST")
    assert after.environ == before.environ
    assert (after.path, after.folder, after.dtype) == (before.path, before.folder, before.dtype)
    assert (after.threads, after.grad) == (before.threads, before.grad)
    names = {"handler", "model", "late", "helpers", "helpers.words"}
    assert not names & (set(sys.modules) - modules)


def alone(world, folder, batches):
    """What a model answers in a process that it has for itself."""
    space = ModelSpace(world, folder)
    service = load_apart(space, loader(folder)).service
    answers = []
    for _ in range(batches):
        with space:
            answers.append(ask(service))
    return answers


def test_two_archives_with_equal_names_do_not_notice_each_other(world, outside, tmp_path):
    folders = {name: archive(tmp_path / name, name, SETTINGS[name]) for name in ("one", "two")}
    expected = {name: alone(world, folder, 4) for name, folder in folders.items()}
    spaces = {name: ModelSpace(world, folder) for name, folder in folders.items()}
    loaded = {name: load_apart(spaces[name], loader(folders[name])) for name in folders}
    assert not loaded["one"].reasons
    assert not loaded["two"].reasons
    found = {"one": [], "two": []}
    for name in ("one", "two", "two", "one", "one", "two", "one", "two"):
        draws = [random.random(), float(numpy.random.rand()), float(torch.rand(1))]
        before = ProcessState.now()
        with spaces[name]:
            found[name].append(ask(loaded[name].service))
        assert draws != found[name][-1]["seeds"]
        assert random.getstate() == before.python_seed
        assert torch.equal(torch.get_rng_state(), before.torch_seed)
        assert numpy.array_equal(numpy.random.get_state()[1], before.numpy_seed[1])
    assert found == expected
    # The same where a space is in place until another one is needed.
    for name in ("two", "two", "one", "two", "two", "one", "one", "one"):
        with spaces[name].staying():
            found[name].append(ask(loaded[name].service))
    world.switch(None)
    again = {name: alone(world, folder, 8) for name, folder in folders.items()}
    assert found == again
    one, two = found["one"][0], found["two"][0]
    assert (one["word"], two["word"]) == (["one"] * 2, ["two"] * 2)
    assert one["same"] and two["same"]
    assert (one["dtype"], two["dtype"]) == ("torch.float64", "torch.float32")
    assert (one["grad"], two["grad"]) == (False, True)
    assert (one["variable"], two["variable"]) == ("one", None)
    assert (one["path"], two["path"]) == ("/one", "/two")
    assert two["threads"] == 1
    assert two["folder"] == str(folders["two"])
    assert one["seeds"] != two["seeds"]


def test_a_package_that_another_model_uses_does_not_hide_a_module_of_the_archive(
    world, outside, tmp_path, monkeypatch
):
    site = tmp_path / "site"
    site.mkdir()
    (site / "late.py").write_text("WORD = 'site'\n")
    user = archive(tmp_path / "user", "user", f"sys.path.insert(0, {str(site)!r})")
    (user / "late.py").unlink()
    spaces = [ModelSpace(world, user), ModelSpace(world, archive(tmp_path / "own", "own"))]
    services = [load_apart(space, loader(space._folder)).service for space in spaces]
    words = []
    for number in (0, 1, 0, 1):
        with spaces[number]:
            words.append(ask(services[number])["word"][1])
    sys.modules.pop("late")  # a package of this Python, as far as the process knows
    assert words == ["site", "own", "site", "own"]


def test_a_model_that_does_not_load_leaves_nothing(world, outside, tmp_path):
    folder = archive(tmp_path / "m", "m", "os.environ['OF_A_MODEL'] = 'x'\nraise ValueError('no')")
    with pytest.raises(ValueError, match="no"):
        load_apart(ModelSpace(world, folder), loader(folder))
    good = archive(tmp_path / "good", "good")
    assert alone(world, good, 1)[0]["word"] == ["good", "good"]


def test_one_runs_at_a_time(world, tmp_path):
    first, second = (ModelSpace(world, tmp_path) for _ in range(2))
    with first, pytest.raises(SpaceError), second:
        pass
    with first.staying(), pytest.raises(SpaceError), first:
        pass
    order, is_inside, may_end = [], threading.Event(), threading.Event()

    def other():
        assert is_inside.wait(60)
        may_end.set()
        with second:
            order.append("second")

    thread = threading.Thread(target=other)
    thread.start()
    with first:
        is_inside.set()
        assert may_end.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


REASONS = {
    "import threading; self.on = threading.Event(); threading.Thread(target=self.on.wait, "
    "name='mine', daemon=True).start()": "threads of its own: mine",
    "import subprocess; self.child = subprocess.Popen(['sleep', '100'])": "processes of its own",
    "import signal; signal.signal(signal.SIGUSR2, lambda *_: None)": "signals: SIGUSR2",
    "torch.nn.functional.relu = lambda x: x": "replaces torch.nn.functional.relu",
    "torch.Tensor.tolist = lambda x: []": "replaces torch.Tensor.tolist",
    "os.getlogin = None": "replaces os.getlogin",
}


@pytest.mark.parametrize("does", REASONS)
@pytest.mark.parametrize("first_batch", [False, True])
def test_what_cannot_be_shared_is_seen_and_named(world, tmp_path, does, first_batch, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "relu", torch.nn.functional.relu)
    monkeypatch.setattr(os, "getlogin", os.getlogin)
    handled = signal.getsignal(signal.SIGUSR2)
    folder = archive(tmp_path / "m", "m", "" if first_batch else does)
    if first_batch:
        text = (folder / "handler.py").read_text()
        (folder / "handler.py").write_text(
            text.replace("import late", "import late; self.do()")
            + f"\n    def do(self):\n        {does}\n"
        )
    space = ModelSpace(world, folder)
    loaded = load_apart(space, loader(folder))
    handler = loaded.service._entry_point.__self__
    try:
        reasons = loaded.reasons
        if first_batch:
            assert not reasons
            with space, seen_changes(space) as reasons:
                ask(loaded.service)
        assert len(reasons) == 1
        assert REASONS[does] in reasons[0]
    finally:
        signal.signal(signal.SIGUSR2, handled)
        if "tolist" in vars(torch.Tensor):
            del torch.Tensor.tolist
        if hasattr(handler, "on"):
            handler.on.set()
        if hasattr(handler, "child"):
            handler.child.kill()
            handler.child.wait()


@pytest.mark.parametrize(
    ("does", "reasons"),
    [
        # As torch._dynamo does to it, whoever imports that first.
        ("torch.manual_seed = torch._disable_dynamo(torch.manual_seed)", ()),
        (
            "import functools; real = torch.manual_seed; "
            "torch.manual_seed = functools.wraps(real)(lambda seed: real(0))",
            ("it replaces torch.manual_seed",),
        ),
    ],
)
def test_what_torch_wraps_of_its_own_is_not_replaced(world, tmp_path, does, reasons, monkeypatch):
    monkeypatch.setattr(torch, "manual_seed", torch.random.manual_seed)
    folder = archive(tmp_path / "m", "m", does)
    assert load_apart(ModelSpace(world, folder), loader(folder)).reasons == reasons


def test_machine_code_of_an_archive_is_named(world, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    if not getattr(_json, "__file__", None):
        pytest.skip("the modules of this Python are built in")
    suffix = os.path.basename(_json.__file__).partition(".")[2]
    shutil.copy(_json.__file__, folder / f"_json.{suffix}")
    space = ModelSpace(world, folder)

    def load():
        import importlib.util

        spec = importlib.util.spec_from_file_location("own._json", folder / f"_json.{suffix}")
        sys.modules["own._json"] = importlib.util.module_from_spec(spec)

    assert load_apart(space, load).reasons == ("it has machine code of its own: own._json",)
