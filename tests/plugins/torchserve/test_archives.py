"""Archives: what is read from them, and those that are none."""

import zipfile

import pytest

from shunter.handlers.sample import Sample
from shunter.model_store.pack import pack
from shunter.plugins.errors import UserError
from shunter.plugins.torchserve.archives import UnpackedModel, unpack

pytest.importorskip("model_archiver")


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "handler.py").write_text("def handle(data, context): return data\n" * 20)
    (folder / "model-config.yaml").write_text(
        "shunter:\n  environment: {TINY: 5}\n  sample: sample.json\n"
    )
    (folder / "sample.json").write_text('{"a": 1}')
    return pack(folder, folder / "store", name="tiny")


def test_the_archives_own_sample_and_variables_are_found(archive, tmp_path):
    model = unpack(archive, tmp_path / "unpacked")
    assert model.sample() == Sample(b'{"a": 1}', "application/json")
    assert model.environment == {"TINY": "5"}


@pytest.mark.parametrize("name", ["missing.json", "../outside.json", "MAR-INF", "a\0b"])
def test_a_sample_that_is_no_file_of_the_archive_is_refused(tmp_path, name):
    folder = tmp_path / "model"
    (folder / "MAR-INF").mkdir(parents=True)
    (tmp_path / "outside.json").write_text("{}")
    found = UnpackedModel("m", folder, "handler.py", {"shunter": {"sample": name}})
    with pytest.raises(UserError, match=r"m: shunter: .* is no file of the archive"):
        found.sample()


@pytest.mark.parametrize("section", [None, [], "text", {}, {"environment": ["A=1"]}])
def test_a_section_of_another_form_says_nothing(tmp_path, section):
    found = UnpackedModel("m", tmp_path, "handler.py", {"shunter": section})
    assert (found.sample(), found.environment) == (None, {})


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        "",
        "[]",
        "{}",
        '{"model": {"modelName": "m"}}',
        '{"model": {"modelName": "m", "handler": "h", "configFile": "missing"}}',
        '{"model": {"modelName": "m", "handler": "h", "configFile": 5}}',
    ],
)
def test_an_archive_without_a_good_manifest_is_refused_by_name(tmp_path, manifest):
    path = tmp_path / "bad.mar"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("handler.py", "")
        if manifest is not None:
            content.writestr("MAR-INF/MANIFEST.json", manifest)
    with pytest.raises(UserError, match=r"bad\.mar cannot be read as a model archive"):
        unpack(path, tmp_path / "unpacked")


@pytest.mark.parametrize("damage", ["missing", "folder", "text", "cut", "flipped", "encrypted"])
def test_what_is_no_archive_is_refused_by_name(archive, tmp_path, damage):
    path = tmp_path / "bad.mar"
    content = bytearray(archive.read_bytes())
    if damage == "folder":
        path.mkdir()
    elif damage == "text":
        path.write_text("hello")
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[60:200] = bytes(140)
        path.write_bytes(content)
    elif damage == "encrypted":
        place = content.index(b"PK\1\2")
        content[place + 8] |= 1
        content[6] |= 1
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.mar cannot be read as a model archive"):
        unpack(path, tmp_path / "unpacked")


def test_no_entry_of_an_archive_is_written_outside_of_its_folder(tmp_path):
    path = tmp_path / "bad.mar"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("../../escaped", "")
        content.writestr("/escaped", "")
        content.writestr("MAR-INF/MANIFEST.json", '{"model": {"modelName": "m", "handler": "h"}}')
    model = unpack(path, tmp_path / "deep/unpacked")
    assert (model.name, model.handler, dict(model.config)) == ("m", "h", {})
    outside = [p for p in tmp_path.rglob("escaped") if not p.is_relative_to(model.folder)]
    assert outside == []
