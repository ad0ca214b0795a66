"""Compile the Java sources beside this file into the plugin jar for ``--plugins-path``.

One rule for a checkout, an editable install and a wheel: the jar lies in ``build/plugins/`` beside
this file, alone, because TorchServe puts everything in that folder on its class path. A wheel is
built with the jar in it; anywhere else :func:`ensure` builds it on first use. The jar records what
it was built from, so staleness is a comparison of contents: an installer may give files any
modification time.

Only the standard library is used: ``setup.py`` loads this file while nothing is installed yet.
"""

from __future__ import annotations

import configparser
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLUGINS = Path("build/plugins")
"""Where the jar lies, relative to this file's folder."""
JAR = "shunter-torchserve.jar"
PROPERTIES = "shunter.properties"
PAGE = HERE.parent / "view/dashboard.html"
"""What a browser gets of ``/shunter/``."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ADVICE = "install a JDK 17 or newer (Debian: apt-get install openjdk-17-jdk-headless)"


class JarError(Exception):
    """The jar cannot be built; the message says what to do."""


def torchserve_home() -> Path:
    """Folder of the installed ``ts`` package, found without importing it (that loads torch)."""
    spec = importlib.util.find_spec("ts")
    if spec is None or not spec.submodule_search_locations:
        raise JarError("TorchServe is not installed: pip install 'torchserve>=0.12,<0.13'")
    home = Path(spec.submodule_search_locations[0])
    if not (home / "frontend/model-server.jar").is_file():
        raise JarError(f"{home} is not TorchServe: it has no frontend/model-server.jar")
    return home


def torchserve_version() -> str:
    """Version of the installed TorchServe."""
    try:
        return importlib.metadata.version("torchserve")
    except importlib.metadata.PackageNotFoundError:
        return (torchserve_home() / "version.txt").read_text(encoding="utf-8").strip()


def shunter_version() -> str:
    """Version of this checkout, else of the installed Shunter."""
    declared = configparser.ConfigParser()
    declared.read(HERE.parent.parent / "setup.cfg", encoding="utf-8")
    if declared.get("metadata", "name", fallback=None) == "shunter":
        return declared["metadata"]["version"]
    return importlib.metadata.version("shunter")


def ensure(folder: Path | None = None) -> Path:
    """Return the folder with a fresh jar in it; build the jar only when it is missing or stale."""
    folder = folder or HERE / PLUGINS
    return folder if is_fresh(folder) else build(folder)


def is_fresh(folder: Path = HERE / PLUGINS) -> bool:
    """Whether there is a jar in it that was built from these sources, for this TorchServe.

    Raises JarError where there is no TorchServe.
    """
    return read_properties(folder / JAR) == _properties(shunter_version())


def build(folder: Path | None = None, *, version: str | None = None) -> Path:
    """Compile and write the jar into ``folder``; return ``folder``.

    The jar appears under its name only when it is complete.
    """
    folder = folder or HERE / PLUGINS
    properties = _properties(version or shunter_version())
    sources = sorted((HERE / "java").rglob("*.java"))
    if not sources:
        raise JarError(f"no Java sources in {HERE / 'java'}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".jar-") as scratch:
            classes = Path(scratch) / "classes"
            _compile(sources, classes)
            resources = HERE / "resources"
            if resources.is_dir():
                shutil.copytree(resources, classes, dirs_exist_ok=True)
            shutil.copy(PAGE, classes)
            (classes / PROPERTIES).write_text(properties, encoding="utf-8")
            finished = Path(scratch) / JAR
            _archive(classes, finished)
            os.replace(finished, folder / JAR)
    except PermissionError as error:
        raise JarError(
            f"{folder} is not writable; build the jar elsewhere with `shunter jar --output DIR` "
            "and pass that DIR to torchserve --plugins-path"
        ) from error
    return folder


def read_properties(jar: Path) -> str | None:
    """What a jar says it was built from; None when there is no such jar."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.read(PROPERTIES).decode()
    except (FileNotFoundError, KeyError, zipfile.BadZipFile):
        return None


def _properties(version: str) -> str:
    lines = {
        "shunter.version": version,
        "torchserve.version": torchserve_version(),
        "source.sha256": _digest(),
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _inputs() -> Iterator[Path]:
    for root in (HERE / "java", HERE / "resources"):
        yield from sorted(path for path in root.rglob("*") if path.is_file())


def _digest() -> str:
    total = hashlib.sha256()
    for path in _inputs():
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(HERE)} {content}\n".encode())
    total.update(PAGE.read_bytes())
    return total.hexdigest()


def _javac() -> str:
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin/javac" if home else None
    if beside and beside.is_file():
        return str(beside)
    found = shutil.which("javac")
    if not found:
        raise JarError(f"javac was not found: {_ADVICE}")
    return found


def _compile(sources: list[Path], classes: Path) -> None:
    """Run javac with warnings as errors.

    ``-proc:none``: TorchServe's jar carries log4j's annotation processor, which would run.
    """
    command = [_javac(), "--release", "17", "-proc:none", "-Xlint:all", "-Werror"]
    command += ["-encoding", "UTF-8", "-cp", str(torchserve_home() / "frontend/model-server.jar")]
    command += ["-d", str(classes), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = (done.stderr or done.stdout).strip()
        advice = f"\n{_ADVICE}" if "release" in text.splitlines()[0] else ""
        raise JarError(f"javac failed:\n{text}{advice}")


def _archive(classes: Path, jar: Path) -> None:
    """Zip the classes with the manifest first and one fixed date: equal inputs, equal bytes."""
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "META-INF/MANIFEST.MF", b"Manifest-Version: 1.0\r\n\r\n")
        for path in sorted(p for p in classes.rglob("*") if p.is_file()):
            _add(archive, path.relative_to(classes).as_posix(), path.read_bytes())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
