"""The page of an existing model: its one writer."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from shunter.plugins.errors import UserError
from shunter.plugins.triton.layout import MAGIC, digest, format_of, pack

HOLDS_S = 10.0
"""Numbers that nobody renews are forgotten after this time: Triton then batches as it likes."""
_SEQUENCE = 16
"""Where that word lies."""


class StrategyPage:
    """Numbers for the strategy library of one model; the file stays when this ends."""

    def __init__(self, path: Path) -> None:
        """It is made where it is not there. Raises UserError; so does a second writer."""
        self.path = path
        self._values: dict[str, int] = {}
        try:
            # The same file as before: Triton may have it open.
            how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, how, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise UserError(
                f"{path} is written by somebody else, who controls this model"
            ) from error
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from error
        size = format_of("strategy").size
        before = os.pread(self._file, size, 0)
        self._sequence = int.from_bytes(before[_SEQUENCE : _SEQUENCE + 8].ljust(8, b"\0"), "little")
        if len(before) != size:
            os.ftruncate(self._file, size)

    def write(self, **values: int) -> None:
        """Change these numbers and renew all of them."""
        self._values |= values
        self._put(time.monotonic_ns() + round(HOLDS_S * 1e9))

    def _put(self, until_ns: int) -> None:
        self._sequence += 1 + self._sequence % 2  # now odd
        self._write_sequence()
        words = {"magic": MAGIC, "digest": digest(), "until_ns": until_ns} | self._values
        os.pwrite(self._file, pack("strategy", sequence=self._sequence, **words), 0)
        self._sequence += 1
        self._write_sequence()

    def _write_sequence(self) -> None:
        os.pwrite(self._file, (self._sequence & (1 << 64) - 1).to_bytes(8, "little"), _SEQUENCE)

    def close(self) -> None:
        """Let Triton batch as it likes from now on."""
        if self._file >= 0:
            self._put(0)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
