"""Files for containers and systemd: whole, and as the tools want them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_units_are_right(tmp_path):
    unit = (DEPLOY / "systemd/shunter.service").read_text("utf-8")
    # It looks whether the programs are there.
    (tmp_path / "shunter.service").write_text(unit.replace("/opt/shunter/bin/shunter", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "shunter.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "shunter.service" not in done.stderr, done.stderr


def test_compose_names_files_that_there_are():
    compose = yaml.safe_load((DEPLOY / "docker/compose.yml").read_text("utf-8"))
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if not volume.startswith("$")
    ]
    assert len(mounted) >= 6
    for each in mounted:
        assert (DEPLOY / "docker" / each).resolve().is_file(), each


def test_a_container_has_longer_to_end_than_a_drain_takes():
    compose = yaml.safe_load((DEPLOY / "docker/compose.yml").read_text("utf-8"))
    unit = (DEPLOY / "systemd/shunter.service").read_text("utf-8")
    from shunter.plugins.cli.serve import _DRAIN_S

    assert int(compose["services"]["shunter"]["stop_grace_period"].removesuffix("s")) > _DRAIN_S
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) > _DRAIN_S
