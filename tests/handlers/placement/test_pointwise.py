"""Convolutions of 1 x 1 in a worker with one thread."""

import json
import os
import subprocess
import sys

import pytest

from shunter.handlers.placement import pointwise

CALLS = """
import json, sys, warnings
from shunter.handlers.placement import pointwise

said = []
warnings.showwarning = lambda *args: said.append(str(args[0]))
case = json.loads(sys.argv[1])
pointwise.FASTER = case.get("faster", 1e9)
pointwise.use()
import torch
from torch.profiler import profile
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(case.get("threads", 1))
convolution = nn.Conv2d(
    64, 32, case.get("size", 1), bias=case.get("bias", True), groups=case.get("groups", 1)
).to(getattr(torch, case.get("dtype", "float32")))
run = torch.jit.script(convolution) if case.get("script") else convolution
x = torch.randn(case.get("pictures", 3), 64, 14, 14, dtype=convolution.weight.dtype)
if case.get("last"):
    x = x.contiguous(memory_format=torch.channels_last)
torch.backends.mkldnn.set_flags(not case.get("off"))
with torch.no_grad():
    expected = nn.functional.conv2d(
        x.double(), convolution.weight.double(),
        None if convolution.bias is None else convolution.bias.double(),
        groups=convolution.groups,
    )
    run(x)  # where both are tried
    with profile() as seen:
        found = run(x)
names = {event.name for event in seen.events()}
x.requires_grad_(True)
run(x).sum().backward()
wanted = convolution.weight.sum((0, 2, 3)).view(1, -1, 1, 1).expand_as(x)
print(json.dumps({
    "onednn": "aten::mkldnn_convolution" in names,
    "apart": float((found.detach() - expected).abs().max()),
    "gradient": float((x.grad - wanted.detach()).abs().max()) if case.get("size", 1) == 1 else 0.0,
    "last": found.is_contiguous(memory_format=torch.channels_last),
    "said": said,
}))
"""


def run(tmp_path, variables=None, **case):
    script = tmp_path / "script.py"
    script.write_text(CALLS)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(case)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(variables or {})},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["apart"] < 1e-4 and found["gradient"] < 1e-3
    assert found["said"] == [] and "arning" not in done.stderr
    return found


@pytest.mark.parametrize(
    ("case", "onednn"),
    [
        ({}, True),
        ({"bias": False}, True),
        ({"last": True}, True),
        ({"script": True}, True),
        ({"pictures": 1}, False),  # too little to do
        ({"pictures": 15}, True),
        ({"pictures": 16}, True),  # as always
        ({"size": 3}, True),  # as always
        ({"threads": 2}, True),  # as always
        ({"faster": 0}, False),  # on a processor on which it is none
        ({"off": True}, False),
        ({"off": True, "pictures": 16}, False),
        ({"dtype": "float64"}, False),
        ({"variables": {"SHUNTER_POINTWISE": "0"}}, False),
    ],
    ids=str,
)
def test_who_convolves(tmp_path, case, onednn):
    found = run(tmp_path, **case)
    assert found["onednn"] is onednn
    assert found["last"] is case.get("last", False)


@pytest.mark.parametrize(
    ("shape", "filters", "worth"),
    [
        ((1, 64, 56, 56), 64, True),
        ((1, 2048, 7, 7), 512, False),  # the weights are more than the picture
        ((2, 2048, 7, 7), 512, True),
        ((1, 16, 8, 8), 1024, True),
        ((1, 16, 8, 8), 1023, False),
        ((8, 32, 14, 14), 16, False),
        ((0, 64, 56, 56), 64, False),
    ],
)
def test_a_small_one_is_not_worth_it(shape, filters, worth):
    assert pointwise.is_worth(shape, filters) is worth


def test_all_workers_of_a_server_go_by_the_first(tmp_path):
    server, other = tmp_path / "server", tmp_path / "other"
    server.mkdir()
    other.mkdir()
    assert not run(tmp_path, {"SHUNTER_RUNTIME": str(server)}, faster=0)["onednn"]
    assert not run(tmp_path, {"SHUNTER_RUNTIME": str(server)})["onednn"]
    assert run(tmp_path, {"SHUNTER_RUNTIME": str(other)})["onednn"]


def test_who_tries_at_the_same_time_goes_by_who_was_first(tmp_path):
    def overtaken():
        assert pointwise.agree(str(tmp_path), "2.13", lambda: True)
        return False

    assert pointwise.agree(str(tmp_path), "2.13", overtaken)
    assert not pointwise.agree(str(tmp_path), "2.12", lambda: False)  # another torch
    assert not pointwise.agree(str(tmp_path), "2.12", lambda: pytest.fail("it is known"))
    assert pointwise.agree(str(tmp_path), "2.13", lambda: pytest.fail("it is known"))


@pytest.mark.parametrize("found", [True, False])
def test_without_a_folder_each_goes_by_itself(tmp_path, found):
    (tmp_path / "pointwise-1").write_text("no link")
    for runtime in (None, "", str(tmp_path / "gone"), str(tmp_path)):
        assert pointwise.agree(runtime, "1", lambda: found) is found


def test_a_torch_that_cannot_be_told_stays_as_it_is(capsys):
    class Other:
        ops = type("ops", (), {"aten": object()})

    pointwise._replace(Other)
    assert "stay as torch has them" in capsys.readouterr().out
