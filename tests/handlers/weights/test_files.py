"""Files of weights by several at once; a lock is of an open file, so threads are as good here."""

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shunter.handlers.weights import files
from shunter.handlers.weights.files import attach, digest_of, obtain, sweep
from shunter.handlers.weights.layout import placed

RECORDS = placed([("a", "U8", (100,)), ("b", "F32", (5, 2))])
PARTS = [bytes(range(100)), b"\x01\x02\x03\x04" * 10]
DIGEST = digest_of(RECORDS, PARTS)


def made(folder, parts=PARTS, **options):
    return obtain(folder, RECORDS, lambda: parts, **options)


def content_of(file):
    start = file.data_offset
    return [file.content[start + each.begin : start + each.end] for each in file.records]


def test_a_file_has_what_was_given_and_is_found_again(tmp_path):
    first = made(tmp_path)
    assert first.path == tmp_path / f"{DIGEST}.safetensors"
    assert content_of(first) == PARTS
    inode = first.path.stat().st_ino
    assert made(tmp_path).path.stat().st_ino == inode
    assert made(tmp_path, [PARTS[0], bytes(40)]).path != first.path
    assert first.path.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_the_formats_own_library_reads_it(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    found = numpy.load_file(made(tmp_path).path)
    assert found["a"].tobytes() == PARTS[0]
    assert (found["b"].tobytes(), found["b"].shape) == (PARTS[1], (5, 2))


def test_who_writes_into_its_mapping_changes_nobody_elses(tmp_path):
    mine, others = made(tmp_path), made(tmp_path)
    mine.content[mine.data_offset] = 77
    assert content_of(others) == PARTS
    assert content_of(made(tmp_path)) == PARTS


DAMAGE = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut in the header": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "another byte": lambda path: _flip(path, -1),
    "another byte in the header": lambda path: _flip(path, 30),
}


def _flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_made_again(tmp_path, kind):
    path = made(tmp_path).path
    DAMAGE[kind](path)
    assert content_of(made(tmp_path)) == PARTS
    assert attach(path, DIGEST) is not None


def test_a_link_to_another_file_is_not_followed(tmp_path):
    (tmp_path / "other").write_bytes(b"x")
    (tmp_path / f"{DIGEST}.safetensors").symlink_to(tmp_path / "other")
    with pytest.raises(OSError):
        made(tmp_path)
    assert (tmp_path / "other").read_bytes() == b"x"


def test_many_at_once_make_one_file(tmp_path, monkeypatch):
    written = []
    write = files._write
    monkeypatch.setattr(files, "_write", lambda *given: (written.append(1), write(*given)))
    start = threading.Barrier(8)

    def one(_):
        start.wait()
        return made(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    assert len(written) == 1
    assert len(os.listdir(tmp_path)) == 1
    assert all(content_of(each) == PARTS for each in found)


def test_some_sweep_while_others_make_and_map(tmp_path):
    """Whoever gets a file has a whole one that is there, however often it is swept between."""
    over = threading.Event()

    def sweeps():
        while not over.is_set():
            sweep(tmp_path)

    def makes(_):
        for _ in range(40):
            found = made(tmp_path)
            assert content_of(found) == PARTS
            assert found.path.exists(), "nobody sweeps what is mapped"
            found.content.close()

    with ThreadPoolExecutor(4) as pool:
        sweeper = pool.submit(sweeps)
        try:
            list(pool.map(makes, range(3)))
        finally:
            over.set()
        sweeper.result()


def test_a_full_disk_and_a_full_host_leave_nothing(tmp_path, monkeypatch):
    with pytest.raises(OSError) as caught:
        made(tmp_path, free_bytes=4000)
    assert caught.value.errno == errno.ENOMEM
    sweep(tmp_path)
    assert not os.listdir(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files.os, "posix_fallocate", full)
    with pytest.raises(OSError):
        made(tmp_path)
    sweep(tmp_path)
    assert not os.listdir(tmp_path)


def test_what_a_dead_process_left_half_done_is_made_anew_or_swept(tmp_path):
    draft = tmp_path / f"{DIGEST}.draft"
    lock = tmp_path / f"{DIGEST}.lock"
    draft.write_bytes(b"half" * 10_000)
    lock.touch()
    assert content_of(made(tmp_path)) == PARTS
    assert not draft.exists()
    assert not lock.exists()
    draft.write_bytes(b"half")
    lock.touch()
    sweep(tmp_path)
    assert not os.listdir(tmp_path)


def test_who_stops_while_it_makes_a_file_does_not_stop_others_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WAIT_S", 0.0)
    with (tmp_path / f"{DIGEST}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="is held by another process"):
            made(tmp_path)
        assert sweep(tmp_path) == 0
    assert content_of(made(tmp_path)) == PARTS


def test_only_what_nobody_maps_is_swept(tmp_path):
    used, unused = made(tmp_path), made(tmp_path, [PARTS[0], bytes(40)])
    unused.content.close()
    (tmp_path / "other").write_text("not ours")
    assert sweep(tmp_path) == 1
    assert used.path.exists()
    assert sorted(os.listdir(tmp_path)) == sorted(["other", used.path.name])
    assert sweep(tmp_path / "nowhere") == 0


def test_what_is_an_operators_own_is_not_swept(tmp_path):
    names = ["model.safetensors", "other.lock", "other.draft", f"{'A' * 64}.safetensors"]
    for name in names:
        (tmp_path / name).touch()
    assert sweep(tmp_path) == 0
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_what_is_another_users_is_not_swept(tmp_path, monkeypatch):
    (tmp_path / f"{DIGEST}.safetensors").touch()
    monkeypatch.setattr(files.os, "geteuid", lambda: os.getuid() + 1)
    assert sweep(tmp_path) == 0
    assert os.listdir(tmp_path)


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sweep(tmp_path / "file")
