"""The sample model: its training, its handler, and both archives through TorchServe's loader."""

import io
import json

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("ts")

from PIL import Image

from shunter.model_store.digits import archive, data, handler, train


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def trained(cache):
    return train.trained(cache)


@pytest.fixture(scope="module")
def split():
    return data.load()


@pytest.fixture(params=["script", "eager"])
def service(request, trained, tmp_path, monkeypatch, loaded):
    """The packed model, loaded as a worker of TorchServe loads it."""
    monkeypatch.setattr(train, "trained", lambda **options: trained)
    packed = archive.pack_digits(tmp_path / "store", eager=request.param == "eager")
    with loaded(packed.path) as service:
        yield service


def picture(image, kind, side=8):
    grey = Image.fromarray((image * 255 / 16).round().astype("uint8"))
    file = io.BytesIO()
    grey.resize((side, side), Image.Resampling.NEAREST).save(file, kind)
    return file.getvalue()


def test_the_test_images_are_a_fifth_and_always_the_same(split):
    again = data.load()
    assert (len(split.train_labels), len(split.test_labels)) == (1437, 360)
    assert (split.test_images == again.test_images).all()


def test_the_model_reads_at_least_97_percent_of_images_it_has_not_seen(trained):
    assert trained.metadata["test_accuracy"] >= 0.97
    assert trained.metadata["test_images"] == 360


def test_training_is_repeatable_and_leaves_the_callers_torch_alone(monkeypatch):
    monkeypatch.setattr(train, "EPOCHS", 1)
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    one, two = train.train(), train.train()
    assert all(torch.equal(one.state[name], two.state[name]) for name in one.state)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_weights_are_trained_once_for_one_cache(trained, cache, monkeypatch):
    monkeypatch.setattr(train, "train", lambda progress: pytest.fail("trained again"))
    again = train.trained(cache)
    assert again.metadata == trained.metadata
    assert all(torch.equal(again.state[name], trained.state[name]) for name in trained.state)


def test_a_cache_that_cannot_be_written_only_costs_time(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "train", lambda progress: trained)
    (tmp_path / "file").touch()
    assert train.trained(tmp_path / "file/cache") is trained


def test_progress_counts_every_epoch(monkeypatch):
    monkeypatch.setattr(train, "EPOCHS", 2)
    seen = []
    train.train(lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_an_archive_answers_every_form_of_an_image_with_its_label(service, split):
    image, label = split.test_images[3], split.test_labels[3]
    raw = bytes(image.astype("uint8").reshape(-1))
    bodies = [
        {"image": image.tolist()},
        json.dumps({"image": image.tolist()}),
        bytearray(json.dumps({"image": image.tolist()}).encode()),
        raw,
        bytearray(picture(image, "PNG")),
        picture(image, "PNG", side=64),
        picture(image, "JPEG", side=64),
    ]
    answers, statuses = service.predict(bodies)
    assert statuses == [200] * len(bodies)
    assert [answer["label"] for answer in answers] == [label] * len(bodies)
    assert sum(answers[0]["probabilities"]) == pytest.approx(1, abs=1e-5)


def test_an_archive_is_as_accurate_as_it_says(service, split, trained):
    answers, _ = service.predict([{"image": image.tolist()} for image in split.test_images])
    right = sum(a["label"] == b for a, b in zip(answers, split.test_labels, strict=True))
    assert right / len(answers) == pytest.approx(trained.metadata["test_accuracy"], abs=0.003)


def test_a_bad_request_is_refused_alone(service, split):
    good = {"image": split.test_images[0].tolist()}
    answers, statuses = service.predict([b"junk", good, {}, good])
    assert statuses == [400, 200, 400, 200]
    assert answers[1] == answers[3]
    assert answers[1]["label"] == split.test_labels[0]
    assert answers[0]["message"] == "the body is neither JSON, 64 raw bytes, PNG nor JPEG"


def test_a_batch_of_bad_requests_only_is_answered(service):
    assert service.predict([b"junk", None])[1] == [400, 400]


def test_the_archive_describes_its_model(service, trained):
    assert service.describe() == trained.metadata


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is neither"),
        (b"\x89PNG\r\n\x1a\n broken", "the body is neither"),
        (b"{broken", "starts like JSON but is none"),
        (bytes([17] * 64), "the body is neither"),
        (b'{"picture": 1}', 'send {"image"'),
        ({"image": [[1, 2], [3, 4]]}, "not of shape (2, 2)"),
        ({"image": [["a"] * 8] * 8}, "8 rows of 8 numbers"),
        ({"image": [[1] * 8] * 7 + [[1]]}, "8 rows of 8 numbers"),
        ({"image": [[17] * 8] * 8}, "between 0 and 16"),
        ({"image": [[float("nan")] * 8] * 8}, "between 0 and 16"),
        ({"image": None}, "8 rows of 8 numbers"),
        ([1, 2], 'send {"image"'),
        (None, 'send {"image"'),
    ],
)
def test_what_is_wrong_with_an_image_is_said(body, said):
    with pytest.raises(ValueError) as refused:
        handler.image_of(body)
    assert said in str(refused.value)


def test_an_archive_brings_a_request_that_its_worker_answers(
    trained, split, tmp_path, monkeypatch, ask_own_sample
):
    monkeypatch.setattr(train, "trained", lambda **options: trained)
    sample = ask_own_sample(archive.pack_digits(tmp_path / "store").path)
    assert sample.content_type == "application/json"
    assert json.loads(sample.body)["image"] in split.test_images.tolist()


def test_the_handler_module_defines_exactly_one_class():
    classes = [each for each in vars(handler).values() if isinstance(each, type)]
    assert [each for each in classes if each.__module__ == handler.__name__] == [
        handler.DigitsHandler
    ]
