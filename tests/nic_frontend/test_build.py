"""When the library is built anew, and what is said when it cannot be."""

import platform

import pytest

from shunter.nic_frontend import build


def test_a_library_of_another_machine_is_stale(monkeypatch, tmp_path):
    library = tmp_path / "libshunter.so"
    library.write_bytes(build._MARK + build.digest().encode())
    assert build.is_fresh(library)
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert not build.is_fresh(library)


def test_what_the_system_says_is_passed_on(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(build.BuildError, match=f"{file}: File exists"):
        build.build(file / "libshunter.so")
    monkeypatch.setenv("CC", str(file))  # no program
    with pytest.raises(build.BuildError, match=f"{file}: Permission denied"):
        build.build(tmp_path / "libshunter.so")
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    with pytest.raises(build.BuildError, match=r"the compiler was not found: install"):
        build.build(tmp_path / "libshunter.so")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("content", "said"), [(b"", ""), (build.WITHOUT_VERBS, "no RDMA backend")])
def test_a_library_without_rdma_says_so(monkeypatch, tmp_path, capsys, content, said):
    library = tmp_path / "libshunter.so"
    library.write_bytes(content)
    monkeypatch.setattr(build, "ensure", lambda: library)
    assert build.main() == 0
    out, err = capsys.readouterr()
    assert out == f"{library}\n"
    assert said in err if said else not err
