"""What code has set for its thread when it stands still in its midst, and others run there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def set_aside() -> Iterator[None]:
    """None of it holds inside: modes of torch, and a loop of events that is at work."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        # Each comes back exactly, whatever is set inside.
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        asyncio._set_running_loop(loop)
