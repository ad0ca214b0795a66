"""Everything is declared in setup.cfg; this adds the plugin jar while a wheel is built.

An editable install builds no jar: ``shunter plugins-path`` does it on first use.
"""

import importlib.util
import warnings
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_SPEC = importlib.util.spec_from_file_location(
    "shunter_jar", Path(__file__).parent / "plugins/torchserve/build.py"
)
jar = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(jar)


class BuildWithJar(build_py):
    """build_py, then the jar beside the packaged Java sources."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "shunter/plugins/torchserve"
        try:
            jar.build(package / jar.PLUGINS, version=self.distribution.get_version())
        except jar.JarError as error:
            warnings.warn(f"the wheel carries no TorchServe plugin jar: {error}", stacklevel=1)


setup(cmdclass={"build_py": BuildWithJar})
