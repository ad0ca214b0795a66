"""Several client processes at once, see ``asking.py``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, Self

from common import BENCH

SOON_S = 0.05
"""All of them have read what they are to do, and begin together."""


class Askers:
    """So many processes, from now until the end. A context manager."""

    def __init__(self, count: int) -> None:
        self._all = [
            subprocess.Popen(
                [sys.executable, "-m", "rpc.asking"],
                cwd=BENCH,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.terminate()
        for process in self._all:
            process.wait()

    def ask(self, count: int, inputs: int, **what: Any) -> list[dict[str, Any]]:
        """What the first ``count`` of them found; each begins elsewhere in the ``inputs``."""
        begin, chosen = time.monotonic() + SOON_S, self._all[:count]
        for place, process in enumerate(chosen):
            line = {**what, "first": place * inputs // count, "begin": begin}
            assert process.stdin
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
        found = []
        for process in chosen:
            assert process.stdout
            found.append(json.loads(process.stdout.readline() or '{"error": "a client ended"}'))
        for each in found:
            if "error" in each:
                raise RuntimeError(f"{what['target']}: {each['error']}")
        return found
