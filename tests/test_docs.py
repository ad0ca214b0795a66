"""The documentation says what the code does: generated pages are fresh, others name every key."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shunter.plugins.control import settings_keys

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
JAVA = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "plugins/torchserve/java").rglob("*.java"))
)
CODE = [
    path
    for room in ("batching", "allocator", "handlers", "nic_frontend", "model_store", "plugins")
    for suffix in ("*.py", "*.java")
    for path in (ROOT / room).rglob(suffix)
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def named(text):
    """What stands in backquotes."""
    return set(re.findall(r"`([^`\s]+)`", text))


def literals(pattern, text=JAVA):
    """Java's texts of this shape."""
    return set(re.findall(rf'"({pattern})"', text))


def first_cells(text):
    """What the first column of the tables names, all of it where there are several."""
    cells = re.findall(r"^\| (`[^|]*`) ", text, re.M)
    return {name for cell in cells for name in named(cell)}


def generator():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated():
    return generator().pages()


def test_the_generated_pages_are_fresh(generated):
    pages = {path.relative_to(DOCS).as_posix() for path in generated}
    assert pages > {"reference/settings.md", "reference/cli.md", "wire.md"}
    stale = [path for path, text in generated.items() if path.read_text("utf-8") != text]
    assert stale == [], "run `python docs/generate.py`"


def test_every_setting_is_in_the_reference_with_its_meaning():
    text = page("reference/settings.md")
    for section, field in settings_keys.Settings.__pydantic_fields__.items():
        record = settings_keys.ModelSettings if section == "models" else field.annotation
        for key, each in record.__pydantic_fields__.items():
            inherited = key in settings_keys.BatchingSettings.__pydantic_fields__
            assert f"| `{key}` |" in text, f"[{section}] {key}"
            assert each.description or inherited, f"[{section}] {key} has no meaning"


def test_every_metric_of_the_server_is_in_the_reference_and_no_other():
    from shunter.nic_frontend.server.structures import COUNTERS

    known = literals(r"shunter_[a-z_]*[a-z]") - {"shunter_config"}
    source = next(text for text in JAVA.split("package ") if '"shunter_nic_"' in text)
    known |= {f"shunter_nic_{name}" for name in re.findall(r'gauge\(\s*"([a-z_]+)"', source)}
    known |= {f"shunter_nic_{name}_total" for name in COUNTERS if not name.startswith("drop_")}
    text = page("reference/metrics.md")
    assert {name for name in first_cells(text) if name.startswith("shunter_")} == known
    in_prose = set(re.findall(r"\bshunter_[a-z_]+", text))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in in_prose} <= known


def test_every_key_of_a_model_is_in_the_reference_and_no_other():
    sets = re.findall(r"KEYS =\s*new TreeSet<>\(\s*List\.of\((.*?)\)\)", JAVA, re.S)
    constants = dict(re.findall(r'static final String (\w+) = "([a-z_]+)"', JAVA))
    known = {
        constants.get(word, word)
        for keys in sets
        for word in re.findall(r"\w+", keys.replace('"', ""))
    }
    assert {"class", "slo_ms", "segment_ms", "dtype"} <= known  # the parser still finds them
    text = page("reference/model-config.md")
    assert known <= named(text)
    assert first_cells(text) <= known


def test_every_header_of_a_request_is_described():
    assert literals("x-shunter-[a-z-]+") <= named(page("reference/rest.md"))
    for header in literals("x-shunter-[a-z-]+"):
        assert header in page("howto/requests.md") + page("security.md")


def test_every_argument_and_field_of_the_endpoints_is_in_the_reference():
    files = [text for text in JAVA.split("package ") if "addProperty(" in text]
    fields = {
        name
        for text in files
        for name in re.findall(r'(?:addProperty|\.add|parameter|put)\([^"();]*"([a-z_]+)"', text)
    }
    assert {"generation", "restarts", "runners", "auto", "slo_met"} <= fields
    text = page("reference/rest.md")
    missing = {name for name in fields if not re.search(rf"`{name}[`=]", text)}
    assert missing <= {"code", "type", "message"}


def test_every_environment_variable_that_is_documented_is_read_somewhere():
    source = "\n".join(path.read_text(encoding="utf-8") for path in CODE)
    names = {name for path in PAGES for name in re.findall(r"\bSHUNTER_[A-Z_]+", path.read_text())}
    assert {name for name in names if f'"{name}"' not in source} <= {"SHUNTER_BENCH_CACHE"}


MESSAGES = re.findall(r"^\| (?:\d{3} )?`([^`]+)`", page("troubleshooting.md"), re.M)


def test_the_page_of_messages_is_not_empty():
    assert len(MESSAGES) > 50


@pytest.fixture(scope="module")
def texts_of_the_code():
    """All sources as one text, with the pieces of long literals put together."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in CODE)
    return " ".join(re.sub(r'"\s*\+?\s*f?"', "", source).split())


def runs(message):
    """Up to five words in a row of a message, without what differs from case to case."""
    for piece in re.split(r"\b[A-Z]+\b|\.\.\.|[\"'()=;:,<>]|\b\d+\b", message):
        words = piece.split()
        size = min(5, len(words))
        yield from (words[at : at + size] for at in range(len(words) - size + 1))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_troubleshooting_page_is_in_the_code(texts_of_the_code, message):
    found = list(runs(message))
    most = max(map(len, found))
    assert any(" ".join(run) in texts_of_the_code for run in found if len(run) >= min(3, most))


def told_by(path):
    """The longest fixed piece of each text that a file makes of several."""
    for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(each, ast.JoinedStr):
            fixed = [part.value for part in each.values if isinstance(part, ast.Constant)]
            longest = max(fixed, key=len, default="").strip(" ;:,`.'")
            if len(longest.split()) >= 3:
                yield longest


def test_what_the_host_answers_is_on_the_troubleshooting_page():
    told = list(told_by(ROOT / "plugins/torchserve/host.py"))
    assert len(told) > 6
    text = page("troubleshooting.md")
    assert [each for each in told if not any(" ".join(run) in text for run in runs(each))] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("name", ["docs/design.md", "CONTRIBUTING.md", "docs/benchmarks.md"])
def test_a_file_that_is_named_exists_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    there = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    assert {Path(each).name for each in re.findall(r"`([\w/]+\.py)", text)} <= there


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_the_site_is_built_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference/settings/index.html").is_file()


def test_every_test_of_the_support_table_is_of_a_row_and_few_rows_have_none():
    pages = generator()
    rows, labels = pages.features(), {label for label, _, _ in pages.supporting()}
    assert [label for label in labels if not any(row.startswith(label) for row in rows)] == []
    bare = {row for row in rows if not any(row.startswith(label) for label in labels)}
    assert bare == UNTRIED


UNTRIED = {"GPU assignment, `deviceIds`", "`useVenv`"}
"""Features without a test here: a new one has one, or is added here by somebody who says so."""
