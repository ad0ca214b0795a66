"""The rules that keep the rooms apart: imports point one way, pure modules stay pure."""

import ast
import configparser
from pathlib import Path

import pytest

from shunter.batching import emit
from shunter.nic_frontend.wire import emit as wire_emit

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "batching": set(),
    "allocator": set(),
    "handlers": {"batching", "allocator"},
    "nic_frontend": {"batching"},
    "model_store": {"batching"},
    "plugins": {"batching", "allocator", "handlers", "nic_frontend", "model_store"},
}
"""Room -> other rooms it may import. Nobody imports plugins."""

PURE = {
    "allocator.cpus.cores",
    "allocator.cpus.cpu_list",
    "allocator.cpus.topology",
    "allocator.planning.allowed",
    "batching.forming.classes",
    "allocator.planning.configuration",
    "batching.preemption.cutting",
    "allocator.planning.estimator",
    "batching.preemption.evidence",
    "batching.page.hold_words",
    "allocator.planning.latency_table",
    "batching.page.layout",
    "allocator.planning.measurement",
    "allocator.planning.optimizer",
    "allocator.planning.packing",
    "batching.preemption.padding",
    "batching.page.records",
    "batching.preemption.pair_judge",
    "batching.preemption.states",
    "allocator.planning.profile",
    "allocator.planning.profile_plan",
    "allocator.planning.profile_table",
    "batching.queue.layout",
    "batching.forming.release",
    "allocator.planning.sharing",
    "batching.page.slices",
    "batching.queue.tensor_spec",
    "batching.forming.threshold",
    "handlers.device.ladder",
    "nic_frontend.client.protocol.core",
    "nic_frontend.client.protocol.state",
    "nic_frontend.server.absences",
    "nic_frontend.server.model_policy",
    "nic_frontend.wire.header",
    "nic_frontend.wire.hello",
    "nic_frontend.wire.keys",
    "nic_frontend.wire.layout",
    "nic_frontend.wire.segments",
    "nic_frontend.wire.siphash",
}
"""Numbers in, numbers out; they import only each other of ours."""

IMPURE = {
    "asyncio",
    "ctypes",
    "httpx",
    "mmap",
    "multiprocessing",
    "os",
    "psutil",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "torch",
}

ROOM_FILES = sorted(
    path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py") if "build" not in path.parts
)
ALL_FILES = ROOM_FILES + sorted(
    path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")
)


def relative(path):
    return str(path.relative_to(ROOT))


def imports_of(path):
    """Full names of what a file imports, wherever in the file; '.' for a relative import."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if not node.level}
    return found


def rooms_of(names):
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "shunter" and len(part) > 1}


def path_of(module):
    return ROOT / (module.replace(".", "/") + ".py")


@pytest.mark.parametrize("path", ROOM_FILES, ids=relative)
def test_a_file_imports_only_the_rooms_that_its_own_room_may(path):
    room = path.relative_to(ROOT).parts[0]
    assert rooms_of(imports_of(path)) <= MAY_IMPORT[room] | {room}


def test_the_import_table_has_no_cycle():
    rooms, left = [], dict(MAY_IMPORT)
    while left:
        free = {room for room, needs in left.items() if needs <= set(rooms)}
        assert free, f"cycle among {sorted(left)}"
        rooms += free
        left = {room: needs for room, needs in left.items() if room not in free}


@pytest.mark.parametrize("path", ALL_FILES, ids=relative)
def test_no_file_imports_a_room_by_its_bare_name_or_relatively(path):
    # With the checkout as working directory, `import batching` gives a second copy of everything.
    bare = {name.split(".")[0] for name in imports_of(path)} | {""}
    assert not bare & {*MAY_IMPORT, "tests", "bench"}
    assert "." not in imports_of(path)


@pytest.mark.parametrize("module", sorted(PURE))
def test_a_pure_module_touches_nothing_of_the_world(module):
    names = imports_of(path_of(module))
    assert not {name.split(".")[0] for name in names} & IMPURE


@pytest.mark.parametrize("module", sorted(PURE))
def test_a_pure_module_imports_only_pure_modules_of_ours(module):
    ours = {name.removeprefix("shunter.") for name in imports_of(path_of(module))}
    modules = {name for name in ours if path_of(name).is_file()}
    assert modules <= PURE


def test_every_folder_with_an_init_file_is_a_declared_package():
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    packages = set(declared["options"]["packages"].split())
    mapping = dict(
        line.split(" = ") for line in declared["options"]["package_dir"].strip().splitlines()
    )
    found = {
        path.parent.relative_to(ROOT).as_posix()
        for path in ROOM_FILES
        if path.name == "__init__.py"
    }
    assert packages == {"shunter." + folder.replace("/", ".") for folder in found}
    assert mapping == {"shunter." + folder.replace("/", "."): folder for folder in found}


def test_the_tests_are_no_package():
    assert not list((ROOT / "tests").rglob("__init__.py"))


EMITTED = emit.emitted_files(ROOT) | wire_emit.emitted_files(ROOT)


@pytest.mark.parametrize("path", EMITTED, ids=relative)
def test_an_emitted_layout_file_is_fresh(path):
    assert path.read_text(encoding="utf-8") == EMITTED[path]
