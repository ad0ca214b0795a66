"""Every message with which the code refuses something, out of the code itself. Pure but for files.

What is put into a message stands there as a word in capitals: its name in the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOMS = {
    "Commands, settings and hosts": ("plugins",),
    "Packing models": ("model_store",),
    "Profiles, configurations, devices": ("allocator",),
    "Workers": ("handlers",),
    "The network": ("nic_frontend", "batching"),
}
"""Heading of the page -> rooms."""
JAVA = "Calls of the management API, and archives when they are registered"
TELLS = re.compile(
    r"(?:User|Host|Settings|RuntimeFolder|Configuration|Profile|CpuList|Layout|Device|Sample|Tensor"
    r"Config|WeightsConfig|Placement|KeyFile|Build|Pack|Jar|Attach|Queue|QueueTooLarge|Library|Bad"
    r"Request|TooLarge|Authentication|Unavailable|TooLate|TooSlow|Unreachable)Error"
    r"|NoConfiguration|LoadFailed|ServerFailed"
)
"""Exceptions whose text people get to read."""
REFUSALS = ("BadRequestException", "NoRoomException", "ServiceUnavailableException")
LEAST = 8
"""Letters of a message's own; what has fewer is only passed on."""


def sources(root: Path, room: str, suffix: str) -> Iterator[Path]:
    """Files of a room, without what is built or fetched there."""
    for path in sorted((root / room).rglob(f"*{suffix}")):
        if "build" not in path.relative_to(root).parts:
            yield path


def python_messages(paths: Iterable[Path]) -> list[str]:
    """Of Python files, sorted, each once."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and TELLS.fullmatch(_name(node.func)) and node.args:
                found.update(_texts(node.args[0]))
    return _worth(found)


def java_messages(paths: Iterable[Path]) -> list[str]:
    """Of Java files: the arguments of ``new BadRequestException(...)`` and its like."""
    found = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for begin in re.finditer(rf"new (?:{'|'.join(REFUSALS)})\(", text):
            found.add(_java_text(_argument(text, begin.end())))
    return _worth(found)


def _worth(found: Iterable[str]) -> list[str]:
    tidy = {re.sub(r"\s+", " ", each).strip() for each in found}
    worth = (each for each in tidy if len(re.sub(r"[^a-z]", "", each)) >= LEAST)
    return sorted(worth, key=lambda each: (each.casefold(), each))


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    else:
        yield _text(node)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.FormattedValue):
        return _word(ast.unparse(node.value))
    return _word(ast.unparse(node))


def _word(code: str) -> str:
    """The last name of a piece of code, in capitals."""
    code = re.sub(r"\"[^\"]*\"|'[^']*'", "", code)
    names = [name for name in re.findall(r"[A-Za-z_]\w*", code) if name not in ("self", "str")]
    return (names[-1] if names else "value").strip("_").upper()


def _argument(text: str, begin: int) -> str:
    """What stands between parentheses, from behind the first one."""
    depth, end, quoted = 1, begin, False
    while depth:
        c = text[end]
        if c == '"' and text[end - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(c, 0)
        end += 1
    return text[begin : end - 1]


def _java_text(code: str) -> str:
    parts = re.findall(r'"(?:[^"\\]|\\.)*"|[^"+]+', code)
    made = [
        part[1:-1].replace('\\"', '"') if part[0] == '"' else _word(part)
        for part in (each.strip() for each in parts)
        if part
    ]
    return "".join(made)
