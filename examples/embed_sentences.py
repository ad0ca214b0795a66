"""Sentences of any length as vectors: by HTTP, and as tensors over the network front end."""

from __future__ import annotations

import tempfile
from pathlib import Path

import httpx
import numpy as np
from serving import serving, shunter

SENTENCES = (
    "How do I reset my password?",
    "I forgot my login credentials, what can I do?",
    "The recipe needs two eggs and a cup of flour, and it is best when the butter is soft, the "
    "oven is hot and nobody opens the door before forty minutes have passed.",
)


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        shunter("pack", "minilm", "--store", folder, "--network", "1x1x32")
        with serving(Path(folder), "--no-tokens") as server, httpx.Client(timeout=120) as client:

            def embed(sentence: str) -> np.ndarray:
                url = f"{server.http}/predictions/minilm"
                answer = client.post(
                    url, json={"text": sentence}, headers={"x-shunter-deadline-ms": "60000"}
                )
                answer.raise_for_status()
                return np.array(answer.json()["embedding"])

            question, paraphrase, other = map(embed, SENTENCES)
            near, far = float(question @ paraphrase), float(question @ other)
            print(f"the same in other words: {near:.2f}; something else: {far:.2f}")
            assert near > far
            over_network(server.network)


def over_network(url: str) -> None:
    """The same model, asked for token ids: no HTTP, no JSON."""
    from shunter.nic_frontend.client import Client

    with Client(url) as client:
        for words in (4, 40, 200):
            ids = np.arange(1000, 1000 + words, dtype=np.int64)
            vector = client.infer("minilm", [ids], deadline_ms=60_000)
            print(f"{words} tokens over UDP: a vector of {vector.shape[-1]} numbers")


if __name__ == "__main__":
    main()
