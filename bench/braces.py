"""Functions of Java and C by counting braces: good enough for code that compiles."""

from __future__ import annotations

import re
from typing import NamedTuple

_WORDLESS = re.compile(
    r'/\*.*?\*/|//[^\n]*|"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_ANNOTATION = re.compile(r"@(?!interface)[\w.]+(?:\s*\((?:[^()]|\([^()]*\))*\))?\s*")
_TYPE = re.compile(r"\b(?:class|interface|enum|record)\s+\w+")
_ANONYMOUS = re.compile(r"\bnew\s+[\w.<>,?\s\[\]]+\((?:[^{}])*\)\s*$", re.DOTALL)
_ENDS_ARGUMENTS = re.compile(r"\)\s*(?:(?:const|throws\s[\w.,\s]+))?\s*$")
_COMPACT = re.compile(r"^(?:(?:public|protected|private)\s+)?[A-Z]\w*$")
_MACRO = re.compile(r"^__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)\s*")


class Function(NamedTuple):
    """Where a function stands: its first line is that of its signature."""

    name: str
    line: int
    lines: int


class Unbalanced(ValueError):
    """Braces that do not match: what was counted would be wrong."""


def functions(text: str, language: str) -> list[Function]:
    """Every function with a body, in the order of their ends; ``language`` is java or c."""
    return _Scanner(_blanked(text, language), language).run()


def _blanked(text: str, language: str) -> str:
    """The same without comments, texts and directives; every line stays where it is."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    text = _WORDLESS.sub(blank, text)
    return _DIRECTIVE.sub(blank, text) if language == "c" else text


class _Open(NamedTuple):
    kind: str
    """type: functions may stand in it; function; other."""
    name: str
    begin: int
    parentheses: int
    """How many were open before it."""
    head: int


class _Scanner:
    def __init__(self, text: str, language: str) -> None:
        self._text, self._language = text, language
        self._open: list[_Open] = []
        self._head = 0  # where what stands before the next brace begins
        self._parentheses = 0
        self._found: list[Function] = []

    def run(self) -> list[Function]:
        for match in re.finditer(r"[{}();]", self._text):
            sign, at = match.group(), match.start()
            if sign == "{":
                self._begin(at)
            elif sign == "}":
                self._end(at)
            elif sign == ";":
                self._head = at + 1 if self._parentheses == 0 else self._head
            else:
                self._parentheses += 1 if sign == "(" else -1
        if self._open or self._parentheses:
            raise Unbalanced(f"left open: {self._open}")
        return self._found

    def _begin(self, at: int) -> None:
        head = self._text[self._head : at]
        kind, name = self._kind(head)
        begin = self._head + _length_before(head)
        self._open.append(_Open(kind, name, begin, self._parentheses, self._head))
        self._head, self._parentheses = at + 1, 0

    def _end(self, at: int) -> None:
        if not self._open or self._parentheses:
            raise Unbalanced(f"in line {self._line(at)}")
        kind, name, begin, self._parentheses, head = self._open.pop()
        if kind == "function":
            first = self._line(begin)
            self._found.append(Function(name, first, self._line(at) - first + 1))
        # Inside of parentheses, those of an annotation for one, a brace ends no signature.
        self._head = head if self._parentheses else at + 1

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1

    def _kind(self, head: str) -> tuple[str, str]:
        said = head[_length_before(head) :].strip()
        java = self._language == "java"
        if java and (_ANONYMOUS.search(said) or (_TYPE.search(said) and not self._parentheses)):
            return "type", ""
        within = self._open[-1].kind if self._open else "type"
        if within != "type" or self._parentheses or "=" in _outside(said):
            return "other", ""
        if java and said in ("", "static"):
            return "function", "<init>"
        if java and _COMPACT.match(said):
            return "function", said.split()[-1]
        if not java and said.startswith("extern") and "(" not in said:
            return "type", ""
        name = re.search(r"(\w+)\s*\(", said)
        if name and _ENDS_ARGUMENTS.search(said):
            return "function", name.group(1)
        return "other", ""


def _length_before(head: str) -> int:
    """Spaces, annotations and attributes before a signature."""
    at = len(head) - len(head.lstrip())
    while match := _ANNOTATION.match(head, at) or _MACRO.match(head[at:]):
        at = match.end() if match.re is _ANNOTATION else at + match.end()
    return at


def _outside(text: str) -> str:
    """What stands outside of parentheses."""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text
