"""One archive, three ways to ask it: TorchServe's HTTP, Triton's HTTP, and UDP.

Nothing of the archive is different: the same handler, the same model-config.yaml, the same
workers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import httpx
import numpy as np
from serving import Served, serving, shunter

from shunter.nic_frontend.client import Client
from shunter.plugins import hosts

PICTURES = 20
DEADLINE_MS = 60_000
"""The model's own is 100 ms, which is little on a busy machine."""
DEADLINE = {"x-shunter-deadline-ms": str(DEADLINE_MS)}


def by_torchserve(server: Served, pictures: np.ndarray) -> list[int]:
    """Digits as TorchServe's clients ask for them."""
    with httpx.Client(base_url=server.http, timeout=60) as client:
        answers = [
            client.post("/predictions/digits", json={"image": picture.tolist()}, headers=DEADLINE)
            for picture in pictures
        ]
    return [int(answer.raise_for_status().json()["label"]) for answer in answers]


def by_udp(server: Served, pictures: np.ndarray) -> list[int]:
    """As tensors, without a server in between."""
    with Client(server.network) as client:
        answers = [client.infer("digits", each, deadline_ms=DEADLINE_MS) for each in pictures]
    return [int(answer.argmax()) for answer in answers]


def by_triton(server: Served, pictures: np.ndarray) -> list[int]:
    """As Triton's clients do: KServe's protocol."""
    found = []
    with httpx.Client(base_url=server.http, timeout=60) as client:
        for picture in pictures:
            tensor = {
                "name": "image",
                "datatype": "FP32",
                "shape": [1, *picture.shape],
                "data": picture.ravel().tolist(),
            }
            asked = {"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS}}
            answer = client.post("/v2/models/digits/infer", json=asked)
            scores = answer.raise_for_status().json()["outputs"][0]["data"]
            found.append(int(np.argmax(scores)))
    return found


def main() -> None:
    """Run it."""
    from shunter.model_store.digits import data

    pictures = data.load().test_images[:PICTURES].astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        shunter("pack", "digits", "--store", folder, "--network", "1x1x32")
        with serving(Path(folder), "--no-tokens") as server:
            told = {"TorchServe": by_torchserve(server, pictures), "UDP": by_udp(server, pictures)}
        if hosts.triton_program() is None:
            print("there is no tritonserver: `make triton` gets one")
        else:
            with serving(Path(folder), "--triton") as server:
                told["Triton"] = by_triton(server, pictures)
    for name, digits in told.items():
        print(f"{name:>10}: {digits}")
    assert len({tuple(digits) for digits in told.values()}) == 1, "the answers differ"


if __name__ == "__main__":
    main()
