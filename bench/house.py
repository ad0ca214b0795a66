"""How the house stands: counts from the tree, no timing.

Product code is the Python, Java and C of the rooms, without what is emitted. A circle is a set of
modules, folders, packages or C files that import each other, directly or by way of others; a
floor is one step of the longest chain of imports in a room. What CONTRIBUTING.md names under
"Exceptions" is counted like the rest, and shown as an exception:

    ## Exceptions
    - `batching/page/layout.py`: one definition of every shared byte
    - `nic_frontend/c/server/server.c:run`: ...
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import imports
from braces import functions
from common import BENCH, Row, write_result

NAME = "house"
ROOMS = ("batching", "allocator", "handlers", "nic_frontend", "model_store", "plugins")
LANGUAGES = {".py": "Python", ".java": "Java", ".c": "C", ".h": "C"}
FILE_LINES, FUNCTION_LINES, FOLDER_FILES = 300, 60, 15
"""More than that is too much."""
RULES = {
    "files_over_300_lines": "lines",
    "functions_over_60_lines": "lines",
    "folders_over_15_files": "files",
    "import_circles": "in it",
}
_EMITTED = re.compile(r"\A.{0,3}Emitted by python -m ", re.DOTALL)

Tree = Mapping[str, str]
"""Path -> text."""


class Offender(NamedTuple):
    """What breaks a rule, and by how much."""

    rule: str
    name: str
    size: int
    note: str = ""


# ---- which files


def working_tree(root: Path) -> dict[str, str]:
    """What git tracks, as it lies there now."""
    listed = _git(root, "ls-files", "-z").decode().split("\0")
    return {path: _text((root / path).read_bytes()) for path in listed if _counts(root / path)}


def commit_tree(root: Path, commit: str) -> dict[str, str]:
    """What a commit holds."""
    packed = io.BytesIO(_git(root, "archive", "--format=tar", commit))
    with tarfile.open(fileobj=packed) as archive:
        members = [each for each in archive if each.isfile()]
        return {each.name: _text(archive.extractfile(each).read()) for each in members}


def _counts(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, check=True
    ).stdout


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def product(tree: Tree) -> dict[str, str]:
    """The product's code."""
    return {
        path: text
        for path, text in tree.items()
        if path.split("/")[0] in ROOMS and _language(path) and not _EMITTED.match(text)
    }


def _language(path: str) -> str:
    return LANGUAGES.get(PurePosixPath(path).suffix, "")


# ---- what is counted


def line_rows(tree: Tree) -> list[Row]:
    """Lines and files by room and language."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for path, text in product(tree).items():
        found[path.split("/")[0], _language(path)].append(len(text.splitlines()))
    return [
        {"room": room, "language": language, "lines": sum(lines), "files": len(lines)}
        for (room, language), lines in sorted(found.items())
    ]


def offenders(tree: Tree) -> list[Offender]:
    """Everything that breaks a rule, the worst first in each."""
    code = product(tree)
    found = [*_long_files(code), *_long_functions(code), *_full_folders(tree), *_circles(code)]
    return sorted(found, key=lambda each: (list(RULES).index(each.rule), -each.size, each.name))


def _long_files(code: Tree) -> Iterator[Offender]:
    for path, text in code.items():
        if (lines := len(text.splitlines())) > FILE_LINES:
            yield Offender("files_over_300_lines", path, lines)


def _long_functions(code: Tree) -> Iterator[Offender]:
    for path, text in code.items():
        for name, _, lines in functions_of(path, text):
            if lines > FUNCTION_LINES:
                yield Offender("functions_over_60_lines", f"{path}:{name}", lines)


def functions_of(path: str, text: str) -> list[tuple[str, int, int]]:
    """Name, first line and lines of every function; decorators and annotations do not count."""
    if path.endswith(".py"):
        return [
            (node.name, node.lineno, node.end_lineno - node.lineno + 1)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    return list(functions(text, "java" if path.endswith(".java") else "c"))


def _full_folders(tree: Tree) -> Iterator[Offender]:
    """Whatever lies in it counts, but for what makes it a package."""
    held: dict[str, int] = defaultdict(int)
    for path in tree:
        if path.split("/")[0] in ROOMS and not path.endswith("/__init__.py"):
            held[str(PurePosixPath(path).parent)] += 1
    for folder, files in held.items():
        if files > FOLDER_FILES:
            yield Offender("folders_over_15_files", folder, files)


def graphs(code: Tree) -> dict[str, imports.Graph]:
    """Who imports whom, by kind."""
    modules = imports.python_modules(code)
    return {
        "Python modules": modules,
        "folders": imports.folders(modules),
        "Java packages": imports.java_packages(code),
        "C files": imports.c_files(code),
    }


def _circles(code: Tree) -> Iterator[Offender]:
    for kind, graph in graphs(code).items():
        for knot in imports.knots(graph):
            way = imports.circle(graph, knot)
            yield Offender("import_circles", " -> ".join(way), len(knot), kind)


def floor_rows(tree: Tree) -> list[Row]:
    """The longest chain of imports of every room, by language."""
    code, found = product(tree), []
    for room in ROOMS:
        mine = {path: text for path, text in code.items() if path.startswith(f"{room}/")}
        for kind, graph in graphs(mine).items():
            chain = imports.longest_chain(graph)
            if chain and kind != "folders":
                found.append({"room": room, "of": kind, "floors": len(chain), "chain": chain})
    return found


def exceptions(tree: Tree) -> dict[str, str]:
    """What CONTRIBUTING.md names as an exception, and why."""
    text = tree.get("CONTRIBUTING.md", "")
    section = re.search(r"^#*\s*\**Exceptions\b[^\n]*\n(.*?)(?=^#|\Z)", text, re.M | re.S | re.I)
    named = re.findall(
        r"^\s*[-*]\s*`([^`]+)`[:,;\s]*(.*)$", section.group(1) if section else "", re.M
    )
    return dict(named)


# ---- what is said


def result(tree: Tree) -> tuple[list[Row], Row]:
    """Rows and headline of one tree."""
    found, excepted = offenders(tree), exceptions(tree)
    lines, floors = line_rows(tree), floor_rows(tree)
    rows = [{"about": "lines", **row} for row in lines]
    rows += [{"about": "floors", **row} for row in floors]
    rows += [
        {"about": "offender", **each._asdict(), "exception": excepted.get(each.name)}
        for each in found
    ]
    stale = sorted(excepted.keys() - {each.name for each in found})
    rows += [{"about": "exception of nothing", "name": name} for name in stale]
    headline = {"product_lines": sum(row["lines"] for row in lines)}
    headline |= {rule: sum(each.rule == rule for each in found) for rule in RULES}
    headline["not_excepted"] = sum(each.name not in excepted for each in found)
    return rows, headline


def show(sides: Mapping[str, tuple[list[Row], Row]], worst: int) -> None:
    """Print a table with a column for every tree, and the offenders of the last one."""
    print(f"{'':42}" + "".join(f"{name:>12}" for name in sides))
    counts = {name: _table(rows, headline) for name, (rows, headline) in sides.items()}
    for label in dict.fromkeys(label for table in counts.values() for label in table):
        print(f"{label:42}" + "".join(f"{t.get(label, 0):>12,}" for t in counts.values()))
    rows, _ = list(sides.values())[-1]
    for rule, unit in RULES.items():
        found = [row for row in rows if row.get("rule") == rule]
        print(f"\n{rule}: {len(found)}")
        for row in found[:worst]:
            why = "" if row["exception"] is None else f"  exception: {row['exception']}"
            print(f"  {row['size']:5} {unit}  {row['name']}{why}")
        if len(found) > worst:
            print(f"  and {len(found) - worst} more")
    for row in rows:
        if row["about"] == "exception of nothing":
            print(f"\nCONTRIBUTING.md excepts {row['name']}, which breaks no rule")


def _table(rows: list[Row], headline: Row) -> Row:
    table = dict(headline)
    for row in rows:
        if row["about"] == "lines":
            for label in (f"lines of {row['language']}", f"lines in {row['room']}"):
                table[label] = table.get(label, 0) + row["lines"]
        elif row["about"] == "floors":
            table[f"floors of {row['room']}, {row['of']}"] = row["floors"]
    first = [*headline, *sorted(label for label in table if label.startswith("lines of"))]
    return {label: table[label] for label in dict.fromkeys([*first, *sorted(table)])}


def main() -> None:
    """Count, print, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the same, written beside quick runs")
    parser.add_argument("--before", metavar="COMMIT", help="count this commit too")
    parser.add_argument("--worst", type=int, default=12, help="so many of each rule are printed")
    parser.add_argument("--no-write", action="store_true", help="only print")
    args = parser.parse_args()
    root = BENCH.parent
    sides = {"now": result(working_tree(root))}
    if args.before:
        sides = {args.before[:10]: result(commit_tree(root, args.before)), **sides}
    show(sides, args.worst)
    rows, headline = sides["now"]
    if args.before:
        before, was = sides[args.before[:10]]
        rows = rows + [{"before": args.before, **row} for row in before]
        rows.append({"before": args.before, "about": "headline", **was})
    if not args.no_write:
        print(write_result(NAME, quick=args.quick, rows=rows, headline=headline).name)


if __name__ == "__main__":
    main()
