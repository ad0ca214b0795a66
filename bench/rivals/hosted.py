"""Inside a rival's process: the handler of a packed archive, called as TorchServe calls it.

It runs in the rival's Python, where the rival's packages come first and those of the benchmark's
environment last: torch and TorchServe's base class are the benchmark's own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ts.context import Context


def settings() -> dict[str, Any]:
    """What the benchmark set."""
    return json.loads(os.environ["SHUNTER_RIVAL"])


class Hosted:
    """One loaded handler. Not for use from several threads at once."""

    def __init__(self) -> None:
        given = settings()
        torch.set_num_threads(given["threads"])
        folder = Path(given["model"])
        manifest = json.loads((folder / "MAR-INF/MANIFEST.json").read_text(encoding="utf-8"))
        self._context = Context(
            manifest["model"]["modelName"],
            str(folder),
            manifest,
            given["max_batch"],
            None,
            "rival",
            model_yaml_config={},
        )
        # Handlers may import what was packed beside them.
        sys.path.insert(0, str(folder))
        self._handler = _handler_class(folder / manifest["model"]["handler"])()
        self._handler.initialize(self._context)
        self._handler.context = self._context
        self._log = os.open(given["batches"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def answers(self, texts: Sequence[str]) -> list[str]:
        """The answers to one batch, in order, encoded by the handler."""
        return self._handler.postprocess(self._inferred(texts))

    def handled(self, bodies: Sequence[bytes]) -> list[str]:
        """The answers to one batch of requests as they came, through the whole handler."""
        os.write(self._log, b"%d\n" % len(bodies))
        rows = self._handler.preprocess([{"body": each} for each in bodies])
        found = self._handler.postprocess(self._handler.inference(rows))
        return [each if isinstance(each, str) else json.dumps(each) for each in found]

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """The embeddings of one batch (n, 384), for servers that encode them themselves."""
        return self._inferred(texts).numpy()

    def _inferred(self, texts: Sequence[str]) -> torch.Tensor:
        # One short append for each batch: what the benchmark reports as the sizes seen.
        os.write(self._log, b"%d\n" % len(texts))
        requests = [{"body": {"text": text}} for text in texts]
        return self._handler.inference(self._handler.preprocess(requests))


def _handler_class(file: Path) -> type:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    [found] = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == file.stem
    ]
    return found
