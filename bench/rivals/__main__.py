"""Try the rivals: ``cd bench && python -m rivals [--archive minilm.mar] [bentoml] [triton]``.

Starts each, sends concurrent requests, compares the answers with the handler's own, and prints the
sizes of the batches that formed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import os
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rivals import bentoml_server, process, triton_server
from rivals.environments import Unavailable
from shunter.model_store.minilm import archive

_RIVALS = {
    # Long enough that BentoML refuses nothing.
    "bentoml": functools.partial(bentoml_server.Bento, max_latency_ms=30_000),
    "triton": functools.partial(triton_server.Triton, priorities=True, timeouts=True),
}
_CONCURRENT = 50
_CLOSE = 1e-3
"""Padding to the longest text of a batch moves the last digits."""
_TEXT = "a quiet street in the rain seen from a warm window by one patient cat"


def main() -> int:
    """Check each rival; 1 when an answer was wrong."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("rivals", nargs="*", metavar="rival", help=" or ".join(_RIVALS))
    arguments.add_argument("--archive", type=Path, help="packed minilm; default: pack it now")
    arguments.add_argument("--threads", type=int, default=2, help="torch's threads")
    given = arguments.parse_args()
    if unknown := set(given.rivals) - set(_RIVALS):
        arguments.error(f"no such rival: {', '.join(sorted(unknown))}")
    wrong = 0
    with _packed(given.archive) as packed:
        expected = _expected(packed, given.threads)
        for name in given.rivals or _RIVALS:
            try:
                with _RIVALS[name](packed, threads=given.threads) as server:
                    wrong += _check(server, expected)
            except Unavailable as reason:
                print(f"{name}: unavailable: {reason}")
    return 1 if wrong else 0


@contextmanager
def _packed(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield archive.pack_minilm(Path(folder))


def _expected(packed: Path, threads: int) -> dict[str, list[float]]:
    """What the handler says in this process, one text at a time."""
    words = _TEXT.split()
    texts = [" ".join(words[:count]) for count in range(3, len(words))]
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(packed) as content:
            content.extractall(folder)
        settings = {"model": folder, "threads": threads, "max_batch": 1, "batches": os.devnull}
        os.environ[process.SETTINGS] = json.dumps(settings)
        # Not at the top: TorchServe logs at import what it does not find.
        logging.disable(logging.WARNING)
        from rivals.hosted import Hosted

        handler = Hosted()
        return {text: handler.vectors([text])[0].tolist() for text in texts}


def _check(server: process.Rival, expected: dict[str, list[float]]) -> int:
    texts = list(itertools.islice(itertools.cycle(expected), _CONCURRENT))
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        for _ in range(3):
            answers = list(pool.map(lambda text: _post(server, text), texts))
    wrong = sum(
        status != 200 or not _near(server.embedding(answer), expected[text])
        for text, (status, answer) in zip(texts, answers, strict=True)
    )
    sizes = ", ".join(f"{size} x{n}" for size, n in sorted(server.batches().items()))
    print(f"{server.name} {server.version}: {dict(Counter(status for status, _ in answers))}")
    print(f"  wrong answers: {wrong} of {len(answers)}; batches seen: {sizes}")
    return wrong


def _post(server: process.Rival, text: str) -> tuple[int, bytes]:
    request = urllib.request.Request(server.url, server.body(text), dict(server.headers))
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def _near(one: list[float], other: list[float]) -> bool:
    return all(abs(a - b) < _CLOSE for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    sys.exit(main())
