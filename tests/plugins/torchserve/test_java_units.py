"""The Java classes that decide about requests, driven by JUnit without a server."""

import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import hypothesis
import pytest

pytestmark = pytest.mark.java

UNITS = Path(__file__).parents[2] / "java/unit"
DEBIAN = Path("/usr/share/java")
JARS = (
    *("junit-jupiter-api.jar", "junit-jupiter-engine.jar", "junit-jupiter-params.jar"),
    *("junit-platform-commons.jar", "junit-platform-engine.jar", "junit-platform-launcher.jar"),
    *("junit-platform-console.jar", "junit-platform-reporting.jar", "opentest4j.jar"),
    *("apiguardian-api.jar", "picocli.jar", "univocity-parsers.jar"),
    *("opentest4j-reporting-events.jar", "opentest4j-reporting-schema.jar"),
)
CLASSES = {path.stem: path.relative_to(UNITS) for path in sorted(UNITS.rglob("*Test.java"))}
SCHEDULES = 400
"""Random schedules; :data:`FUZZ_SCHEDULES` with ``make fuzz``, else as SHUNTER_SCHEDULES says."""
FUZZ_SCHEDULES = 20_000
PLAIN_EXAMPLES = 100
WRONG = ("failure", "error", "skipped")


@pytest.fixture(scope="module")
def cases(tmp_path_factory, jar_path, request):
    """Compiles the tests against the built jar and runs the classes asked for in one process.

    By class: for each of its cases what went wrong, or nothing.
    """
    jars = [DEBIAN / name for name in JARS if (DEBIAN / name).exists()]
    if not (DEBIAN / "junit-platform-console.jar").exists():
        pytest.skip("needs JUnit 5 (Debian: apt-get install junit5)")
    classes, reports = tmp_path_factory.mktemp("units"), tmp_path_factory.mktemp("reports")
    path = os.pathsep.join(map(str, [classes, *jars, *jar_path]))
    compiler = ["javac", "-proc:none", "-Xlint:none", "-encoding", "UTF-8", "-cp", path]
    sources = map(str, UNITS.rglob("*.java"))
    subprocess.run([*compiler, "-d", classes, *sources], check=True, timeout=120)
    more = hypothesis.settings.default.max_examples > PLAIN_EXAMPLES
    schedules = os.environ.get("SHUNTER_SCHEDULES", str(FUZZ_SCHEDULES if more else SCHEDULES))
    callspecs = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {each.params.get("java_class") for each in callspecs if each is not None}
    done = subprocess.run(
        [
            *(shutil.which("java"), "-ea", "-XX:+UseSerialGC", f"-Dshunter.schedules={schedules}"),
            f"-Dshunter.seed={os.environ.get('SHUNTER_SEED', '')}",
            *("-cp", path, "org.junit.platform.console.ConsoleLauncher"),
            *("--disable-banner", "--details=tree", "--disable-ansi-colors"),
            *("--reports-dir", str(reports)),
            *(f"--select-class={_java_name(each)}" for each in CLASSES if each in wanted),
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=1800,
        check=False,
    )
    found = {}
    for case in ElementTree.parse(reports / "TEST-junit-jupiter.xml").iter("testcase"):
        wrong = [f"{each.get('message')}\n{each.text}" for each in case if each.tag in WRONG]
        found.setdefault(case.get("classname"), {})[case.get("name")] = wrong
    failed = any(wrong for each in found.values() for wrong in each.values())
    assert failed or done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return found


def _java_name(java_class):
    return ".".join(CLASSES[java_class].with_suffix("").parts)


@pytest.mark.parametrize("java_class", CLASSES)
def test_the_units_of_a_class(cases, java_class):
    mine = cases[_java_name(java_class)]
    assert {name: wrong for name, wrong in mine.items() if wrong} == {}
