"""The part of ``shunter demo`` with sentences: what means the same must come out closer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from shunter.model_store.minilm import archive
from shunter.plugins.host import HostProcess

SENTENCES = (
    (
        "How do I reset my password?",
        "I forgot my login credentials, what can I do?",
        "The recipe needs two eggs and a cup of flour.",
    ),
    (
        "A man is playing a guitar on stage.",
        "Someone performs music in front of an audience.",
        "The train to Berlin leaves at noon.",
    ),
    (
        "The company's profits fell sharply last year.",
        "Earnings of the firm dropped a lot in the past twelve months.",
        "Penguins cannot fly, but they swim well.",
    ),
    (
        "It will rain heavily tomorrow.",
        "Expect a downpour on the following day.",
        "She repaired the old clock with great patience.",
    ),
)
"""A sentence, another with the same meaning, a third about something else."""


@dataclass(frozen=True)
class Triple:
    """Cosine similarities of a sentence, or the reason why there are none."""

    sentence: str
    paraphrase: float = math.nan
    unrelated: float = math.nan
    failure: str = ""


def pack(store: Path, console: Console) -> list[str]:
    """Pack the model and return it for the server's list; without its weights say so: no model."""
    missing = archive.weights_missing()
    if missing:
        console.print(f"no sentence embeddings in this demo: {missing}", soft_wrap=True)
        return []
    with console.status("packing minilm"):
        packed = archive.pack_minilm(store)
    console.print("minilm: the published weights of all-MiniLM-L6-v2")
    return [f"minilm={packed.name}"]


def compare(server: HostProcess) -> list[Triple]:
    """Have all sentences embedded, together, so that the server can form batches."""
    url = f"{server.inference}/predictions/minilm"
    with (
        httpx.Client(timeout=60, trust_env=False) as client,
        ThreadPoolExecutor(len(SENTENCES)) as threads,
    ):

        def one(sentences: tuple[str, str, str]) -> Triple:
            try:
                first, *others = [_embed(client, url, sentence) for sentence in sentences]
            except (httpx.HTTPError, ValueError, KeyError) as error:
                return Triple(sentences[0], failure=f"{type(error).__name__}: {error}")
            return Triple(sentences[0], *(float(first @ other) for other in others))

        return list(threads.map(one, SENTENCES))


def table_of(triples: Sequence[Triple]) -> Table:
    """One row for each triple."""
    table = Table(title="cosine similarities of the minilm model", title_justify="left")
    table.add_column("sentence")
    for name in ("a paraphrase", "another subject"):
        table.add_column(name, justify="right")
    for each in triples:
        table.add_row(each.sentence, f"{each.paraphrase:.2f}", f"{each.unrelated:.2f}")
    return table


def problems_of(triples: Sequence[Triple]) -> list[str]:
    """What is wrong with the vectors; empty when nothing is."""
    problems = []
    for each in triples:
        if each.failure:
            problems.append(f"minilm, {each.sentence!r}: {each.failure}")
        elif not each.paraphrase > each.unrelated:
            problems.append(
                f"minilm, {each.sentence!r}: the paraphrase ({each.paraphrase:.2f}) is not closer "
                f"than another subject ({each.unrelated:.2f})"
            )
    return problems


def _embed(client: httpx.Client, url: str, sentence: str) -> np.ndarray:
    answer = client.post(url, json={"text": sentence}, headers={"x-shunter-deadline-ms": "5000"})
    answer.raise_for_status()
    return np.array(answer.json()["embedding"])
