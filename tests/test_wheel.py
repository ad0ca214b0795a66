"""What the wheel carries, and what it says of the systems that it runs on."""

import configparser
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
from setuptools.command.build_py import build_py

from shunter.nic_frontend import build
from shunter.plugins.torchserve import build as jar
from shunter.plugins.triton import build as backend
from shunter.plugins.triton.existing import build as strategy

ROOT = Path(__file__).parents[1]
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1"}
"""Libraries that every manylinux system has; ld-linux is the loader."""


@pytest.fixture
def shunter_setup(monkeypatch):
    """setup.py as a module, which sets nothing up."""
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("shunter_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def manylinux(shunter_setup):
    """The function of setup.py."""
    return shunter_setup.manylinux


def test_every_c_file_is_packed():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    packed = {
        path
        for package, patterns in settings["options.package_data"].items()
        for pattern in patterns.split(",")
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern.strip())
    }
    wanted = {each for module in (build, backend, strategy) for each in module.sources("*.[ch]")}
    assert len(wanted) > 50 and wanted <= packed, sorted(wanted - packed)


def test_a_wheel_has_what_is_compiled_where_it_is_looked_for(shunter_setup, monkeypatch, tmp_path):
    built = []
    monkeypatch.setattr(build_py, "run", lambda self: None)
    for name in ("jar", "library", "backend", "strategy"):
        module = getattr(shunter_setup, name)
        monkeypatch.setattr(module, "build", lambda path, **options: built.append(path))
    command = shunter_setup.BuildCompiled(setuptools.Distribution())
    command.build_lib = str(tmp_path)
    command.run()
    at = {each.relative_to(tmp_path / "shunter") for each in built}
    found = (jar.HERE / jar.PLUGINS, build.HERE / build.LIBRARY, backend.HERE / backend.LIBRARY)
    found += (backend.HERE / strategy.LIBRARY,)
    assert at == {each.relative_to(ROOT) for each in found}


def test_another_processor_gets_no_wheel(shunter_setup, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(SystemExit, match="x86-64 only: this is aarch64"):
        shunter_setup.BuildCompiled(setuptools.Distribution()).run()


def test_the_libraries_know_no_python():
    libraries = (build.HERE / build.LIBRARY, backend.HERE / backend.LIBRARY)
    for path in (*libraries, backend.HERE / strategy.LIBRARY):
        if path.exists():
            assert re.findall(rb"\0_?Py[A-Z_][A-Za-z_]+\0", path.read_bytes()) == []


def test_setup_py_needs_nothing_that_is_not_installed_yet():
    program = """
import sys, types
for name in ("setuptools", "setuptools.command", "setuptools.command.bdist_wheel",
             "setuptools.command.build_py"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["setuptools"].setup = lambda **options: None
sys.modules["setuptools.command.bdist_wheel"].bdist_wheel = object
sys.modules["setuptools.command.build_py"].build_py = object
import runpy
print(runpy.run_path("setup.py")["backend"].HERE)
"""
    bare = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(bare, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(backend.HERE)), done.stderr


def test_the_newest_symbol_decides_and_names_in_other_places_do_not(manylinux, tmp_path):
    library = tmp_path / "library.so"
    symbols = b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.9\0GLIBC_2.17\0puts@GLIBC_2.99\0"
    library.write_bytes(b"\x7fELF" + symbols)
    assert manylinux(library) == f"manylinux_2_17_{platform.machine()}"
    assert manylinux(tmp_path / "none") is None
    newer = tmp_path / "newer.so"
    newer.write_bytes(b"\x7fELF\0GLIBC_2.34\0")
    assert manylinux(library, newer, tmp_path / "none").startswith("manylinux_2_34_")


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
