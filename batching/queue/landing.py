"""The pool in which payloads land: one piece of shared memory for all functions of a front end.

Its blocks are handed out by ``batching/c/landing.h``. It grows with what is served; its address
stays, so that workers map it once.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable

from shunter.batching.queue.layout import BLOCK
from shunter.batching.queue.shared_memory import Mapping, punch, read_only

LOGGER = logging.getLogger("shunter.nic")
QUIET_NS = 10_000_000_000
SPARE = 512
"""Blocks beyond those that full queues need: what is received, and what lies alone in a block."""


def blocks_for(entries: int, input_bytes: int) -> int:
    """Blocks that the inputs of so many entries take: four fifths of each are used."""
    return -(-entries * input_bytes * 5 // (4 * BLOCK))


class LandingPool:
    """Shared memory of at most so many bytes."""

    def __init__(self, most_bytes: int, free_bytes: Callable[[], float]) -> None:
        """``free_bytes`` says how much memory the host has free. None is taken yet."""
        self.most = -(-most_bytes // BLOCK)
        """Blocks that it can ever have."""
        self.blocks = 0
        self.wanted = 0
        """Blocks that are needed; where it cannot have so many, payloads wait for one another."""
        self._surplus_ns = 0
        self._free_bytes = free_bytes
        self.descriptor = os.memfd_create("shunter-landing", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.mapping = Mapping(self.descriptor, self.most * BLOCK)
            self.reader = read_only(self.descriptor)
        except BaseException:
            os.close(self.descriptor)
            raise

    def grow(self, blocks: int) -> int:
        """Have so many blocks more, as far as it can; how many it has.

        The memory is taken now, so that touching it cannot fail. Raises OSError when there is none.
        """
        wanted = max(self.blocks, min(self.most, self.wanted + blocks))
        more = (wanted - self.blocks) * BLOCK
        if more > self._free_bytes():
            raise OSError(errno.ENOMEM, f"there is no memory for {more} bytes of payloads")
        if more:
            os.posix_fallocate(self.descriptor, self.blocks * BLOCK, more)
        self.blocks = wanted
        self.wanted += blocks
        if self.blocks < self.wanted:
            LOGGER.warning(
                "payloads have %d blocks of the %d that full queues need: some will wait",
                *(self.blocks, self.wanted),
            )
        return wanted

    def need_less(self, blocks: int) -> None:
        """Of those that :meth:`grow` got, so many are needed no more."""
        self.wanted -= blocks

    def give_back(self, now_ns: int, shrink: Callable[[int], int]) -> None:
        """Let the host have what was not needed for a while.

        ``shrink(blocks)`` uses no more than so many from now on, if it can; how many it uses.
        """
        if self.blocks <= self.wanted:
            self._surplus_ns = 0
        elif not self._surplus_ns:
            self._surplus_ns = now_ns
        elif now_ns - self._surplus_ns > QUIET_NS:
            kept, self._surplus_ns = shrink(self.wanted), now_ns
            if kept < self.blocks:
                punch(self.descriptor, kept * BLOCK, (self.blocks - kept) * BLOCK)
                self.blocks = kept

    def close(self) -> None:
        """Unmap and close it."""
        self.mapping.close()
        os.close(self.descriptor)
        os.close(self.reader)

    def __enter__(self) -> LandingPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
