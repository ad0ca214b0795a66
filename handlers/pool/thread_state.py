"""What code has set for its thread when it stands still in its midst, and others run there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def set_aside() -> Iterator[None]:
    """None of it holds inside: modes of torch, and a loop of events that is at work."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        # Each comes back exactly, whatever is set inside.
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.autocast("cpu", enabled=False))
            if torch.cuda.is_initialized():
                stack.enter_context(torch.autocast("cuda", enabled=False))
                stack.enter_context(torch.cuda.stream(torch.cuda.default_stream()))
            yield
    finally:
        asyncio._set_running_loop(loop)
