"""Everything is declared in setup.cfg; this adds what is compiled while a wheel is built.

That is the plugin jar, the data path's library, and for Triton the backend and the library for
models of other backends. An editable install compiles nothing: each is built on first use.
"""

import importlib
import importlib.util
import platform
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


def load(name: str, path: str) -> ModuleType:
    """A module of the checkout; the package itself is not installed yet."""
    spec = importlib.util.spec_from_file_location(name, HERE / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


jar = load("shunter_jar", "plugins/torchserve/build.py")
library = load("shunter_library", "nic_frontend/build.py")
# Built like the library, whose module it imports by the package's name.
if "shunter" not in sys.modules:
    sys.modules["shunter"] = ModuleType("shunter")
    sys.modules["shunter"].__path__ = [str(HERE)]
backend = importlib.import_module("shunter.plugins.triton.build")
strategy = importlib.import_module("shunter.plugins.triton.existing.build")


class BuildCompiled(build_py):
    """build_py, then what is compiled beside its packaged sources."""

    def run(self) -> None:
        if (machine := platform.machine()) != "x86_64":
            raise SystemExit(f"Shunter runs on Linux on x86-64 only: this is {machine}")
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "shunter"
        try:
            jar.build(
                package / "plugins/torchserve" / jar.PLUGINS,
                version=self.distribution.get_version(),
            )
        except jar.JarError as error:
            warnings.warn(f"the wheel carries no TorchServe plugin jar: {error}", stacklevel=1)
        try:
            library.build(package / "nic_frontend" / library.LIBRARY)
            library.build_seat(package / library.SEAT.relative_to(library.HERE.parent))
        except library.BuildError as error:
            warnings.warn(
                f"the wheel carries no library for the network front end: {error}", stacklevel=1
            )
        try:
            backend.build(package / "plugins/triton" / backend.LIBRARY)
            strategy.build(package / "plugins/triton" / strategy.LIBRARY)
        except backend.UserError as error:
            warnings.warn(f"the wheel carries no backend for Triton: {error}", stacklevel=1)


class PlatformWheel(bdist_wheel):
    """A wheel of this platform for every Python: its libraries are plain C."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        package = Path(self.get_finalized_command("build").build_lib) / "shunter"
        built = package / "nic_frontend" / library.LIBRARY
        at = (package / "plugins/triton" / each.LIBRARY for each in (backend, strategy))
        return "py3", "none", manylinux(built, *at) or super().get_tag()[2]


def manylinux(*built: Path) -> str | None:
    """The tag of systems with a C library that is new enough for these; None without any.

    Package indexes take no plain ``linux_x86_64``. The versions that the symbols need stand in the
    file as texts of their own.
    """
    content = b"".join(each.read_bytes() for each in built if each.is_file())
    if not content:
        return None
    needed = re.findall(rb"\0GLIBC_(\d+)\.(\d+)[.\d]*(?=\0)", content)
    major, minor = max((int(major), int(minor)) for major, minor in needed)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


setup(cmdclass={"build_py": BuildCompiled, "bdist_wheel": PlatformWheel})
