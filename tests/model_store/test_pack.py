"""Packing a model folder: what is found, what is refused, and what the archive holds."""

import json
import tempfile
import zipfile

import pytest
import yaml

from shunter.model_store.pack import PackError, copy_config, inspect, pack

pytest.importorskip("model_archiver")

HANDLER = "class Handler:\n    def handle(self, data, context):\n        return data\n"


@pytest.fixture
def folder(tmp_path):
    """A folder with every part."""
    folder = tmp_path / "my_model"
    (folder / "extra/more").mkdir(parents=True)
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model.py").write_text("class Net:\n    pass\n")
    (folder / "weights.pth").write_bytes(b"weights")
    (folder / "model-config.yaml").write_text("batchSize: 4\n")
    (folder / "requirements.txt").write_text("numpy\n")
    (folder / "index_to_name.json").write_text("{}")
    (folder / "extra/words.txt").write_text("words")
    return folder


def entries(archive):
    with zipfile.ZipFile(archive) as content:
        return {name: content.read(name) for name in content.namelist()}


def test_every_part_of_a_folder_is_in_the_archive(folder, tmp_path):
    archive = pack(folder, tmp_path / "store", version="2.1")
    assert archive == tmp_path / "store/my_model.mar"
    content = entries(archive)
    manifest = json.loads(content.pop("MAR-INF/MANIFEST.json"))["model"]
    assert manifest == {
        "modelName": "my_model",
        "modelVersion": "2.1",
        "handler": "handler.py",
        "modelFile": "model.py",
        "serializedFile": "weights.pth",
        "configFile": "model-config.yaml",
        "requirementsFile": "requirements.txt",
    }
    assert set(content) == {
        *("handler.py", "model.py", "weights.pth", "model-config.yaml", "requirements.txt"),
        *("index_to_name.json", "words.txt"),
    }


def test_a_handler_alone_is_enough(tmp_path):
    (tmp_path / "handler.py").write_text("def handle(data, context):\n    return data\n")
    archive = pack(tmp_path, tmp_path / "store", name="alone")
    assert set(entries(archive)) == {"MAR-INF/MANIFEST.json", "handler.py"}


def test_only_what_a_module_defines_in_any_case_counts(tmp_path):
    folder = tmp_path / "with_fallback"
    folder.mkdir()
    text = "try:\n    from ts.no import Base\nexcept ImportError:\n    class Base: ...\n"
    text += "if __debug__:\n    def handle(): ...\n"
    (folder / "handler.py").write_text(f"{text}\n\n@str\nclass Mine(Base): ...\n")
    pack(folder, tmp_path)
    (folder / "handler.py").write_text(f"{text}\n\nasync def handle(data, context): ...\n")
    with pytest.raises(PackError, match="classes found: none"):
        inspect(folder)


def test_a_class_without_weights_is_refused(folder):
    (folder / "weights.pth").unlink()
    told = r"has a model.py but no weights \(one file \*.onnx, .*; --no-weights if its code makes"
    with pytest.raises(PackError, match=told):
        inspect(folder)


def test_a_class_that_makes_its_own_weights_is_packed_where_that_is_said(folder, tmp_path):
    (folder / "weights.pth").unlink()
    archive = pack(folder, tmp_path / "store", weights_needed=False)
    manifest = json.loads(entries(archive)["MAR-INF/MANIFEST.json"])["model"]
    assert manifest["modelFile"] == "model.py" and "serializedFile" not in manifest


def test_an_example_of_a_request_that_is_missing_is_refused(folder):
    (folder / "model-config.yaml").write_text("shunter: {sample: words.txt}\n")
    inspect(folder)
    (folder / "model-config.yaml").write_text("shunter: {sample: picture.jpg}\n")
    with pytest.raises(PackError, match=r"has no picture.jpg, which its model-config.yaml names"):
        inspect(folder)


def test_equal_parts_differ_only_in_the_manifest(folder, tmp_path):
    one = entries(pack(folder, tmp_path / "one"))
    two = entries(pack(folder, tmp_path / "two"))
    assert list(one) == sorted(one)
    del one["MAR-INF/MANIFEST.json"], two["MAR-INF/MANIFEST.json"]
    assert one == two


def test_a_folder_of_the_same_name_in_the_temporary_folder_survives(folder, tmp_path, monkeypatch):
    # torch-model-archiver deletes $TMPDIR/<model name>.
    temporary = tmp_path / "tmp"
    (temporary / "my_model").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    pack(folder, tmp_path / "store")
    assert (temporary / "my_model").is_dir()


def test_an_archive_is_replaced_whole_and_nothing_else_is_left(folder, tmp_path):
    for _ in range(2):
        pack(folder, tmp_path / "store")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["my_model.mar"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("handler.py", None, "has no handler.py"),
        ("handler.py", "x = 1", "exactly one class or a function handle; classes found: none"),
        ("handler.py", "class A: ...\nclass B: ...", "classes found: 2 (A, B)"),
        ("handler.py", "def handle(:", "handler.py, line 1: "),
        ("model.py", "class A: ...\nclass B: ...", "model.py must define exactly one class;"),
        ("model-config.yaml", "- batchSize", "must be a mapping of settings, not list"),
        ("model-config.yaml", "a: [", "is not YAML"),
        ("second.pt", "", "several files of weights (second.pt, weights.pth)"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(folder, file, content, said):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(PackError) as refused:
        inspect(folder)
    assert said in str(refused.value)


def test_a_model_name_that_torchserve_does_not_take_is_refused(folder, tmp_path):
    with pytest.raises(PackError, match="model name 'my model': only letters"):
        pack(folder, tmp_path, name="my model")


def test_a_failed_archiver_leaves_the_store_as_it_was(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(PackError, match=r"torch-model-archiver failed on .*: no reason given"):
        pack(folder, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_weights_are_stored_as_they_are_and_the_rest_is_compressed(folder, tmp_path):
    with zipfile.ZipFile(pack(folder, tmp_path / "store")) as content:
        stored = [each.filename for each in content.infolist() if not each.compress_type]
    assert stored == ["weights.pth"]


def test_a_configuration_is_copied_as_it_is_or_with_changes(folder, tmp_path):
    source = folder / "model-config.yaml"
    source.write_text("# why\nbatchSize: 4\nshunter: {slo_ms: 100}\n")
    copy_config(source, tmp_path)
    assert (tmp_path / "model-config.yaml").read_text() == source.read_text()
    copy_config(source, tmp_path, {"shunter": None, "maxBatchDelay": 7})
    changed = yaml.safe_load((tmp_path / "model-config.yaml").read_text())
    assert changed == {"batchSize": 4, "maxBatchDelay": 7}


@pytest.mark.parametrize("version", ["1/2", "..", "1..2", "", "1 0", "-1"])
def test_a_version_that_is_no_part_of_a_path_is_refused(folder, tmp_path, version):
    with pytest.raises(PackError, match=r"version .* are allowed"):
        pack(folder, tmp_path / "store", version=version)
    assert not (tmp_path / "store").exists()
