"""When the library is built anew, and what is said when it cannot be."""

import platform

from shunter.nic_frontend import build


def test_a_library_of_another_machine_is_stale(monkeypatch, tmp_path):
    library = tmp_path / "libshunter.so"
    library.write_bytes(build._MARK + build.digest().encode())
    assert build.is_fresh(library)
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert not build.is_fresh(library)
