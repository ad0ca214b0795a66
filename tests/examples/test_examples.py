"""Every example runs, as its README says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shunter.model_store.minilm.archive import weights_missing
from shunter.plugins import hosts

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "serving")
SAID = {
    "classify_jpeg": "24 pictures by 8 clients at once",
    "embed_sentences": "200 tokens over UDP: a vector of 384 numbers",
    "two_classes": "page: ",
    "fifty_models": "50 models, 400 requests, every answer from the right one",
    "three_doors": "UDP: [",
}


def test_the_readme_names_them_all():
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `(\w+)\.py`", text, re.MULTILINE)) == NAMES == sorted(SAID)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name, tmp_path):
    if name == "embed_sentences" and (missing := weights_missing()):
        pytest.skip(missing)
    options = []
    if name == "three_doors" and hosts.triton_program() is None:
        options = ["--without-triton"]
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "examples" / f"{name}.py"), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAID[name] in done.stdout
