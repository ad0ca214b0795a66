"""Workers whose handlers do not use torch never import it; others notice no difference."""

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from shunter.handlers.torchserve.without_torch import _Later, is_tensor

WORKER = """
import sys
from shunter.handlers.torchserve.without_torch import import_protocol
import_protocol()
from shunter.handlers.torchserve import serving
from ts.protocol import otf_message_handler as protocol
serving.use_threads(1)
assert "torch" not in sys.modules
"""


def run(program):
    """What a new Python prints."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_answers_without_tensors_need_no_torch():
    program = """
from shunter.handlers.torchserve.reply import body_of
for value in (b"a", bytearray(b"b"), "c", [1], {"d": 2}, 3, None, (4, 5)):
    assert body_of(value) is not None
print("torch" in sys.modules)
"""
    assert run(program) == ["False"]


def test_the_threads_hold_as_soon_as_a_handler_imports_torch():
    program = """
import torch
torch.set_num_interop_threads(7)
print(torch.get_num_threads(), torch.get_num_interop_threads())
print(torch.__spec__.loader.get_filename("torch"))
"""
    assert run(program) == ["1", "1", torch.__file__]


@pytest.mark.parametrize("also", ["import torch.nn", "from torch import nn", "import torch as t"])
def test_torch_is_the_same_however_it_is_imported(also):
    program = f"""
{also}
import io, torch
from shunter.handlers.torchserve.reply import body_of
tensor = torch.arange(3)
ours = body_of(tensor)
stock = protocol.create_predict_response([tensor], {{0: "a"}}, "ok", 200)
print(torch.load(io.BytesIO(ours)).tolist() == [0, 1, 2], ours[:4] in stock)
print(torch is sys.modules["torch"], torch.get_num_threads())
"""
    assert run(program) == ["True", "True", "True", "1"]


def test_torchserves_own_encoder_recognises_tensors_that_a_handler_made_before():
    program = """
kinds = [protocol.torch.Tensor]
import torch
print(kinds[0] is torch.Tensor, protocol.torch.Tensor is torch.Tensor)
"""
    assert run(program) == ["True", "True"]


def test_what_is_a_tensor(monkeypatch):
    assert is_tensor(torch.zeros(1))
    assert not is_tensor([0.0])
    monkeypatch.delitem(sys.modules, "torch")
    assert not is_tensor([0.0])
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # another thread imports it
    assert not is_tensor(0.0)


def test_what_comes_later_fails_as_the_import_does():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        getattr(_Later("no_such_module"), "anything")  # noqa: B009
    with pytest.raises(AttributeError):
        getattr(_Later("json"), "no_such_name")  # noqa: B009
