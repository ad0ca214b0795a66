"""The ten models of the soak, what they are asked, and how an answer is known to be right."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import BENCH, Row
from numpy.typing import NDArray
from pool.models import SEEDS, Packed, pack_all
from pool.models import models as pool_models
from rpc import real
from rpc.asking import requests

from shunter.model_store.pack import pack

Array = NDArray[np.generic]
TOLERANCE = 1e-3
"""Of a number of a tensor; what a batch is padded to changes it by less than a tenth of that."""
NETWORK_WORKERS = 2
"""Of each model that the network front end serves: one of them may be dead for a while."""
BATCH, OTHER_BATCH = 8, 16
"""The usual one, and the one that a model is given for a moment: its ceiling."""
QUESTIONS = 16
RESPONSE_TIMEOUT_S = 5
"""Of pooled models and of those that add: their workers are also replaced when they stand still."""
EITHER = (None, "strict", "best_effort")
OWN = (None,)


@dataclass(frozen=True)
class Question:
    """A request whose answer is known."""

    body: bytes
    content_type: str
    key: str
    """Of the input map of gRPC."""
    is_right: Callable[[bytes], bool]
    tensor: Array | None = None
    """The same for the network front end."""


@dataclass(frozen=True)
class Target:
    """A registered model."""

    name: str
    questions: tuple[Question, ...]
    weight: float
    """Its share of the requests, as a weight."""
    classes: tuple[str | None, ...]
    """What requests say of their class; None: nothing."""
    configuration: str = ""
    """Of the workers behind HTTP, of models that are given others now and then."""
    changing: bool = False
    """It comes and goes."""

    @property
    def archive(self) -> str:
        """The name of its file."""
        return f"{self.name}.mar"

    @property
    def by_network(self) -> bool:
        """Whether the network front end serves it."""
        return self.questions[0].tensor is not None


def pack_targets(store: Path, weights: Path) -> list[Target]:
    """Ten archives in a model store; ``weights``: a folder for those of the real networks."""
    real.write_weights(weights, ("digits", "minilm"))
    return [
        _real("minilm", "minilm", "strict", "1x1", 1.0, store, weights),
        _real("digits", "digits", "strict", "2x1", 3.0, store, weights),
        _real("bulk", "digits", "best_effort", "1x1", 2.0, store, weights),
        _sums("sums", 3.0, store),
        _sums("visitor", 1.0, store, changing=True),
        *_pooled(store),
    ]


def _real(
    name: str, network: str, of_class: str, workers: str, weight: float, store: Path, weights: Path
) -> Target:
    """A model of the model store; tensors in, tensors out, by all protocols."""
    [model] = [each for each in real.models() if each.name == network]
    configuration = f"{workers}x{BATCH}"
    section = {"class": of_class, "configuration": configuration}
    section["network"] = f"{NETWORK_WORKERS}x1x{BATCH}"
    settings: Row = {"handler": {"threads": 1}, "section": section}
    real.pack_real(model, store, weights, name=name, batch=OTHER_BATCH, **settings)
    inputs, answers = requests(str(real.write_inputs(weights, network)))
    questions = tuple(
        Question(x.tobytes(), "application/octet-stream", "data", partial(_is_near, y), x)
        for x, y in zip(inputs[:QUESTIONS], answers[:QUESTIONS], strict=True)
    )
    # What is best effort by itself says nothing else: it stands still for the others.
    classes = EITHER if of_class == "strict" else OWN
    return Target(name, questions, weight, classes, configuration)


def _is_near(right: Array, content: bytes) -> bool:
    """Whether these are the numbers, as the bytes of an array."""
    if len(content) != right.nbytes:
        return False
    return bool(np.abs(np.frombuffer(content, right.dtype) - right).max() <= TOLERANCE)


def _sums(name: str, weight: float, store: Path, *, changing: bool = False) -> Target:
    """The model that adds numbers, with two workers; one where it comes and goes."""
    workers = 1 if changing else 2
    config: Row = {"minWorkers": workers, "maxWorkers": workers, "batchSize": BATCH}
    config |= {"maxBatchDelay": 1, "responseTimeout": RESPONSE_TIMEOUT_S}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        shutil.copy(BENCH / "models/sums/handler.py", folder)
        # All models share processes that do not say where they run. JSON is YAML.
        text = json.dumps({**config, "shunter": {"class": "strict", "pool": "dedicated"}})
        (folder / "model-config.yaml").write_text(text, encoding="utf-8")
        pack(folder, store, name=name, weights_needed=False)
    questions = []
    for first in range(QUESTIONS):
        numbers = list(range(first, first + 16))
        sums = [sum(numbers[i : i + 4]) for i in range(0, 16, 4)]
        body = json.dumps({"x": numbers}).encode()
        right = partial(_is_json, lambda found, sums=sums: found == sums)
        questions.append(Question(body, "application/json", "body", right))
    return Target(name, tuple(questions), weight, EITHER, changing=changing)


def _is_json(is_right: Callable[[Any], bool], content: bytes) -> bool:
    """Whether this is JSON, and right."""
    try:
        return is_right(json.loads(content))
    except (ValueError, KeyError, TypeError):
        return False


def _pooled(store: Path) -> list[Target]:
    """Five models that share two processes; two are best effort, the last comes and goes."""
    wanted, config = pool_models(5, 4, 16), {"responseTimeout": RESPONSE_TIMEOUT_S}
    found = []
    for of_class, some in (("best_effort", wanted[:2]), ("strict", wanted[2:])):
        section = {"pool": "shared", "class": of_class}
        for each in pack_all(some, store, section=section, config=config):
            classes = EITHER if of_class == "strict" else OWN
            found.append(_pool_target(each, classes, changing=each.model == wanted[-1]))
    return found


def _pool_target(packed: Packed, classes: tuple[str | None, ...], *, changing: bool) -> Target:
    questions = tuple(
        Question(
            json.dumps({"seed": seed}).encode(),
            "application/json",
            "body",
            partial(_is_json, partial(packed.is_right, seed)),
        )
        for seed in range(SEEDS)
    )
    return Target(packed.name, questions, 0.5, classes, changing=changing)
