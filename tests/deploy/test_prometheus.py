"""Rules, alerts and the dashboard: by promtool, by what is documented, and by a real Prometheus."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
WORDS = re.compile(r"\b(?:\w+:)?shunter_\w+(?::\w+)?")


def promtool(*arguments):
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules():
    for name in ("rules.yml", "alerts.yml"):
        for group in yaml.safe_load((PROMETHEUS / name).read_text("utf-8"))["groups"]:
            yield from group["rules"]


def expressions():
    yield from (rule["expr"] for rule in rules())
    board = json.loads((GRAFANA / "shunter.json").read_text("utf-8"))
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


@needs_promtool
@pytest.mark.parametrize("file", ["rules.yml", "alerts.yml"])
def test_rules_are_right(file):
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", file)


@needs_promtool
@pytest.mark.parametrize("folder", [PROMETHEUS, ROOT / "deploy/docker"])
def test_configurations_are_right(folder, tmp_path):
    for each in (folder / "prometheus.yml", PROMETHEUS / "rules.yml", PROMETHEUS / "alerts.yml"):
        shutil.copy(each, tmp_path)
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


@needs_promtool
def test_alerts_come_when_they_should_and_not_otherwise():
    assert "SUCCESS" in promtool("test", "rules", "tests.yml")


def test_every_metric_that_is_asked_for_is_documented():
    documented = set(WORDS.findall((ROOT / "docs/reference/metrics.md").read_text("utf-8")))
    known = documented | {rule["record"] for rule in rules() if "record" in rule}
    asked = {SUFFIX.sub("", word) for expr in expressions() for word in WORDS.findall(expr)}
    assert len(asked) > 25
    assert asked <= known, asked - known


def test_every_alert_says_how_urgent_it_is_and_what_to_do():
    alerts = [rule for rule in rules() if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "description"} <= alert["annotations"].keys()


def test_the_dashboard_is_fresh():
    done = subprocess.run([sys.executable, str(GRAFANA / "make.py"), "--check"], check=False)
    assert done.returncode == 0, "run python deploy/grafana/make.py"


def test_panels_do_not_overlap():
    panels = json.loads((GRAFANA / "shunter.json").read_text("utf-8"))["panels"]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
