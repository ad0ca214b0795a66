"""Who imports whom: Python modules and their folders, Java packages, C files and headers."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

Graph = dict[str, set[str]]
"""Node -> the nodes that it imports; without itself."""
Tree = Mapping[str, str]
"""Path -> text."""


def python_modules(tree: Tree) -> Graph:
    """Files; a package that is imported as a whole is its ``__init__.py``."""
    files = {_module(path): path for path in tree if path.endswith(".py")}
    graph: Graph = {path: set() for path in files.values()}
    for path in files.values():
        for name in _imported(tree[path]):
            target = files.get(name)
            if target and target != path:
                graph[path].add(target)
    return graph


def _module(path: str) -> str:
    name = "shunter." + path.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def _imported(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def folders(modules: Graph) -> Graph:
    """The same between folders."""
    graph: Graph = {}
    for path, targets in modules.items():
        mine = graph.setdefault(_folder(path), set())
        mine |= {_folder(target) for target in targets} - {_folder(path)}
    return graph


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def java_packages(tree: Tree) -> Graph:
    """Packages; what a package names of itself needs no import."""
    package_of = {
        path: match.group(1)
        for path, text in tree.items()
        if path.endswith(".java")
        and (match := re.search(r"^package\s+([\w.]+)\s*;", text, re.MULTILINE))
    }
    graph: Graph = {name: set() for name in package_of.values()}
    for path, mine in package_of.items():
        for match in re.finditer(r"^import\s+(?:static\s+)?([\w.]+)", tree[path], re.MULTILINE):
            target = _longest_prefix(match.group(1), graph)
            if target and target != mine:
                graph[mine].add(target)
    return graph


def _longest_prefix(name: str, packages: Iterable[str]) -> str:
    return max(
        (each for each in packages if f"{name}.".startswith(f"{each}.")), key=len, default=""
    )


def c_files(tree: Tree) -> Graph:
    """Files, by ``#include``. A header is not one with the file that implements it.

    What stands behind a header does not come with it, so ``x.c`` may include a private header that
    includes the public ``x.h``: that is no circle.
    """
    files = {path for path in tree if path.endswith((".c", ".h"))}
    graph: Graph = {path: set() for path in files}
    for path in files:
        for match in re.finditer(r'^\s*#\s*include\s+"([^"]+)"', tree[path], re.MULTILINE):
            beside = os.path.normpath(f"{_folder(path)}/{match.group(1)}")
            found = [beside] if beside in files else _named(match.group(1), files)
            graph[path] |= set(found) - {path}
    return graph


def _named(name: str, paths: Iterable[str]) -> list[str]:
    """Where a header is that is found by a search path."""
    return [path for path in paths if f"/{path}".endswith(f"/{name}")]


def knots(graph: Graph) -> list[set[str]]:
    """Sets of nodes that all reach each other: where they are, there are circles."""
    reach = {node: _reachable(graph, node) for node in graph}
    found: list[set[str]] = []
    for node in sorted(graph):
        if node in reach[node] and not any(node in knot for knot in found):
            found.append({each for each in reach[node] if node in reach[each]})
    return found


def _reachable(graph: Graph, node: str) -> set[str]:
    found: set[str] = set()
    left = list(graph[node])
    while left:
        if (each := left.pop()) not in found:
            found.add(each)
            left += graph[each]
    return found


def circle(graph: Graph, knot: set[str]) -> list[str]:
    """The shortest circle in a knot, from its first node in the alphabet that has one so short."""
    return min((_shortest(graph, knot, node) for node in sorted(knot)), key=len)


def _shortest(graph: Graph, knot: set[str], start: str) -> list[str]:
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:  # grows
        for each in sorted(graph[way[-1]] & knot):
            if each == start:
                return [*way, start]
            if each not in seen:
                seen.add(each)
                ways.append([*way, each])
    raise ValueError(f"{start} is in no circle")


def longest_chain(graph: Graph) -> list[str]:
    """The longest row of nodes that import each other in turn; of a knot all nodes count."""
    within = {node: frozenset(knot) for knot in knots(graph) for node in knot}
    chains: dict[str, list[str]] = {}

    def chain(node: str) -> list[str]:
        if node not in chains:
            own = sorted(within.get(node, {node}))
            below = {each for mine in own for each in graph[mine]} - set(own)
            rest = max((chain(each) for each in sorted(below)), key=len, default=[])
            chains.update(dict.fromkeys(own, own + rest))
        return chains[node]

    return max((chain(node) for node in sorted(graph)), key=len, default=[])


def inside(graph: Graph, room: str) -> Graph:
    """The part of a graph whose nodes stand in a room."""
    mine = {node for node in graph if node.startswith(f"{room}/")}
    return {node: graph[node] & mine for node in mine}
