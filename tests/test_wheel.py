"""What the wheel says of the systems that it runs on."""

import importlib.util
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import setuptools

from shunter.nic_frontend import build

ROOT = Path(__file__).parents[1]
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1"}
"""Libraries that every manylinux system has; ld-linux is the loader."""


@pytest.fixture
def manylinux(monkeypatch):
    """The function of setup.py, which is not run."""
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("shunter_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.manylinux


def test_the_newest_symbol_decides_and_names_in_other_places_do_not(manylinux, tmp_path):
    library = tmp_path / "library.so"
    symbols = b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.9\0GLIBC_2.17\0puts@GLIBC_2.99\0"
    library.write_bytes(b"\x7fELF" + symbols)
    assert manylinux(library) == f"manylinux_2_17_{platform.machine()}"
    assert manylinux(tmp_path / "none") is None


def test_the_tag_is_that_of_the_library_which_needs_nothing_but_the_system(manylinux):
    if shutil.which("objdump") is None or not (library := build.HERE / build.LIBRARY).exists():
        pytest.skip("needs objdump, and the library")

    def dump(option):
        command = ["objdump", option, library]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", dump("-T"))
    major, minor = max((int(a), int(b)) for a, b in versions)
    assert manylinux(library) == f"manylinux_{major}_{minor}_{platform.machine()}"
    needed = set(re.findall(r"NEEDED +(\S+)", dump("-p")))
    assert {name for name in needed if not name.startswith("ld-linux")} <= SYSTEM
