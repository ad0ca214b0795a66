"""What is no library of ours, or of another version, is not used, and said; who needs one ends."""

import pytest
from numpy.random import mtrand

from shunter.batching.queue.native import LibraryError
from shunter.nic_frontend import library
from shunter.nic_frontend.client import Session, connection, native_client
from shunter.nic_frontend.server.front_end import FrontEnd, Settings


@pytest.fixture
def at(monkeypatch):
    """The library is at that path."""

    def at(path):
        monkeypatch.setenv(library.VARIABLE, str(path))
        return library.library.__wrapped__()

    return at


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library"])
def test_a_broken_file_is_no_library(at, tmp_path, caplog, content):
    path = tmp_path / "libshunter.so"
    path.write_bytes(content)
    assert at(path) is None
    assert f"{path} cannot be loaded" in caplog.text


def test_a_library_of_others_is_not_used(at, caplog):
    assert at(mtrand.__file__) is None
    assert "cannot be loaded" in caplog.text and "shunter_layout_digest" in caplog.text


WITHOUT = [
    ("0", "SHUNTER_NATIVE=0 forbids the C library"),
    ("/nowhere/libshunter.so", "there is no /nowhere/libshunter.so"),
    (mtrand.__file__, "cannot be loaded"),
]


@pytest.mark.parametrize(("wanted", "why"), WITHOUT)
def test_without_a_library_there_is_no_front_end(at, tmp_path, wanted, why):
    at(wanted)
    with pytest.raises(LibraryError) as error:
        FrontEnd(Settings(tmp_path / "nic.sock", port=0))
    assert why in str(error.value)
    assert "`make library`" in str(error.value)
    assert not (tmp_path / "nic.sock").exists()


def test_on_a_processor_that_reorders_stores_there_are_clients_and_no_front_end(
    built, monkeypatch, tmp_path
):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert library.require()
    with pytest.raises(LibraryError, match="needs an x86_64 processor, this one is aarch64"):
        FrontEnd(Settings(tmp_path / "nic.sock", port=0))
    assert not (tmp_path / "nic.sock").exists()


def test_on_a_big_endian_processor_there_is_no_library(built, monkeypatch):
    monkeypatch.setattr("sys.byteorder", "big")
    with pytest.raises(LibraryError, match="little-endian"):
        library.require()


@pytest.mark.parametrize(("wanted", "why"), WITHOUT)
def test_without_a_library_a_client_says_how_to_get_it(at, monkeypatch, wanted, why):
    at(wanted)
    monkeypatch.setattr(native_client, "functions", native_client.functions.__wrapped__)
    monkeypatch.setattr(connection, "functions", native_client.functions)
    with pytest.raises(LibraryError) as error:
        Session("udp://127.0.0.1:9", "m", timeout_s=0.1)
    assert why in str(error.value)
    assert "`make library`" in str(error.value)
