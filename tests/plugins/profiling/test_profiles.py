"""Profiles on disk."""

import dataclasses
import errno
import json
import logging
import os
import zipfile
from pathlib import Path

import pytest

from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.planning.profile import Cell, Profile, ProfileError
from shunter.plugins.errors import UserError
from shunter.plugins.profiling.profiles import (
    ProfileStore,
    cpu_model,
    hash_archive,
    load_profile,
    profile_path,
    provenance_here,
    write_profile,
)

HOST = Topology((Cpu(0, 0), Cpu(1, 1)))


@pytest.fixture
def archive(tmp_path):
    return write_archive(tmp_path / "model.mar", weights=b"weights")


def write_archive(path, weights, created="today", model=None):
    manifest = {"createdOn": created, "model": {} if model is None else model}
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("weights.pt", weights)
        content.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    return path


def test_the_same_files_packed_again_are_the_same_model(archive):
    first = hash_archive(archive)
    assert hash_archive(write_archive(archive, weights=b"weights", created="tomorrow")) == first
    assert hash_archive(write_archive(archive, weights=b"weightz")) != first


@pytest.mark.parametrize("content", [b"", b"an archive"])
def test_what_is_no_archive_is_said(tmp_path, content):
    path = tmp_path / "model.mar"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"model\.mar is no model archive"):
        hash_archive(path)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"modelName": "digits"}, "digits"),
        ({"modelName": ""}, "model"),
        ({"modelName": 5}, "model"),
        ({}, "model"),
        ([], "model"),
    ],
)
def test_a_model_has_the_name_that_a_server_registers(archive, model, name):
    write_archive(archive, b"weights", model=model)
    assert provenance_here(archive, topology=HOST).model == name


def test_an_archive_without_a_manifest_is_named_after_its_file(tmp_path):
    path = tmp_path / "plain.mar"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("weights.pt", b"weights")
    assert provenance_here(path, topology=HOST).model == "plain"


def profile_of(archive, *sizes, **changes):
    cells = {(1, b): Cell(1, b, b, b, b, 6) for b in sizes}
    complete = Profile(provenance_here(archive, "hash", HOST), 1, 4, "adaptive", cells).finished(0)
    return dataclasses.replace(complete, **changes)


def test_a_profile_lies_beside_its_archive():
    assert profile_path(Path("/store/my.model.mar")) == Path("/store/my.model.profile.json")


def test_what_is_written_is_read_back_and_nothing_else_is_left(archive):
    path = profile_path(archive)
    for sizes in ([1], [1, 2]):
        profile = profile_of(archive, *sizes)
        write_profile(path, profile)
        assert load_profile(path) == profile
    assert set(archive.parent.iterdir()) == {path, archive}


def full_disk(self, *arguments, **options):
    with self.open("wb") as file:
        file.write(b"{")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_and_leaves_the_profile_as_it_was(archive, monkeypatch):
    path = profile_path(archive)
    write_profile(path, profile_of(archive, 1))
    before = path.read_bytes()
    # No disk is at hand that fills up after one byte.
    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(UserError, match=r"model\.profile\.json cannot be written: No space left"):
        write_profile(path, profile_of(archive, 1, 2))
    assert path.read_bytes() == before
    assert len(list(archive.parent.iterdir())) == 2


def test_a_folder_that_cannot_be_written_to_is_said(archive):
    # Not even root may make files there.
    with pytest.raises(UserError, match=r"/proc/self/m\.profile\.json cannot be written: "):
        write_profile(Path("/proc/self/m.profile.json"), profile_of(archive, 1))


def test_a_damaged_profile_is_refused_by_name(archive):
    path = profile_path(archive)
    path.write_text("{")
    with pytest.raises(ProfileError, match=r"model\.profile\.json: not JSON"):
        load_profile(path)


def test_the_store_reads_a_profile_again_when_it_changes(archive):
    store, path = ProfileStore(HOST), profile_path(archive)
    assert store.of(str(archive)) is None
    write_profile(path, profile_of(archive, 1))
    first = store.of(str(archive))
    assert set(first.cells) == {(1, 1)}
    assert store.of(str(archive)) is first
    write_profile(path, profile_of(archive, 1, 2))
    assert set(store.of(str(archive)).cells) == {(1, 1), (1, 2)}
    path.unlink()
    assert store.of(str(archive)) is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda archive, path: path.write_text("{"), "not JSON"),
        (lambda archive, path: write_archive(archive, weights=b"x"), "was measured with model"),
        (
            lambda archive, path: write_profile(path, profile_of(archive, 1, complete=False)),
            "is not complete: run `shunter profile` again",
        ),
        (
            lambda archive, path: write_profile(path, profile_of(archive, 1, busy=2.0)),
            "was measured while something else used 2.0 CPUs, so its latencies are too high",
        ),
    ],
)
def test_a_profile_that_cannot_be_used_is_logged_once_until_it_changes(
    archive, caplog, spoil, said
):
    caplog.set_level(logging.WARNING, "shunter.profiles")
    store, path = ProfileStore(HOST), profile_path(archive)
    write_profile(path, profile_of(archive, 1))
    spoil(archive, path)
    assert [store.of(str(archive)) for _ in range(3)] == [None] * 3
    [record] = caplog.records
    assert said in record.message
    write_profile(path, profile_of(archive, 1, 2, 4))
    assert store.of(str(archive)) is not None


def test_a_profile_that_is_being_extended_goes_on_being_used(archive):
    store, path = ProfileStore(HOST), profile_path(archive)
    write_profile(path, profile_of(archive, 1))
    first = store.of(str(archive))
    write_profile(path, profile_of(archive, 1, 2, complete=False))
    assert store.of(str(archive)) is first
    write_profile(path, profile_of(archive, 1, 2))
    assert set(store.of(str(archive)).cells) == {(1, 1), (1, 2)}


def test_a_profile_of_another_host_is_not_used(archive, caplog):
    write_profile(profile_path(archive), profile_of(archive, 1))
    larger = Topology((*HOST.cpus, Cpu(2, 2)))
    assert ProfileStore(larger).of(str(archive)) is None
    assert "2 cores, here 3" in caplog.text


def test_no_archive_has_no_profile(tmp_path):
    assert ProfileStore(HOST).of("") is None
    assert ProfileStore(HOST).of(str(tmp_path / "missing.mar")) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "vendor_id\t: V\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Fast CPU\n"
            "stepping\t: 7\n\nmodel name\t: Another\n",
            "Fast CPU (V/6/85/7)",
        ),
        (None, f"{os.uname().machine} (?/?/?/?)"),
    ],
)
def test_the_processor_is_named(tmp_path, text, name):
    path = tmp_path / "cpuinfo"
    if text:
        path.write_text(text)
    assert cpu_model(path) == name
