"""The reference pages that follow from the code: settings, command line, wire format.

``python docs/generate.py`` writes them, ``--check`` says which are stale. Pages that are written by
hand (metrics, REST, model-config.yaml) are compared with the code by ``tests/test_docs.py``.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import re
import struct
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from shunter.allocator.planning.allowed import allowed
from shunter.nic_frontend.client.requests.errors import error_of
from shunter.nic_frontend.wire import layout
from shunter.plugins.cli import main as cli
from shunter.plugins.doctor import templates
from shunter.plugins.doctor.templates import prose
from shunter.plugins.ray.records import settings as cluster

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
import messages  # noqa: E402 - it lies beside this file, which is no package

MARK = "<!-- Below: written by docs/generate.py. Change the code and run `make docs`. -->"
"""What is above it in a page is written by hand."""


def main() -> int:
    """Write the pages, or with ``--check`` compare them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    check = parser.parse_args().check
    stale = {path: text for path, text in pages().items() if path.read_text("utf-8") != text}
    for path, text in stale.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.name} {'is stale: run `python docs/generate.py`' if check else 'written'}")
    return 1 if check and stale else 0


def pages() -> dict[Path, str]:
    """Path and text of every generated page."""
    makers: dict[str, Callable[[], Iterable[str]]] = {
        "reference/settings.md": settings_page,
        "reference/cli.md": cli_page,
        "reference/messages.md": messages_page,
        "reference/tested.md": tested_page,
        "wire.md": wire_page,
    }
    return {
        DOCS / name: "\n".join([_above(DOCS / name), MARK, "", *make()])
        for name, make in makers.items()
    }


def _above(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("<!-- Below:")[0].rstrip() + "\n"


# ---- settings


def settings_page() -> Iterable[str]:
    """``shunter.toml`` and ``cluster.toml``, out of the checked records."""
    for name, record, keys in templates.sections():
        yield f"## [{name}{'.NAME' if name == 'models' else ''}]"
        yield from _section(record, keys)
    for name, record in cluster.sections().items():
        yield f"## cluster.toml: {name}"
        yield from _section(record, record.__pydantic_fields__)


def _section(record: Any, keys: Mapping[str, Any]) -> Iterable[str]:
    yield from ["", prose(inspect.getdoc(record) or ""), ""]
    rows = [
        (f"`{key}`", _default(each), _allowed(record, key), prose(each.description or ""))
        for key, each in keys.items()
        if each.description
    ]
    yield from _table(("Key", "Default", "Allowed", "Meaning"), rows)


def _default(field: Any) -> str:
    value = templates.default_of(field)
    return f"`{value}`" if value else "none"


def _allowed(record: Any, key: str) -> str:
    text = allowed(record, key)
    return re.sub(r"(?<![\d.])\d{5,}", lambda found: f"{int(found.group()):,}", text)


# ---- command line


def cli_page() -> Iterable[str]:
    """Every command, as ``--help`` has it."""
    root = typer.main.get_command(cli.app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        yield from _command(f"shunter {name}", command)
        for inner, below in getattr(command, "commands", {}).items():
            yield from _command(f"shunter {name} {inner}", below)


def _command(name: str, command: Any) -> Iterable[str]:
    yield from [f"## {name}", ""]
    yield from _help(command.help or "")
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    rows = [(f"`{each.name.upper()}`", "", each.help or "") for each in arguments]
    rows += [(_option(each), _given(each), each.help or "") for each in options]
    if rows:
        yield from _table(("Argument or option", "Default", "Meaning"), rows)


def _help(text: str) -> Iterable[str]:
    """Paragraphs; what is indented is an example."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text))
    for is_example, group in itertools.groupby(parts, lambda part: part.startswith("  ")):
        if is_example:
            yield from ["```", *map(textwrap.dedent, group), "```", ""]
        else:
            yield from itertools.chain(*((prose(part), "") for part in group))


def _option(option: Any) -> str:
    return ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))


def _given(option: Any) -> str:
    value = option.default
    if callable(value) or value is None or value in ((), []):
        return ""
    if isinstance(value, bool):
        names = option.opts if value else option.secondary_opts
        return f"`{names[0]}`" if option.secondary_opts else ""
    return f"`{value}`"


# ---- messages


def messages_page() -> Iterable[str]:
    """Every message of the code, by who says it."""
    root = DOCS.parent
    for title, rooms in messages.ROOMS.items():
        paths = (path for room in rooms for path in messages.sources(root, room, ".py"))
        yield from _messages(title, messages.python_messages(paths))
    java = messages.sources(root, "plugins/torchserve/java", ".java")
    yield from _messages(messages.JAVA, messages.java_messages(java))


def tested_page() -> Iterable[str]:
    """What the support table promises, and the tests that hold it to that."""
    rows, tests = features(), supporting()
    yield from ["| Feature | Tests, which all pass in a release |", "|---|---|"]
    for row in rows:
        found = [f"`{name}` in `{path}`" for label, path, name in tests if row.startswith(label)]
        yield f"| {row} | {'; '.join(found) or 'none'} |"


def features() -> list[str]:
    """The first cell of each row of the support table."""
    text = (DOCS / "support.md").read_text("utf-8").split("## Features")[1].split("\n## ")[0]
    found = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    return [each for each in found if each != "Feature"]


def supporting() -> list[tuple[str, str, str]]:
    """Tests with ``@pytest.mark.support("how a row begins", ...)``: the words, file and test."""
    root, found = DOCS.parent, []
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if "mark.support(" in text:
            for test in ast.walk(ast.parse(text)):
                found += [
                    (ast.literal_eval(word), path.relative_to(root).as_posix(), test.name)
                    for mark in getattr(test, "decorator_list", ())
                    if ast.unparse(mark).startswith("pytest.mark.support(")
                    for word in mark.args
                ]
    return found


def _messages(title: str, found: Iterable[str]) -> Iterable[str]:
    yield from [f"## {title}", ""]
    yield from (f"* `{text.replace('`', chr(39))}`" for text in found)
    yield ""


# ---- wire format


def wire_page() -> Iterable[str]:
    """The tables of its numbers."""
    titles = {
        "x64": "Header (X64)",
        "wire_hello": "Payload of HELLO",
        "wire_cookie": "Payload of HELLO_ACK with status 100",
        "wire_opened": "Payload of HELLO_ACK with status 200, before the JSON and the MAC",
    }
    for name, fields in layout.STRUCTURES.items():
        size = struct.calcsize(layout.format_of(fields))
        yield from [f"## {titles[name]}: {size} bytes", ""]
        rows = [
            (str(at), str(field.width * field.count), f"`{name}`", field.meaning)
            for name, (at, field) in layout.place_wire(fields).items()
        ]
        yield from _table(("Offset", "Bytes", "Field", "Meaning"), rows)
    yield from _enum("Types", layout.MessageType)
    yield from _enum("Flags", layout.Flags)
    yield from ["## Statuses", ""]
    notes = _notes(layout.WireStatus)
    rows = []
    for each in layout.WireStatus:
        error = error_of(each)
        kind = "" if each.name in ("OK", "COOKIE", "CANCELLED") else f"`{type(error).__name__}`"
        known = kind and not str(error).startswith("status ")
        said = notes.get(each.name) or (str(error) if known else "")
        rows.append((f"`{each.name}`", str(int(each)), kind, said))
    yield from _table(("Status", "Number", "Raised by the Python client", "Meaning"), rows)
    yield from ["## Constants", ""]
    rows = [
        (f"`{name}`", f"{value:,}" if value < 1 << 14 or "SEGMENT" in name else hex(value), meaning)
        for name, value, meaning in layout.constants()
        if not name.startswith(("TYPE_", "FLAG_", "STATUS_", "X64_", "AT_"))
    ]
    yield from _table(("Name", "Value", "Meaning"), rows)


def _enum(title: str, enum: Any) -> Iterable[str]:
    notes = _notes(enum)
    yield from [f"## {title}", ""]
    rows = [(f"`{each.name}`", str(int(each)), notes.get(each.name, "")) for each in enum]
    yield from _table(("Name", "Number", "Meaning"), rows)


def _notes(enum: Any) -> dict[str, str]:
    """The texts below an enum's members."""
    body = ast.parse(textwrap.dedent(inspect.getsource(enum))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for member, text in itertools.pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            found[member.targets[0].id] = prose(text.value.value)  # type: ignore[attr-defined]
    return found


# ---- Markdown


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


if __name__ == "__main__":
    raise SystemExit(main())
