"""The model with heavy arithmetic: its definition, and its archive through TorchServe's loader."""

import io

import pytest
import torch

pytest.importorskip("ts")
pytest.importorskip("PIL")

from PIL import Image

from shunter.model_store.resnet50 import archive, handler


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return archive.pack_resnet50(
        tmp_path_factory.mktemp("store"), config={"handler": {"threads": 1}}
    )


@pytest.fixture(scope="module")
def service(packed, loaded):
    """The packed model, loaded as a worker of TorchServe loads it."""
    with loaded(packed, batch=16) as service:
        assert torch.get_num_threads() == 1
        yield service


def encoded(picture, kind="PNG"):
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def stripes(width=300, height=400, mode="RGB"):
    """A picture with a different colour in every column and row."""
    picture = Image.merge("RGB", [Image.linear_gradient("L").rotate(90 * k) for k in range(3)])
    return picture.resize((width, height)).convert(mode)


def test_the_network_has_as_many_parameters_as_resnet50():
    assert sum(each.numel() for each in archive.random_model().parameters()) == 25_557_032


def test_the_weights_are_always_the_same_and_the_callers_random_numbers_go_on():
    state = torch.random.get_rng_state()
    one, two = archive.random_model().state_dict(), archive.random_model().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_answer_is_five_classes_and_depends_on_the_picture_only(service):
    plain = Image.new("RGB", (224, 224), "red")
    bodies = [encoded(stripes()), bytearray(encoded(plain)), encoded(stripes())]
    answers, statuses = service.predict(bodies)
    assert statuses == [200, 200, 200]
    for answer in answers:
        likely = answer["probabilities"]
        assert len(set(answer["classes"])) == 5
        assert all(0 <= each < 1000 for each in answer["classes"])
        assert likely == sorted(likely, reverse=True)
        assert 1e-3 < likely[0] < 1
    assert answers[2]["classes"] == answers[0]["classes"]
    assert answers[2]["probabilities"] == pytest.approx(answers[0]["probabilities"], rel=1e-4)
    assert answers[1]["probabilities"] != pytest.approx(answers[0]["probabilities"], rel=1e-3)


def test_a_bad_request_is_refused_alone(service):
    answers, statuses = service.predict([b"junk", encoded(stripes()), None])
    assert statuses == [400, 200, 400]
    assert answers[0]["message"] == "the body is no JPEG or PNG that can be read"
    assert len(answers[1]["classes"]) == 5


def test_a_batch_of_bad_requests_only_is_answered(service):
    assert service.predict([b"junk", None])[1] == [400, 400]


def test_the_archive_brings_a_request_that_its_worker_answers(packed, ask_own_sample):
    sample = ask_own_sample(packed)
    assert sample.content_type == "image/jpeg"
    with Image.open(io.BytesIO(sample.body)) as picture:
        assert (picture.format, picture.size) == ("JPEG", (500, 375))
    assert 50_000 < len(sample.body) < 200_000
    assert sample.body == archive.sample()


def test_the_middle_of_a_picture_is_taken():
    picture = Image.new("RGB", (512, 256), "red")
    picture.paste("blue", (140, 10, 372, 246))
    pixels = handler.pixels_of(encoded(picture))
    assert pixels.shape == (224, 224, 3)
    assert bool((pixels == torch.tensor([0, 0, 255])).all())


@pytest.mark.parametrize("size", [(1, 1), (50, 400), (3000, 2000)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_of_every_size_and_kind_are_read(size, mode):
    png = handler.pixels_of(encoded(stripes(*size, mode)))
    jpeg = handler.pixels_of(encoded(stripes(*size, mode), "JPEG"))
    assert png.shape == jpeg.shape == (224, 224, 3)
    assert (png.float() - jpeg.float()).abs().mean() < 8


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JPEG or PNG"),
        (b"\x89PNG\r\n\x1a\n broken", "no JPEG or PNG"),
        (encoded(stripes())[:700], "no JPEG or PNG"),
        (encoded(stripes(), "JPEG")[:2000], "no JPEG or PNG"),
        (encoded(stripes(), "GIF"), "no JPEG or PNG"),
        (encoded(Image.new("L", (1000, 2))), "too thin: 1000 x 2"),
        ({"image": 1}, "send a JPEG or PNG"),
        ("text", "send a JPEG or PNG"),
        (None, "send a JPEG or PNG"),
    ],
)
def test_what_is_wrong_with_a_picture_is_said(body, said):
    with pytest.raises(ValueError) as refused:
        handler.pixels_of(body)
    assert said in str(refused.value)
