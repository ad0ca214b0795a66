"""Train the sample model in seconds and state its accuracy on images it has not seen."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shunter.model_store.digits import data
from shunter.model_store.digits.model import Digits

EPOCHS = 20
BATCH = 64
RATE = 2e-3
INK = 16

Progress = Callable[[int, int], None]
"""Called with the epochs done and their number."""


@dataclass(frozen=True)
class Trained:
    """Weights, and what is known of them: accuracy, data, seed."""

    state: dict[str, torch.Tensor]
    metadata: dict[str, Any]


def train(progress: Progress = lambda done, total: None) -> Trained:
    """Train from scratch with a fixed seed."""
    split = data.load()
    # The caller's own random numbers go on undisturbed.
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(data.SEED)
        model = Digits()
        _fit(model, _inputs(split.train_images), torch.as_tensor(split.train_labels), progress)
    accuracy = _accuracy(model, _inputs(split.test_images), torch.as_tensor(split.test_labels))
    metadata = {
        "model": "digits",
        "data": "scikit-learn load_digits, 8x8 images, ink values 0..16",
        "train_images": len(split.train_labels),
        "test_images": len(split.test_labels),
        "test_accuracy": round(accuracy, 4),
        "epochs": EPOCHS,
        "seed": data.SEED,
        "torch": str(torch.__version__),
    }
    return Trained(model.state_dict(), metadata)


def trained(cache: Path | None = None, progress: Progress = lambda done, total: None) -> Trained:
    """The weights from the cache when code and torch are those that made them, else trained now."""
    path = (cache or _user_cache()) / f"digits-{_fingerprint()}.pt"
    if path.is_file():
        return Trained(**torch.load(path, weights_only=True))
    result = train(progress)
    with contextlib.suppress(OSError):  # A read-only home only costs training again.
        _save(result, path)
    return result


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """A model this small trains faster without the hand-over between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fit(model: Digits, images: torch.Tensor, labels: torch.Tensor, progress: Progress) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    model.train()
    for epoch in range(EPOCHS):
        for picked in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[picked]), labels[picked])
            loss.backward()
            optimizer.step()
        progress(epoch + 1, EPOCHS)
    model.eval()


def _inputs(images: Any) -> torch.Tensor:
    return (torch.as_tensor(images, dtype=torch.float32) / INK).unsqueeze(1)


def _accuracy(model: Digits, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.inference_mode():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shunter"


def _fingerprint() -> str:
    here = Path(__file__).parent
    sources = b"".join((here / name).read_bytes() for name in ("data.py", "model.py", "train.py"))
    return hashlib.sha256(sources + str(torch.__version__).encode()).hexdigest()[:16]


def _save(result: Trained, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        torch.save({"state": result.state, "metadata": result.metadata}, file)
    os.replace(file.name, path)
