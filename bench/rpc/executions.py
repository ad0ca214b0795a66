"""What ran, and how often: requests bear numbers, which the handler writes down."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np


class Executions:
    """How often each request ran, from what the handlers wrote down."""

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, 0

    def take(self) -> Counter[int]:
        """Of the requests since the last time."""
        data = self._path.read_bytes()[self._seen :] if self._path.exists() else b""
        self._seen += len(data)
        return Counter(np.frombuffer(data[: len(data) // 8 * 8], np.uint64).tolist())
