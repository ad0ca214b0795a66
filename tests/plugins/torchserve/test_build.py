import importlib.util
import os
import tempfile
import zipfile

import pytest

from shunter.plugins.torchserve import build

SOURCE = """
package org.example;
/** Compiles. */
final class Small {
    private Small() {}
}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A small source tree in place of ours."""
    (tmp_path / "java").mkdir()
    (tmp_path / "java/Small.java").write_text(SOURCE)
    services = tmp_path / "resources/META-INF/services"
    services.mkdir(parents=True)
    (services / "org.example.Service").write_text("org.example.Small\n")
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setattr(build, "shunter_version", lambda: "9.8")
    return tmp_path


@pytest.fixture
def fake_javac(monkeypatch):
    """Copies each source as its class: the rest of the build needs no JDK."""

    def copy(sources, classes):
        classes.mkdir()
        for source in sources:
            (classes / f"{source.stem}.class").write_bytes(source.read_bytes())

    monkeypatch.setattr(build, "_compile", copy)
    monkeypatch.setattr(build, "torchserve_version", lambda: "0.12.0")


@pytest.fixture
def no_jdk(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.java
def test_our_own_sources_compile_without_a_warning(tmp_path):
    assert build.build(tmp_path) == tmp_path


@pytest.mark.usefixtures("fake_javac")
def test_the_folder_holds_only_the_jar(home):
    folder = build.ensure()
    assert [path.name for path in folder.iterdir()] == [build.JAR]


@pytest.mark.usefixtures("fake_javac")
def test_the_jar_holds_classes_resources_and_what_it_was_built_from(home):
    with zipfile.ZipFile(build.ensure() / build.JAR) as jar:
        names = jar.namelist()
    assert names[0] == "META-INF/MANIFEST.MF"
    assert {"Small.class", "META-INF/services/org.example.Service"} < set(names)
    properties = dict(
        line.split("=") for line in build.read_properties(home / build.PLUGINS / build.JAR).split()
    )
    assert properties["shunter.version"] == "9.8"
    assert properties["torchserve.version"] == "0.12.0"


@pytest.mark.usefixtures("fake_javac")
def test_equal_sources_give_equal_bytes(home, tmp_path):
    one = build.build(tmp_path / "one") / build.JAR
    two = build.build(tmp_path / "two") / build.JAR
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.usefixtures("fake_javac")
def test_a_fresh_jar_is_left_alone(home):
    build.ensure()
    before = (home / build.PLUGINS / build.JAR).stat().st_mtime_ns
    build.ensure()
    assert (home / build.PLUGINS / build.JAR).stat().st_mtime_ns == before


@pytest.mark.usefixtures("fake_javac")
@pytest.mark.parametrize("change", ["source", "resource", "version", "torn"])
def test_a_changed_input_or_a_torn_jar_leads_to_a_new_jar(home, monkeypatch, change):
    jar = build.ensure() / build.JAR
    os.utime(jar, ns=(1, 1))
    if change == "source":
        (home / "java/Small.java").write_text(SOURCE.replace("Compiles", "Still compiles"))
    elif change == "resource":
        (home / "resources/more.txt").write_text("more")
    elif change == "version":
        monkeypatch.setattr(build, "shunter_version", lambda: "9.9")
    else:
        jar.write_bytes(jar.read_bytes()[:100])
    build.ensure()
    assert jar.stat().st_mtime_ns != 1


@pytest.mark.java
def test_a_source_that_does_not_compile_leaves_the_old_jar(home):
    folder = build.ensure()
    before = (folder / build.JAR).read_bytes()
    (home / "java/Small.java").write_text("class Broken {")
    with pytest.raises(build.JarError, match=r"javac failed:[^$]*Small\.java:1"):
        build.ensure()
    assert [path.name for path in folder.iterdir()] == [build.JAR]
    assert (folder / build.JAR).read_bytes() == before


@pytest.mark.java
def test_a_warning_of_javac_is_an_error(home):
    raw = "class Raw { java.util.List names() { return null; } }"
    (home / "java/Raw.java").write_text(raw)
    with pytest.raises(build.JarError, match="rawtypes"):
        build.ensure()


@pytest.mark.usefixtures("fake_javac")
def test_a_folder_that_is_not_writable_is_named_with_the_way_out(home, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(build.JarError, match=r"is not writable.*shunter jar --output"):
        build.ensure()


@pytest.mark.skipif(importlib.util.find_spec("ts") is None, reason="needs TorchServe")
def test_a_missing_jdk_is_named_with_advice(home, no_jdk):
    with pytest.raises(build.JarError, match="javac was not found: install a JDK 17"):
        build.ensure()


def test_a_missing_torchserve_is_named_with_advice(home, monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.JarError, match="pip install 'torchserve"):
        build.build()


def test_the_version_of_a_checkout_is_that_of_setup_cfg():
    assert build.shunter_version().count(".") == 2
