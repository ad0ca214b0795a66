"""A server is a detail: who may import what is of one server, and who may name it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVERS = ("torchserve", "triton")
CHOOSER = "plugins/hosts.py"
"""The one file that knows which servers there are."""
NAMELESS = ("batching", "allocator", "plugins/control")
EMITTER = "batching/page/emit.py"
"""It writes a Java file, and must know in which package."""


def files(*folders):
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found if "build" not in path.parts)


def imports_of(name):
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def of_a_server(name):
    return any(f"/{server}/" in name for server in SERVERS)


PLUGINS = [name for name in files("plugins") if not of_a_server(name) and name != CHOOSER]
HANDLERS = [name for name in files("handlers") if not of_a_server(name)]


@pytest.mark.parametrize("name", PLUGINS)
def test_only_the_chooser_imports_what_is_of_one_server(name):
    rooms = tuple(f"shunter.{room}.{each}" for room in ("plugins", "handlers") for each in SERVERS)
    assert not [found for found in imports_of(name) if found.startswith(rooms)]


@pytest.mark.parametrize("name", HANDLERS)
def test_only_a_servers_own_handlers_know_it(name):
    rooms = ("ts", *(f"shunter.handlers.{server}" for server in SERVERS))
    for found in imports_of(name):
        assert not any(found == room or found.startswith(f"{room}.") for room in rooms)


@pytest.mark.parametrize("name", [name for name in files(*NAMELESS) if name != EMITTER])
def test_policy_page_queues_and_controller_name_no_server(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search("|".join(SERVERS), text, re.IGNORECASE)
