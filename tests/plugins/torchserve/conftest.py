"""Programs in Java against the jar, for the tests of TorchServe's plugin."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PATIENCE_S = 600
"""No program runs so long, however busy the machine is."""
SOURCES = Path(__file__).parents[2] / "java"


@pytest.fixture(scope="session")
def jar_path():
    """Class path of the plugin: its jar and TorchServe's."""
    if shutil.which("javac") is None or shutil.which("java") is None:
        pytest.skip("needs a JDK")
    if importlib.util.find_spec("ts") is None:
        pytest.skip("needs an installed TorchServe")
    build = pytest.importorskip("shunter.plugins.torchserve.build")
    return build.ensure() / build.JAR, build.torchserve_home() / "frontend/model-server.jar"


@pytest.fixture(scope="session")
def run_tool(tmp_path_factory, jar_path):
    """Runs one of the programs with arguments; returns the finished process."""
    java = Path(os.environ.get("JAVA_HOME", "/nonexistent")) / "bin/java"
    command = str(java) if java.exists() else shutil.which("java")
    # In packages of the jar, because they use classes that only their package sees.
    found = sorted((SOURCES / "org").rglob("*.java"))
    sources = list(map(str, found))
    names = {path.stem: ".".join(path.relative_to(SOURCES).with_suffix("").parts) for path in found}
    jar, host = jar_path
    classes = tmp_path_factory.mktemp("classes")
    compiler = ["javac", "-proc:none", "-encoding", "UTF-8", "-cp", f"{jar}:{host}"]
    subprocess.run([*compiler, "-d", classes, *sources], check=True, timeout=PATIENCE_S)
    # Both names of the property that sets the encoding of standard output: Java 17 and later ones.
    utf8 = ["-Dsun.stdout.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    brief = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]

    def run_tool(tool, *arguments):
        return subprocess.run(
            [
                command,
                *utf8,
                *brief,
                "-cp",
                f"{classes}:{jar}:{host}",
                names[tool],
                *map(str, arguments),
            ],
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )

    return run_tool
