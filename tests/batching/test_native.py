"""What is no library of ours, or of another version, is not used, and said."""

import pytest
from numpy.random import mtrand

from shunter.batching import native


@pytest.fixture
def load(monkeypatch):
    """Loads the library of that path."""

    def load(path):
        monkeypatch.setenv(native.VARIABLE, str(path))
        return native.library.__wrapped__()

    return load


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library"])
def test_a_broken_file_is_no_library(load, tmp_path, caplog, content):
    path = tmp_path / "libshunter.so"
    path.write_bytes(content)
    assert load(path) is None
    assert f"{path} cannot be loaded, so the data path runs in Python" in caplog.text


def test_a_library_of_others_is_not_used(load, caplog):
    assert load(mtrand.__file__) is None
    assert "cannot be loaded" in caplog.text and "shunter_layout_digest" in caplog.text


@pytest.mark.parametrize("wanted", ["0", "/nowhere/libshunter.so"])
def test_without_a_library_nothing_is_said(load, caplog, wanted):
    assert load(wanted) is None
    assert not caplog.text
