"""What stands still keeps its modes; what runs meanwhile has none of them."""

import asyncio

import pytest
import torch

from shunter.handlers.pool.process_state import ProcessState
from shunter.handlers.pool.thread_state import set_aside


def test_no_mode_holds_meanwhile_and_all_hold_again():
    async def stands():
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            with set_aside():
                inside = (torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
                asyncio.run(asyncio.sleep(0))
            return inside, (torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))

    assert asyncio.run(stands()) == ((False, False), (True, True))


@pytest.mark.gpu
def test_no_mode_of_a_gpu_holds_meanwhile():
    torch.zeros(1, device="cuda")
    other = torch.cuda.Stream()
    with torch.autocast("cuda"), torch.cuda.stream(other):
        with set_aside():
            assert not torch.is_autocast_enabled("cuda")
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.is_autocast_enabled("cuda")
        assert torch.cuda.current_stream() == other


def test_flags_of_cudnn_are_kept_apart():
    before, flags = ProcessState.now(), torch.backends.cudnn
    try:
        flags.benchmark = not before.cudnn[0]
        assert ProcessState.now().cudnn != before.cudnn
    finally:
        before.restore()
    assert ProcessState.now().cudnn == before.cudnn


@pytest.mark.gpu
def test_seeds_of_a_gpu_are_kept_apart():
    torch.zeros(1, device="cuda")
    before = ProcessState.now()
    first = torch.rand(1, device="cuda")
    before.restore()
    assert torch.equal(torch.rand(1, device="cuda"), first)
