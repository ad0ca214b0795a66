"""The Java classes that decide about requests, driven by JUnit without a server."""

import os
import re
import shutil
import subprocess
from pathlib import Path

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


@pytest.fixture(scope="module")
def run_units(tmp_path_factory, jar_path):
    """Compiles the tests against the built jar; runs those of one class."""
    jars = [DEBIAN / name for name in JARS if (DEBIAN / name).exists()]
    if not (DEBIAN / "junit-platform-console.jar").exists():
        pytest.skip("needs JUnit 5 (Debian: apt-get install junit5)")
    classes = tmp_path_factory.mktemp("units")
    path = os.pathsep.join(map(str, [classes, *jars, *jar_path]))
    compiler = ["javac", "-proc:none", "-Xlint:none", "-encoding", "UTF-8", "-cp", path]
    sources = map(str, UNITS.rglob("*.java"))
    subprocess.run([*compiler, "-d", classes, *sources], check=True, timeout=120)
    java = shutil.which("java")
    more = hypothesis.settings.default.max_examples > PLAIN_EXAMPLES
    schedules = os.environ.get("SHUNTER_SCHEDULES", str(FUZZ_SCHEDULES if more else SCHEDULES))

    def run_units(name):
        return subprocess.run(
            [
                *(java, "-ea", "-XX:+UseSerialGC", f"-Dshunter.schedules={schedules}"),
                f"-Dshunter.seed={os.environ.get('SHUNTER_SEED', '')}",
                *("-cp", path, "org.junit.platform.console.ConsoleLauncher"),
                *("--disable-banner", "--details=tree", "--disable-ansi-colors"),
                f"--select-class={'.'.join(CLASSES[name].with_suffix('').parts)}",
            ],
            capture_output=True,
            encoding="utf-8",
            timeout=1800,
            check=False,
        )

    return run_units


@pytest.mark.parametrize("name", CLASSES)
def test_the_units_of_a_class(run_units, name):
    done = run_units(name)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    succeeded = re.search(r"\[ +(\d+) tests successful", done.stdout)
    assert succeeded is not None and int(succeeded[1]) > 0, done.stdout
