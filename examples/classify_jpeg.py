"""Pictures as JPEG files, asked by several clients at once: batches form by themselves.

The network is ResNet-50 with random weights, so the classes mean nothing; that every picture gets
the answer that it gets alone is what is looked at.
"""

from __future__ import annotations

import io
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
from PIL import Image
from serving import serving, shunter

PICTURES = 24
HEADERS = {"content-type": "image/jpeg", "x-shunter-deadline-ms": "60000"}


def jpeg(seed: int) -> bytes:
    """A picture of soft stripes."""
    x, y = np.meshgrid(np.linspace(0, 6, 320), np.linspace(0, 6, 240))
    waves = [np.sin(x * (seed % 5 + 1) + k) * np.cos(y * (seed % 3 + 1) + seed) for k in range(3)]
    pixels = (127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def main() -> None:
    """Run it."""
    pictures = [jpeg(seed) for seed in range(PICTURES)]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        shunter("pack", "resnet50", "--store", folder)
        with serving(store, "--no-tokens") as server, httpx.Client(timeout=120) as client:
            url = f"{server.http}/predictions/resnet50"

            def classify(picture: bytes) -> object:
                answer = client.post(url, content=picture, headers=HEADERS)
                answer.raise_for_status()
                return answer.json()

            alone = [classify(picture) for picture in pictures[:4]]
            with ThreadPoolExecutor(8) as clients:
                together = list(clients.map(classify, pictures))
            print(f"first answer: {str(alone[0])[:120]}")
            best = [max(each, key=each.get) for each in [*alone, *together[:4]]]
            assert best[:4] == best[4:], "a picture's class must not depend on its batch"
            print(f"{len(together)} pictures by 8 clients at once; classes as when asked alone")


if __name__ == "__main__":
    main()
